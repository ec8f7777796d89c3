"""Runs an operator, plain or in parts, through epochs with mishaps, and records its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

from penstock.model import DeadLetter
from penstock.operators.operator import Answer, EpochTime, StepPlan
from penstock.operators.places import Places, in_order
from penstock.state.store.merging import newest
from penstock.state.table.parted import StepTable
from tests.operators.trials import Epoch, Row, bag

SLOTS = 8
Channel = tuple[str, list[pa.RecordBatch]]


class AnyOperator(Protocol):
    """An operator, plain or in parts."""

    @property
    def table(self) -> StepTable: ...
    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Any]: ...
    def due(self, time: EpochTime) -> dict[str, int]: ...
    def open(self, time: EpochTime) -> Answer: ...
    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer: ...
    def close(self) -> Answer: ...
    def rollback(self) -> None: ...
    def shutdown(self) -> None: ...


@dataclass
class Output:
    """The output of an epoch: rows of each answer in the order of places, or all rows in any order."""

    rows: list[list[Row]] = field(default_factory=list)
    bag: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    dead: Counter[DeadLetter] = field(default_factory=Counter)
    delta: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    due: dict[str, int] = field(default_factory=dict)


def run(
    make: Callable[[], AnyOperator],
    plan: StepPlan,
    epochs: list[Epoch],
    ordered: bool,
    cut: int = 3,
) -> list[Output]:
    """Run all epochs. A channel's rows come in batches of at most `cut` rows."""
    operator, outcome, deltas = make(), [], list[pa.Table]()
    for number, epoch in enumerate(epochs):
        time = EpochTime(number, epoch.now_ms, epoch.watermark_ms, epoch.final)
        operator = _after_mishap(operator, make, epoch.mishap, deltas)
        channels = [sent(plan, time, rows, cut) for rows in epoch.channels]
        if epoch.mishap == "rollback":
            operator.open(time)
            for partition, (kind, batches) in enumerate(channels[: len(channels) // 2 + 1]):
                operator.apply(kind, batches, places_of(batches, partition, ordered))
            if number % 2:
                operator.close()
            operator.rollback()
        output = Output(due=operator.due(time))
        answers = [operator.open(time)]
        for partition, (kind, batches) in enumerate(channels):
            places = places_of(batches, partition, ordered)
            if epoch.mishap == "failure" and batches:
                broken: Any = None
                with pytest.raises((AttributeError, TypeError)):
                    operator.apply(kind, [*batches, broken], places)
            answers.append(operator.apply(kind, batches, places))
        answers.append(operator.close())
        for answer in answers:
            _note(output, answer, ordered)
        delta = operator.table.delta()
        deltas.append(delta)
        output.delta = Counter(map(repr, delta.to_pylist()))
        operator.table.seal()
        output.entries = len(operator.table)
        outcome.append(output)
    operator.shutdown()
    return outcome


def sent(plan: StepPlan, time: EpochTime, rows: list[Row], cut: int) -> Channel:
    """Return the kind and the batches that a courier sends for these rows."""
    sender = plan.sender(time)
    outgoing = []
    for start in range(0, len(rows), cut):
        batch = pa.RecordBatch.from_pylist(rows[start : start + cut], plan.inputs[0])
        outgoing += list(sender.add(0, batch))
    kind, rest = sender.finish()
    return kind, [batch for batch, _ in [*outgoing, *rest]]


def places_of(batches: list[pa.RecordBatch], partition: int, ordered: bool) -> Places | None:
    rows = sum(batch.num_rows for batch in batches)
    return Places.of_records(partition, np.arange(rows)) if ordered else None


def _note(output: Output, answer: Answer, ordered: bool) -> None:
    for batch in answer.batches:
        batch.validate(full=True)
    if ordered:
        assert [b.num_rows for b in answer.batches] == [len(p) for p in answer.places]
        batches = in_order(answer.batches, answer.places)
        output.rows.append([row for batch in batches for row in batch.to_pylist()])
    else:
        assert not answer.places
        output.bag += bag([row for batch in answer.batches for row in batch.to_pylist()])
    output.dead += Counter(answer.dead)


def _after_mishap(
    operator: AnyOperator, make: Callable[[], AnyOperator], mishap: str, deltas: list[pa.Table]
) -> AnyOperator:
    table = operator.table
    whole = table.export(table.entries_in(np.arange(table.slots)))
    if mishap == "evicted":
        table.evict(0)
        table.install(table.codec.from_storage(whole["__key"]), whole)
        return operator
    if mishap == "deltas" and deltas:
        whole = newest(deltas[::-1], table.schema, table.codec)
    elif mishap != "exported":
        return operator
    operator.shutdown()
    fresh = make()
    fresh.table.load(whole)
    return fresh
