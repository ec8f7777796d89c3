"""Aggregates, the accumulators that they use, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.aggregate.accumulators import (
    Accumulator,
    AnySum,
    Count,
    Pick,
    State,
    Sum,
    is_fast,
    named,
)
from penstock.operators.aggregate.distinct_sets import MOST_CONDITIONS, DistinctSet
from penstock.operators.aggregate.object_accumulators import DecimalSum, ObjectPick
from penstock.operators.aggregate.signed_accumulators import SignedCount, SignedSum
from penstock.operators.aggregate.sketch import DistinctSketch
from penstock.operators.aggregate.user_functions import Functions
from penstock.operators.aggregate.user_state import UserState
from penstock.operators.operator import CHANGE, one_field
from penstock.state.arrays import Array, fixed_array, physical
from penstock.state.keys.codec import KeyCodec
from penstock.state.keys.encoding import is_text

Kind = Literal[
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "approx_distinct",
    "count_distinct",
    "user",
]
_SIGNED = ("count", "sum", "avg")
"""Aggregates that work on a change stream, where rows are taken back."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a step, as the user wrote it. Made by `penstock.sum(...)` and similar functions."""

    kind: Kind
    column: str | None = None
    by: str | None = None
    precision: int = 9
    where: str | None = None
    functions: Functions | None = None
    """The functions of a user-defined aggregate, and the columns that they read."""
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.functions is not None:
            return named(self.functions.name, ", ".join(self.columns), where=self.where)
        return named(self.kind, self.column, self.by, self.where)


class CompiledAggregate(NamedTuple):
    """An aggregate that was checked against the input of its step."""

    aggregate: Aggregate
    type: pa.DataType
    """The type of the result."""
    accumulators: tuple[Accumulator, ...]

    def result(self, state: State, entries: Array) -> pa.Array:
        """The values of the aggregate for these entries."""
        kind, part = self.aggregate.kind, self.accumulators[0]
        if isinstance(part, UserState):
            return part.result(state, entries)
        if isinstance(part, DistinctSketch):
            return fixed_array(part.estimate(state, entries), self.type)
        if isinstance(part, DistinctSet):
            return fixed_array(state(part.count_name(self.aggregate.where))[entries], self.type)
        values = state(part.columns[0].name)[entries]
        if kind == "avg":
            return _average(values, state(self.accumulators[1].columns[0].name)[entries])
        seen = part.seen(state, entries)
        if isinstance(part, SignedSum):
            seen = part.there(state, entries)
        if kind == "sum" and pa.types.is_decimal(self.type):
            return _decimals(values, self.type, seen)
        if physical(self.type) is None:
            return pa.array(values.tolist(), self.type)
        return fixed_array(values.astype(physical(self.type), copy=False), self.type, seen)


def compiled(aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> list[CompiledAggregate]:
    """Check aggregates, by name, against their input. Accumulators that aggregates can share are equal
    values."""
    signed = CHANGE in schema.names
    for aggregate in aggregates.values():
        _check(aggregate, schema, signed)
    sets = _sets(aggregates.values(), schema)
    return [
        CompiledAggregate(a, *(_user(name, a, schema) or _compiled(a, schema, sets, signed)))
        for name, a in aggregates.items()
    ]


def _check(aggregate: Aggregate, schema: pa.Schema, signed: bool) -> None:
    if aggregate.where is not None:
        type = one_field(schema, aggregate.where, str(aggregate)).type
        if not pa.types.is_boolean(type):
            raise FlowError(
                f"{aggregate} needs a column of bools, but {aggregate.where!r} is of type {type}",
                hint="compute the condition as a column before this step, and use that as `where`",
            )
    if aggregate.column is None and aggregate.kind not in ("count", "user"):
        raise FlowError(
            f"{aggregate.kind} needs a column", hint=f'name it: ps.{aggregate.kind}("amount")'
        )
    if signed and aggregate.kind not in _SIGNED:
        raise FlowError(
            f"{aggregate} cannot take rows back, but its input is a change stream (column {CHANGE})",
            hint=f"use {', '.join(_SIGNED)}, or emit on close in the step before",
        )


def _sets(
    aggregates: Iterable[Aggregate], schema: pa.Schema
) -> dict[tuple[str, str | None], DistinctSet]:
    """The set of values behind each exact distinct count, by column and condition."""
    wheres: dict[str, list[str | None]] = {}
    for aggregate in aggregates:
        if aggregate.kind == "count_distinct" and aggregate.column is not None:
            known = wheres.setdefault(aggregate.column, [])
            if aggregate.where not in known:
                known.append(aggregate.where)
    sets = {}
    for column, conditions in wheres.items():
        type = one_field(schema, column, f"count_distinct({column})").type
        if physical(type) is None:
            raise FlowError(
                f"count_distinct({column}) does not support values of type {type}",
                hint="use approx_distinct, or key_by the column, then distinct() and count()",
            )
        for start in range(0, len(conditions), MOST_CONDITIONS):
            some = tuple(conditions[start : start + MOST_CONDITIONS])
            whole = DistinctSet(column, type, some, start // MOST_CONDITIONS)
            sets.update({(column, where): whole for where in some})
    return sets


def _user(
    name: str, aggregate: Aggregate, schema: pa.Schema
) -> tuple[pa.DataType, tuple[Accumulator, ...]] | None:
    """The type and the state of a user-defined aggregate; None for a built-in one."""
    functions = aggregate.functions
    if functions is None:
        return None
    fields = [one_field(schema, column, str(aggregate)) for column in aggregate.columns]
    return functions.returns, (UserState(name, functions, pa.schema(fields), aggregate.where),)


def _compiled(
    aggregate: Aggregate,
    schema: pa.Schema,
    sets: dict[tuple[str, str | None], DistinctSet],
    signed: bool,
) -> tuple[pa.DataType, tuple[Accumulator, ...]]:
    """The type of the result, and the accumulators behind it."""
    kind, name, where = aggregate.kind, aggregate.column, aggregate.where
    if kind == "count":
        if name is not None:
            one_field(schema, name, str(aggregate))
        return pa.int64(), (SignedCount(name, where) if signed else Count(name, where),)
    assert name is not None and kind != "user"
    type = one_field(schema, name, str(aggregate)).type
    if kind == "count_distinct":
        return pa.int64(), (sets[name, where],)
    if kind == "approx_distinct":
        return pa.int64(), (_sketch(aggregate, name, type),)
    if kind == "sum" or kind == "avg":
        return _sum(aggregate, name, type, signed)
    ordered, order_type = name, type
    if aggregate.by is not None:
        ordered, order_type = aggregate.by, one_field(schema, aggregate.by, str(aggregate)).type
    if (aggregate.by or kind in ("min", "max")) and not _orderable(order_type):
        raise FlowError(
            f"{aggregate} cannot compare column {ordered!r} of type {order_type}",
            hint="use a column of numbers, times, text, binary or decimals",
        )
    fast = is_fast(type) and is_fast(order_type)
    by_type = None if aggregate.by is None else order_type
    pick = Pick if fast else ObjectPick
    return type, (pick(kind, name, type, aggregate.by, by_type, where),)


def _sum(
    aggregate: Aggregate, name: str, type: pa.DataType, signed: bool
) -> tuple[pa.DataType, tuple[Accumulator, ...]]:
    average, where = aggregate.kind == "avg", aggregate.where
    part: AnySum
    if pa.types.is_decimal(type):
        result = pa.float64() if average else pa.decimal128(38, type.scale)
        part = DecimalSum(name, type.scale, where)
    elif pa.types.is_floating(type):
        result, part = pa.float64(), Sum(name, "float", where)
    elif not pa.types.is_integer(type):
        raise FlowError(
            f"{aggregate} needs numbers, but column {name!r} is of type {type}",
            hint="cast the column before this step, or count it",
        )
    elif average and type.bit_width > 32:
        # A sum of 64-bit integers may not fit; an average always does.
        result, part = pa.float64(), Sum(name, "float", where)
    else:
        result = pa.float64() if average else pa.int64()
        part = Sum(name, "int", where)
    whole = SignedSum(part) if signed else part
    if not average:
        return result, (whole,)
    return result, (whole, SignedCount(name, where) if signed else Count(name, where))


def _sketch(aggregate: Aggregate, name: str, type: pa.DataType) -> DistinctSketch:
    if not 4 <= aggregate.precision <= 16:
        raise FlowError(
            f"approx_distinct({name}) has precision {aggregate.precision}",
            hint="use 4 to 16; each key takes 2**precision bytes, and 9 has an error of about 4.6 %",
        )
    try:
        KeyCodec(pa.schema([(name, type)]))
    except FlowError as problem:
        raise FlowError(
            f"{aggregate} cannot compare column {name!r} of type {type}",
            hint="use a column of numbers, times, text, binary, decimals, or lists of those",
        ) from problem
    return DistinctSketch(name, type, aggregate.precision, aggregate.where)


def _orderable(type: pa.DataType) -> bool:
    return physical(type) is not None or pa.types.is_decimal(type) or is_text(type)


def _decimals(values: Array, type: pa.DataType, seen: Array | None) -> pa.Array:
    # As in Spark without ANSI mode: a sum that its type cannot hold is null.
    most = 10 ** (38 - type.scale)
    fits = [v if v is not None and v.copy_abs() < most else None for v in values]
    if seen is not None:
        fits = [v if there else None for v, there in zip(fits, seen.tolist(), strict=True)]
    return pa.array(fits, type)


def _average(sums: Array, counts: Array) -> pa.Array:
    some = counts > 0
    if sums.dtype == object:
        sums = np.array([0.0 if value is None else float(value) for value in sums])
    return fixed_array(sums / np.maximum(counts, 1), pa.float64(), some)
