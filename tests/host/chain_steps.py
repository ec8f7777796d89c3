"""Steps for random chains, with user code that can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import pyarrow as pa

from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.aggregate.aggregates import count as counting
from penstock.operators.aggregate.aggregates import sum as summing
from penstock.operators.operator import StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from tests.host.chain_models import (
    First,
    Mapped,
    Model,
    Processed,
    Sums,
    Values,
    fired,
    key_of,
    mixed,
    processed,
)

SOURCE = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("n", pa.int64())])
"""Columns of the source, and of each step's output, though perhaps in another order."""


class Bomb:
    """Makes one call of user code fail."""

    def __init__(self) -> None:
        self._calls = count()
        self._at: int | None = None

    def lay(self, calls: int | None) -> None:
        """Make the call after this many others fail; None: no call fails."""
        self._calls, self._at = count(), calls

    def tick(self) -> None:
        if self._at is not None and next(self._calls) == self._at:
            raise ValueError("boom")


BOMB = Bomb()


@dataclass(frozen=True)
class Spec:
    """One step of a chain."""

    kind: Literal["map", "process", "batch", "timers", "global", "distinct", "sums"]
    key: tuple[str, ...] = ("a",)
    salt: int = 0
    slots: int = 8


@dataclass(frozen=True)
class MapFunction:
    """The function of `Mapped`, on batches."""

    salt: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        model, output = Mapped(self.salt), list[Values]()
        for row in values_of(batch):
            BOMB.tick()
            output += model.take(row, (0, 0), 0)
        return batch_of(output) if output else None


class Mixer(KeyedProcessor):
    """The processor of `Processed`, called for each key."""

    output_schema = "a long, b long, n long"

    def __init__(self, salt: int) -> None:
        self.salt = salt

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.get_value_state("held", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (held,) = self.held.get() or (0,)
        for row in rows:
            BOMB.tick()
            held = self.taken(held, row, timers)
            yield from processed((row.a, row.b, row.n), held, False)
        self.held.update((held,))

    def taken(self, held: int, row: Any, timers: Any) -> int:
        return mixed(held, (row.a, row.b, row.n), self.salt)


class Alarms(Mixer):
    """A `Mixer` with timers."""

    def taken(self, held: int, row: Any, timers: Any) -> int:
        held = super().taken(held, row, timers)
        if held % 3 == 0:
            self.handle.register_timer(timers.processing_time_ms + 1 + held % 2000)
        return held

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        BOMB.tick()
        (held,) = self.held.get() or (0,)
        yield fired(tuple(key), expired.expiry_ms, held)


class BatchMixer(KeyedProcessor):
    """A processor that is called with batches, and emits one row for each row."""

    output_schema = "a long, b long, n long"

    def __init__(self, key: tuple[str, ...], salt: int) -> None:
        self.key, self.salt = key, salt

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.get_value_state("held", "n long")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        output = []
        for row in values_of(batch):
            BOMB.tick()
            with self.handle.for_key(key_of(row, self.key)):
                (held,) = self.held.get() or (0,)
                held = mixed(held, row, self.salt)
                self.held.update((held,))
            output += processed(row, held, True)
        return batch_of(output)


def plan_of(spec: Spec, source: pa.Schema) -> StepPlan:
    key = list(spec.key)
    if spec.kind == "distinct":
        return DistinctPlan(source, key)
    if spec.kind == "sums":
        other = "b" if key == ["a"] else "a"
        return AggregatePlan(source, key, {other: counting(), "n": summing("n")})
    if spec.kind == "batch":
        return ProcessPlan(source, key, BatchMixer(spec.key, spec.salt))
    made = Alarms(spec.salt) if spec.kind == "timers" else Mixer(spec.salt)
    return ProcessPlan(source, [] if spec.kind == "global" else key, made)


def model_of(spec: Spec) -> Model:
    if spec.kind == "map":
        return Mapped(spec.salt)
    if spec.kind == "distinct":
        return First(spec.key)
    if spec.kind == "sums":
        return Sums(spec.key[0])
    key = () if spec.kind == "global" else spec.key
    return Processed(key, spec.salt, spec.kind == "timers", spec.kind == "batch")


def flow_of(specs: Sequence[Spec], **options: Any) -> FlowPlan:
    """Return a flow of these steps, of which at least one must have state."""
    steps, schema = list[Step](), SOURCE
    for number, spec in enumerate(specs):
        name = f"{spec.kind}-{number}"
        if spec.kind == "map":
            steps.append(MapStep(name, MapFunction(spec.salt), schema, SOURCE))
        else:
            slots = 1 if spec.kind == "global" else spec.slots
            steps.append(KeyedStep(name, slots, plan_of(spec, schema)))
        schema = steps[-1].output
    return FlowPlan((SourcePlan(SOURCE),), tuple(steps), **options)


def batch_of(rows: Sequence[Values]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(3)]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE)


def values_of(batch: pa.RecordBatch) -> list[Values]:
    columns = (batch.column(name).to_pylist() for name in ("a", "b", "n"))
    return list(zip(*columns, strict=True))
