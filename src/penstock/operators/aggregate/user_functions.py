"""The functions of user-defined aggregates. Their unit is the Arrow batch: one row of state per group.

An aggregate of Python functions per row (`RowFunctions`) is an aggregate over Arrow whose functions loop
over rows. So both are combined, split, offloaded, moved and restored in the same way.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import Array
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.values import RowForm, in_type, python_values

MOST_FIELDS = 62
"""Highest number of fields of a state: each has a bit that says where it is null."""
_RESULT = "result"


@dataclass(frozen=True, eq=False)
class Functions(ABC):
    """A user-defined aggregate, without the columns that it is applied to. Picklable."""

    name: str
    code: tuple[Any, ...]
    """The user's functions; the last three are those of `labels`."""
    state: pa.Schema
    """Fields of the state."""
    returns: pa.DataType
    """Type of the result."""
    nulls: bool
    """Whether rows with a null in one of the columns count. If not, they are left out."""
    labels: ClassVar[tuple[str, str, str]]
    """What users call the functions behind `partial`, `merge` and `result`, for messages."""

    @abstractmethod
    def partial(self, rows: pa.RecordBatch, groups: Array, count: int) -> Any:
        """The states of groups 0 to count - 1, made of these rows: row i belongs to groups[i]. Groups
        without rows get the state of no rows."""

    @abstractmethod
    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> Any:
        """The states made of both: row i of `left` with row i of `right`."""

    @abstractmethod
    def result(self, states: pa.RecordBatch) -> Any:
        """The values of the aggregate, one for each state."""


class ArrowFunctions(Functions):
    """Functions over whole Arrow batches, as `ps.arrow_aggregator` takes them."""

    labels = ("partial", "merge", "result")

    def partial(self, rows: pa.RecordBatch, groups: Array, count: int) -> Any:
        return self.code[0](rows, groups, count)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> Any:
        return self.code[1](left, right)

    def result(self, states: pa.RecordBatch) -> Any:
        return self.code[2](states)


class RowFunctions(Functions):
    """Python functions per row, as `ps.aggregator` takes them: zero, add, merge and result.

    >>> longest = RowFunctions("longest", ("", lambda state, text: max(state, text, key=len),
    ...     lambda one, other: max(one, other, key=len), None), schema_of("string"), pa.string(), False)
    >>> rows = pa.record_batch({"text": ["a", "bcd", "ef"]})
    >>> states = longest.partial(rows, np.array([0, 1, 0]), 3)
    >>> longest.result(states).to_pylist()
    ['ef', 'bcd', '']
    """

    labels = ("add", "merge", "result")

    def partial(self, rows: pa.RecordBatch, groups: Array, count: int) -> pa.RecordBatch:
        add, states = self.code[1], [self._zero() for _ in range(count)]
        columns = [python_values(column) for column in rows.columns]
        for group, values in zip(groups.tolist(), zip(*columns, strict=True), strict=True):
            states[group] = add(states[group], *values)
        return self._written(states)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        pairs = zip(self._read(left), self._read(right), strict=True)
        return self._written([self.code[2](one, other) for one, other in pairs])

    def result(self, states: pa.RecordBatch) -> pa.Array:
        result, form = self.code[3], _form(pa.schema([(_RESULT, self.returns)]))
        values = self._read(states)
        if result is not None:
            values = [result(state) for state in values]
        return form.batch([form.write((value,)) for value in values]).column(0)

    def _zero(self) -> Any:
        zero = self.code[0]
        if callable(zero):
            return zero()
        # a state that `add` can change must not be shared by groups
        return copy.deepcopy(zero) if zero.__hash__ is None else zero

    @property
    def _one(self) -> bool:
        """Whether the state is one plain value, and not a row of fields."""
        return bool(self.state.names == ["value"])

    def _read(self, states: pa.RecordBatch) -> list[Any]:
        if self._one:
            return python_values(states.column(0))
        return list(_form(self.state).rows(states.columns, states.num_rows))

    def _written(self, states: list[Any]) -> pa.RecordBatch:
        form = _form(self.state)
        rows: Iterable[Any] = ((state,) for state in states) if self._one else states
        return form.batch([form.write(row) for row in rows])


@lru_cache(maxsize=256)
def _form(schema: pa.Schema) -> RowForm:
    return RowForm(schema)


def state_schema(name: str, state: Any) -> pa.Schema:
    """The fields of a state, from DDL. Raises FlowError if there are too many."""
    schema = schema_of(state)
    if not 0 < len(schema) <= MOST_FIELDS:
        raise FlowError(
            f"the state of {name} has {len(schema)} fields",
            hint=f"use 1 to {MOST_FIELDS}; a field may be an array, a map or a struct",
        )
    return schema


def result_type(name: str, returns: Any) -> pa.DataType:
    """The type of a result, from DDL such as "double" or "array<string>"."""
    if isinstance(returns, pa.DataType):
        return returns
    schema = schema_of(returns)
    if schema.names != ["value"]:
        raise FlowError(
            f"{name} returns {returns!r}, which is not one value",
            hint='use a type such as "double", or "array<double>" for several values',
        )
    return schema.field(0).type


def as_states(made: Any, schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Convert what a user's function returned to `count` states. Raises TypeError if it does not fit."""
    if isinstance(made, (pa.Array, pa.ChunkedArray, np.ndarray)) and len(schema) == 1:
        made = {schema.names[0]: made}
    if isinstance(made, dict):
        made = pa.table({name: _array(values) for name, values in made.items()})
    if not isinstance(made, (pa.RecordBatch, pa.Table)):
        raise TypeError(
            f"it returned {type(made).__name__}: return a RecordBatch, a Table, a dict of arrays, or "
            "one array if the state has one field"
        )
    if set(made.schema.names) != set(schema.names):
        raise TypeError(
            f"the returned columns are {', '.join(made.schema.names)}, not {', '.join(schema.names)}"
        )
    _must_count(made.num_rows, count)
    arrays = [in_type(made.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_results(made: Any, type: pa.DataType, count: int) -> pa.Array:
    """Convert what a user's function returned to `count` results. Raises TypeError if it does not fit."""
    if not isinstance(made, (pa.Array, pa.ChunkedArray, np.ndarray)):
        raise TypeError(f"it returned {made.__class__.__name__}: return an array")
    _must_count(len(made), count)
    return in_type(_array(made), pa.field(_RESULT, type))


def _array(values: Any) -> pa.Array | pa.ChunkedArray:
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)


def _must_count(rows: int, count: int) -> None:
    if rows != count:
        raise TypeError(f"it returned {rows} rows instead of {count}")
