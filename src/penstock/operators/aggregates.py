"""Aggregates that a keyed step can keep, as Spark SQL defines them.

Nulls are ignored: a sum, average, minimum or the like of nothing is null, a count of nothing is 0.

>>> str(sum("spent")), str(last("city", by="seen_at")), str(count())
('sum(spent)', 'last(city by seen_at)', 'count(*)')
"""

from __future__ import annotations

from penstock.operators.aggregate_plan import Aggregate, AggregatePlan
from penstock.operators.combiner import Combiner, pack, unpack

__all__ = [
    "Aggregate",
    "AggregatePlan",
    "Combiner",
    "approx_distinct",
    "avg",
    "count",
    "first",
    "last",
    "max",
    "min",
    "pack",
    "sum",
    "unpack",
]


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of those in which `column` is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """The sum: int64 of integers (wraps around), float64 of floats, decimal(38) of decimals."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """The smallest value of an orderable column; NaN counts as the largest."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """The largest value of an orderable column; NaN counts as the largest."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of a column of numbers, as float64."""
    return Aggregate("avg", column)


def first(column: str, by: str | None = None) -> Aggregate:
    """The value with the smallest `by`, of equal ones the first seen; without `by`, the first."""
    return Aggregate("first", column, by)


def last(column: str, by: str | None = None) -> Aggregate:
    """The value with the largest `by`, of equal ones the last seen; without `by`, the last."""
    return Aggregate("last", column, by)


def approx_distinct(column: str, precision: int = 9) -> Aggregate:
    """About how many distinct values there are (HyperLogLog).

    Each key takes 2**precision bytes; the error is about 1.04 / sqrt(2**precision): 4.6 % at 9.
    """
    return Aggregate("approx_distinct", column, precision=precision)
