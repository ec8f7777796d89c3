"""The aggregates of keyed steps, defined as in Spark SQL.

Nulls are ignored. Without any value a count is 0, and all other aggregates are null.
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
    """The number of rows, or of rows in which `column` is not null."""
    return Aggregate("count", column, where=where)


def sum(column: str, where: str | None = None) -> Aggregate:
    """The sum: int64 for integers, float64 for floats, decimal(38) for decimals.

    A sum of integers that exceeds int64 fails the query.
    """
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
    """The value of the row with the smallest `by`, or of the first row without `by`.

    Among rows with equal `by`, the first one wins.
    """
    return Aggregate("first", column, by, where=where)


def last(column: str, by: str | None = None, where: str | None = None) -> Aggregate:
    """The value of the row with the largest `by`, or of the last row without `by`.

    Among rows with equal `by`, the last one wins.
    """
    return Aggregate("last", column, by, where=where)


def count_distinct(column: str, where: str | None = None) -> Aggregate:
    """The exact number of distinct values. The state keeps every value.

    Works on numbers, bools, dates and times. For other types, or for less state, use `approx_distinct`.
    """
    return Aggregate("count_distinct", column, where=where)


def approx_distinct(column: str, precision: int = 9, where: str | None = None) -> Aggregate:
    """The approximate number of distinct values (HyperLogLog).

    Each key takes 2**precision bytes. The error is about 1.04 / sqrt(2**precision): 4.6 % at 9.
    """
    return Aggregate("approx_distinct", column, precision=precision, where=where)
