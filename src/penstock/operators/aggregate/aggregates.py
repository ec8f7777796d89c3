"""Aggregates that a keyed step can keep, as Spark SQL defines them.

Nulls are ignored: a sum, average, minimum or the like of nothing is null, a count of nothing is 0.
`where` names a column of bools: rows in which it is false or null are left out.

>>> str(sum("spent")), str(last("city", by="seen_at")), str(count())
('sum(spent)', 'last(city by seen_at)', 'count(*)')
"""

from __future__ import annotations

from penstock.operators.aggregate.compiled import Aggregate
from penstock.operators.aggregate.plan import AggregatePlan

__all__ = [
    "Aggregate",
    "AggregatePlan",
    "approx_distinct",
    "avg",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "sum",
]


def count(column: str | None = None, where: str | None = None) -> Aggregate:
    """The number of rows, or of those in which `column` is not null."""
    return Aggregate("count", column, where=where)


def sum(column: str, where: str | None = None) -> Aggregate:
    """The sum: int64 of integers, which must hold it; float64 of floats; decimal(38) of decimals."""
    return Aggregate("sum", column, where=where)


def min(column: str, where: str | None = None) -> Aggregate:
    """The smallest value of an orderable column; NaN counts as the largest."""
    return Aggregate("min", column, where=where)


def max(column: str, where: str | None = None) -> Aggregate:
    """The largest value of an orderable column; NaN counts as the largest."""
    return Aggregate("max", column, where=where)


def avg(column: str, where: str | None = None) -> Aggregate:
    """The mean of a column of numbers, as float64."""
    return Aggregate("avg", column, where=where)


def first(column: str, by: str | None = None, where: str | None = None) -> Aggregate:
    """The value with the smallest `by`, of equal ones the first seen; without `by`, the first."""
    return Aggregate("first", column, by, where=where)


def last(column: str, by: str | None = None, where: str | None = None) -> Aggregate:
    """The value with the largest `by`, of equal ones the last seen; without `by`, the last."""
    return Aggregate("last", column, by, where=where)


def count_distinct(column: str, where: str | None = None) -> Aggregate:
    """How many distinct values there are, exactly: every one is kept.

    For numbers, bools, dates and times. For other values, or for less state, see `approx_distinct`.
    """
    return Aggregate("count_distinct", column, where=where)


def approx_distinct(column: str, precision: int = 9, where: str | None = None) -> Aggregate:
    """About how many distinct values there are (HyperLogLog).

    Each key takes 2**precision bytes; the error is about 1.04 / sqrt(2**precision): 4.6 % at 9.
    """
    return Aggregate("approx_distinct", column, precision=precision, where=where)
