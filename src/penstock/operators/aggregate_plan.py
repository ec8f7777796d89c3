"""What an aggregate is, and the plan of a step that keeps some: its state and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.accumulators import (
    Accumulator,
    Count,
    Distinct,
    Pick,
    State,
    Sum,
    is_fast,
)
from penstock.operators.object_accumulators import DecimalSum, ObjectPick
from penstock.state.buffers import Array, fixed_array, physical
from penstock.state.columns import Column
from penstock.state.keys import KeyCodec
from penstock.state.table import KEY

Kind = Literal["count", "sum", "min", "max", "avg", "first", "last", "approx_distinct"]


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a step, as a user asked for it. Made by `penstock.sum(...)` and its like."""

    kind: Kind
    column: str | None = None
    by: str | None = None
    precision: int = 9

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.kind}({self.column or '*'}{by})"

    def to_json(self) -> dict[str, Any]:
        """As it is written into a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Aggregate:
        """Undo `to_json`."""
        return cls(**facts)


class AggregatePlan:
    """The aggregates of one step, checked against its input. Picklable: couriers and hosts get it.

    >>> plan = AggregatePlan(
    ...     pa.schema([("user", pa.string()), ("spent", pa.int32())]),
    ...     ["user"], {"total": Aggregate("sum", "spent"), "mean": Aggregate("avg", "spent")})
    >>> [f"{field.name} {field.type}" for field in plan.output]
    ['user string', 'total int64', 'mean double']
    >>> [column.name for column in plan.columns]
    ['sum(spent)', 'sum(spent) seen', 'count(spent)']
    """

    codec: KeyCodec
    output: pa.Schema
    """Key columns, then the aggregates, in the order given."""
    columns: list[Column]
    """The state that a host keeps per key."""
    partial_schema: pa.Schema
    """Of combined states, without the key; null stands for nothing seen."""
    packed_schema: pa.Schema
    """The same behind the key, as it goes over the wire."""
    raw_names: list[str]
    """The input columns that a host needs of a row: the key's and those of the aggregates."""

    def __init__(
        self, input_schema: pa.Schema, key_names: Sequence[str], aggregates: dict[str, Aggregate]
    ) -> None:
        self.input_schema, self.key_names = input_schema, list(key_names)
        self.aggregates = dict(aggregates)
        keys = pa.schema([_field(input_schema, name, "the key") for name in key_names])
        self.codec = KeyCodec(keys)
        self._parts: dict[str, tuple[Accumulator, ...]] = {}
        results = []
        for name, aggregate in aggregates.items():
            if name in key_names:
                raise FlowError(
                    f"{name!r} is a key column and an aggregate", hint="rename the aggregate"
                )
            type, *parts = _compile(aggregate, input_schema)
            results.append(pa.field(name, type))
            self._parts[name] = tuple(parts)
        self.output = pa.schema([*keys, *results])
        self.accumulators = list(dict.fromkeys(p for ps in self._parts.values() for p in ps))
        self.columns = [column for a in self.accumulators for column in a.columns]
        self.partial_schema = pa.schema(
            [(c.name, c.storage_type) for a in self.accumulators for c in a.combined]
        )
        self.packed_schema = pa.schema([(KEY, self.codec.storage_type), *self.partial_schema])
        inputs = [name for a in self.accumulators for name in a.inputs]
        self.raw_names = list(dict.fromkeys([*key_names, *inputs])) or input_schema.names[:1]

    def __reduce__(self) -> tuple[Any, ...]:
        return (AggregatePlan, (self.input_schema, self.key_names, self.aggregates))

    def results(self, state: State, entries: Array) -> list[pa.Array]:
        """The values of the aggregates for these entries, in the order of the output."""
        return [
            _result(aggregate.kind, self._parts[name], self.output.field(name).type, state, entries)
            for name, aggregate in self.aggregates.items()
        ]


def _field(schema: pa.Schema, name: str, whose: str) -> pa.Field:
    places = schema.get_all_field_indices(name)
    if len(places) == 1:
        return schema.field(places[0])
    what = "is not among the columns" if not places else "stands more than once among the columns"
    raise FlowError(
        f"column {name!r} of {whose} {what} {', '.join(schema.names)}",
        hint="check the spelling, or select and rename the columns before this step",
    )


def _compile(aggregate: Aggregate, schema: pa.Schema) -> tuple[Any, ...]:
    """The type of the result, then the accumulators that it is computed from."""
    kind, name = aggregate.kind, aggregate.column
    if kind == "count":
        if name is not None:
            _field(schema, name, str(aggregate))
        return pa.int64(), Count(name)
    assert name is not None
    type = _field(schema, name, str(aggregate)).type
    if kind == "approx_distinct":
        return pa.int64(), _distinct(aggregate, name, type)
    if kind == "sum" or kind == "avg":
        return _sum(aggregate, name, type)
    ordered, order_type = name, type
    if aggregate.by is not None:
        ordered, order_type = aggregate.by, _field(schema, aggregate.by, str(aggregate)).type
    if (aggregate.by or kind in ("min", "max")) and not _orderable(order_type):
        raise FlowError(
            f"{aggregate} cannot compare column {ordered!r} of type {order_type}",
            hint="use a column of numbers, times, text, binary or decimals",
        )
    fast = is_fast(type) and is_fast(order_type)
    by_type = None if aggregate.by is None else order_type
    return type, (Pick if fast else ObjectPick)(kind, name, type, aggregate.by, by_type)


def _sum(aggregate: Aggregate, name: str, type: pa.DataType) -> tuple[Any, ...]:
    average = aggregate.kind == "avg"
    counts = (Count(name),) if average else ()
    if pa.types.is_decimal(type):
        result = pa.float64() if average else pa.decimal128(38, type.scale)
        return result, DecimalSum(name, type.scale), *counts
    if pa.types.is_floating(type):
        return pa.float64(), Sum(name, "float"), *counts
    if not pa.types.is_integer(type):
        raise FlowError(
            f"{aggregate} needs numbers, but column {name!r} is of type {type}",
            hint="cast the column before this step, or count it",
        )
    if average and type.bit_width > 32:
        # A sum of 64-bit integers may wrap around; an average must not.
        return pa.float64(), Sum(name, "float"), *counts
    return (pa.float64() if average else pa.int64()), Sum(name, "int"), *counts


def _distinct(aggregate: Aggregate, name: str, type: pa.DataType) -> Distinct:
    if not 4 <= aggregate.precision <= 16:
        raise FlowError(
            f"approx_distinct({name}) has precision {aggregate.precision}",
            hint="choose 4 to 16; each key takes 2**precision bytes, 9 errs by about 4.6 %",
        )
    try:
        KeyCodec(pa.schema([(name, type)]))
    except FlowError as problem:
        raise FlowError(
            f"{aggregate} cannot compare column {name!r} of type {type}",
            hint="use a column of numbers, times, text, binary, decimals, or lists of those",
        ) from problem
    return Distinct(name, type, aggregate.precision)


def _orderable(type: pa.DataType) -> bool:
    if physical(type) is not None or pa.types.is_decimal(type):
        return True
    return type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _result(
    kind: Kind, parts: tuple[Accumulator, ...], type: pa.DataType, state: State, entries: Array
) -> pa.Array:
    part = parts[0]
    if isinstance(part, Distinct):
        return fixed_array(part.estimate(state, entries), type)
    values = state(part.columns[0].name)[entries]
    if kind == "avg":
        return _average(values, state(parts[1].columns[0].name)[entries])
    if isinstance(part, DecimalSum):
        # As in Spark without ANSI mode: a sum that its type cannot hold is null.
        most = 10 ** (38 - type.scale)
        fits = [v if v is not None and v.copy_abs() < most else None for v in values]
        return pa.array(fits, type)
    seen = part.seen(state, entries)
    if physical(type) is None:
        return pa.array(values.tolist(), type)
    return fixed_array(values.astype(physical(type), copy=False), type, seen)


def _average(sums: Array, counts: Array) -> pa.Array:
    some = counts > 0
    if sums.dtype == object:
        sums = np.array([0.0 if value is None else float(value) for value in sums])
    return fixed_array(sums / np.maximum(counts, 1), pa.float64(), some)
