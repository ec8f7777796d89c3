"""Runs of an ordered step through epochs on several hosts, as couriers do it, with the order of all
output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.operator import Answer, EpochTime, Operator, Outgoing, StepPlan
from penstock.operators.places import (
    Places,
    in_order,
    split_places,
    split_serial,
    with_places,
    with_serial,
)
from penstock.operators.tagged import INPUT
from penstock.state.arrays import Array
from penstock.state.keys.codec import slots_of
from tests.trials.plain_rows import Row, of_schema, values

SLOTS = 8


@dataclass(frozen=True)
class Epoch:
    """The rows of each partition, and the times of the epoch."""

    time: EpochTime
    channels: Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Setting:
    """Conditions of a run that must not change its output."""

    hosts: int = 1
    moves: bool = False
    """Whether slots have other owners in each epoch."""
    chunk: int | None = None
    """Number of records of the pieces in which channels are applied, where they are divisible."""
    undone: bool = False
    """Whether the last channel of an epoch is applied first, and undone."""
    rolled_back: bool = False
    """Whether each epoch is run once before, and rolled back."""

    def owners(self, epoch: int) -> Array:
        turn = epoch if self.moves else 0
        owners: Array = (np.arange(SLOTS) * (1 + turn) + turn) % self.hosts
        return owners


Sent = tuple[str, list[pa.RecordBatch]]
EpochRows = list[list[tuple[Any, ...]]]
"""Per partition, the values of the output rows, in order."""


def run(plan: StepPlan, epochs: Sequence[Epoch], setting: Setting, cut: int = 5) -> list[EpochRows]:
    """Run all epochs. Returns the output of each."""
    operators = _operators(plan, setting)
    out = []
    for number, epoch in enumerate(epochs):
        owners = setting.owners(number)
        if setting.moves and number:
            operators = _moved(plan, setting, operators, owners)
        sent = [_sent(plan, rows, epoch.time, owners, setting, cut) for rows in epoch.channels]
        if setting.rolled_back:
            _answers(operators, sent, epoch.time, setting)
            for operator in operators:
                operator.rollback()
        answers = _answers(operators, sent, epoch.time, setting)
        out.append([_merged(plan, of_hosts) for of_hosts in answers])
        for operator in operators:
            operator.table.seal()
    return out


def _operators(plan: StepPlan, setting: Setting) -> list[Operator]:
    return [plan.operator(SLOTS, "step", "fail", True) for _ in range(setting.hosts)]


def _moved(
    plan: StepPlan, setting: Setting, operators: list[Operator], owners: Array
) -> list[Operator]:
    tables = [o.table.export(o.table.entries_in(np.arange(SLOTS))) for o in operators]
    # in reverse order, so that entries get other numbers
    whole = pa.concat_tables(tables[::-1])
    fresh = _operators(plan, setting)
    for host, operator in enumerate(fresh):
        mine = owners[whole.column("__slot").to_numpy()] == host
        operator.table.load(whole.filter(pa.array(mine)))
    return fresh


def _sent(
    plan: StepPlan,
    rows: Sequence[Row],
    time: EpochTime,
    owners: Array,
    setting: Setting,
    cut: int,
) -> list[Sent]:
    """The channel of a partition's rows to each host."""
    sender = plan.sender(time)
    outgoing: list[Outgoing] = []
    for input, schema in enumerate(plan.inputs):
        mine = [row for row in rows if row.get(INPUT, 0) == input]
        for start in range(0, len(mine), cut):
            batch = of_schema(mine[start : start + cut], schema)
            unfit = plan.unfit(input, batch)
            outgoing += sender.add(
                input, batch if unfit is None else batch.filter(pa.array(~unfit.rows))
            )
    kind, rest = sender.finish()
    hosts: list[list[pa.RecordBatch]] = [[] for _ in range(setting.hosts)]
    serial = 0
    for batch, hashes in [*outgoing, *rest]:
        numbered = with_serial(batch, serial)
        serial += batch.num_rows
        owner = owners[slots_of(hashes, SLOTS)]
        for host in np.unique(owner).tolist():
            hosts[host].append(numbered.take(pa.array(np.flatnonzero(owner == host))))
    return [(kind, batches) for batches in hosts]


def _answers(
    operators: list[Operator], sent: list[list[Sent]], time: EpochTime, setting: Setting
) -> list[list[Answer]]:
    """Per partition, the answer of each host."""
    answers: list[list[Answer]] = [[] for _ in sent]
    for host, operator in enumerate(operators):
        fired = operator.open(time)
        if setting.undone:
            mark = operator.table.savepoint()
            list(_applied(operator, sent[-1][host], len(sent) - 1, setting))
            operator.table.undo(mark)
        for partition, channels in enumerate(sent):
            parts = list(_applied(operator, channels[host], partition, setting))
            before = [fired] if partition == 0 else []
            after = [operator.close()] if partition == len(sent) - 1 else []
            answers[partition].append(Answer.joined([*before, *parts, *after]))
    return answers


def _applied(
    operator: Operator, channel: Sent, partition: int, setting: Setting
) -> Iterator[Answer]:
    kind, batches = channel
    batches, places = split_serial(batches, partition)
    if setting.chunk is None or not operator.divisible or not batches:
        yield operator.apply(kind, batches, places)
        return
    assert places is not None
    whole = pa.concat_batches(batches)
    for begin in range(0, len(places), setting.chunk):
        piece = whole.slice(begin, setting.chunk)
        yield operator.apply(kind, [piece], places.slice(begin, piece.num_rows))


def _merged(plan: StepPlan, answers: list[Answer]) -> list[tuple[Any, ...]]:
    """The rows of all hosts' answers in order, as a courier puts them together."""
    batches = [batch for answer in answers for batch in with_places(answer.batches, answer.places)]
    for answer in answers:
        assert [len(places) for places in answer.places] == [b.num_rows for b in answer.batches]
    rows, places = split_places(batches)
    assert not batches or len(Places.joined(places)) == sum(b.num_rows for b in rows)
    return [
        values(row)
        for batch in in_order(rows, places)
        for row in batch.cast(plan.output).to_pylist()
    ]
