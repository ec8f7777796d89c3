"""The aggregates of keyed steps, defined as in Spark SQL.

Nulls are ignored. Without any value a count is 0, and all other aggregates are null.
`where` names a column of bools: rows in which it is false or null are left out.

`aggregator` and `arrow_aggregator` define others, which are used like these.

>>> str(sum("spent")), str(last("city", by="seen_at")), str(count())
('sum(spent)', 'last(city by seen_at)', 'count(*)')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import FlowError
from penstock.operators.aggregate.compiled import Aggregate
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.aggregate.user_functions import (
    ArrowFunctions,
    Functions,
    RowFunctions,
    result_type,
    state_schema,
)

__all__ = [
    "Aggregate",
    "AggregatePlan",
    "Aggregator",
    "aggregator",
    "approx_distinct",
    "arrow_aggregator",
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


@dataclass(frozen=True)
class Aggregator:
    """A user-defined aggregate. Call it with the names of its columns: `spread("price", where="paid")`."""

    functions: Functions

    def __call__(self, *columns: str, where: str | None = None) -> Aggregate:
        """Apply the aggregate to columns of the step's input. `where` is as for built-in aggregates."""
        if not columns or not all(isinstance(column, str) for column in columns):
            name = self.functions.name
            raise FlowError(
                f"{name} is applied to {columns!r}",
                hint=f'name one or more columns: {name}("amount")',
            )
        return Aggregate("user", where=where, functions=self.functions, columns=columns)


def aggregator(
    zero: Any,
    add: Callable[..., Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    *,
    state: Any,
    returns: Any = None,
    nulls: bool = False,
    name: str | None = None,
) -> Aggregator:
    """Define an aggregate by Python functions, which are called for each row. For large streams use
    `arrow_aggregator`, which is called for each batch.

    - `zero` is the state of no rows, or a function without arguments that returns it.
    - `add(state, *values)` returns the state with one row more; `values` are those of the columns.
    - `merge(one, other)` returns the state of the rows of both. It must be associative and commutative.
    - `result(state)` returns the value to emit; without it, that is the state.

    `state` and `returns` are DDL. With one type, as in "double", a state is a plain value. With fields, as in
    "n long, total double", it is a row: a tuple, or a `Row` with names. A result or a field of a state may
    be null. Rows with a null in one of the columns are left out, unless `nulls` is true. A key without any
    row has the result of `zero`.

    The functions must depend on nothing but their arguments: they run in couriers, burst workers and hosts,
    and again when an epoch is retried. An error fails the query, and names the aggregate and the row.

    >>> spread = aggregator(
    ...     (None, None),
    ...     lambda s, v: (v if s[0] is None else min(s[0], v), v if s[1] is None else max(s[1], v)),
    ...     lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    ...     lambda s: None if s[0] is None else s[1] - s[0],
    ...     state="low double, high double", returns="double", name="spread")
    >>> str(spread("price"))
    'spread(price)'
    """
    name = _name(name, add, "aggregator")
    for text, function in (("add", add), ("merge", merge), ("result", result or merge)):
        _must_call(name, text, function)
    schema = state_schema(name, state)
    if returns is None:
        if result is not None or schema.names != ["value"]:
            raise FlowError(
                f"the type of the result of {name} is unknown", hint='pass it: returns="double"'
            )
        returns = schema.field(0).type
    code = (zero, add, merge, result)
    return Aggregator(RowFunctions(name, code, schema, result_type(name, returns), nulls))


def arrow_aggregator(
    partial: Callable[..., Any],
    merge: Callable[..., Any],
    result: Callable[..., Any],
    *,
    state: Any,
    returns: Any,
    nulls: bool = False,
    name: str | None = None,
) -> Aggregator:
    """Define an aggregate by functions over Arrow batches.

    - `partial(rows, groups, count)` returns the states of the groups 0 to `count` - 1. `rows` is a
      RecordBatch of the columns, in the order in which the aggregate is applied to them. `groups` (numpy,
      int64) has the group of each row. A group without rows gets the state of no rows.
    - `merge(left, right)` returns states: that of row i is made of row i of both RecordBatches. It must be
      associative and commutative.
    - `result(states)` returns an array with the value of each state.

    States are returned as a RecordBatch, a Table, or a dict of Arrow or numpy arrays, with the fields of
    `state`. All else is as for `aggregator`.

    >>> import numpy as np
    >>> import pyarrow.compute as pc
    >>> energy = arrow_aggregator(
    ...     lambda rows, groups, count: np.bincount(groups, np.asarray(rows.column(0)) ** 2, count),
    ...     lambda left, right: pc.add(left.column(0), right.column(0)),
    ...     lambda states: states.column(0),
    ...     state="double", returns="double", name="energy")
    >>> str(energy("volt", where="on"))
    'energy(volt where on)'
    """
    name = _name(name, partial, "arrow_aggregator")
    for text, function in (("partial", partial), ("merge", merge), ("result", result)):
        _must_call(name, text, function)
    schema, type = state_schema(name, state), result_type(name, returns)
    return Aggregator(ArrowFunctions(name, (partial, merge, result), schema, type, nulls))


def _name(name: str | None, function: object, otherwise: str) -> str:
    """The name of an aggregate: as given, or that of its first function if it has one."""
    known = name or getattr(function, "__name__", "")
    return known if known and "<" not in known else otherwise


def _must_call(name: str, text: str, function: object) -> None:
    if not callable(function):
        raise FlowError(f"{text} of {name} is {function!r}", hint="pass a function")
