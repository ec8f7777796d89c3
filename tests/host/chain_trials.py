"""Runs chains of steps through epochs: with `StepChain`, and with a model of plain lists and dicts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.host.chain import StepChain
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.operators.operator import ROWS, Answer, EpochTime
from penstock.plan.assignment import Assignment
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.wire.messages import ChannelHeader
from tests.host.chain_models import Values
from tests.host.chain_steps import Spec, batch_of, model_of, values_of

Partitions = Sequence[Sequence[Values]]


class SerialChain:
    """A model of a chain: one thread that processes one row after the other."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._steps = [model_of(spec) for spec in specs]
        self._fired: list[list[Values]] = []

    def open(self, now_ms: int) -> None:
        self._fired = [step.open(now_ms) for step in self._steps]

    def channel(self, partition: int, rows: Sequence[Values], now_ms: int, last: bool) -> Any:
        stream = list(rows)
        for number, step in enumerate(self._steps):
            output = list(self._fired[number]) if partition == 0 else []
            for place, row in enumerate(stream):
                output += step.take(row, (partition, place), now_ms)
            stream = output + (step.close() if last else [])
        return stream

    def epoch(
        self, parts: Partitions, now_ms: int, turns: Sequence[int]
    ) -> dict[int, list[Values]]:
        """Return the output of each partition when channels close in this order."""
        self.open(now_ms)
        return {
            partition: self.channel(partition, parts[partition], now_ms, partition == turns[-1])
            for partition in turns
        }


def parted(step: KeyedStep, settings: Settings) -> PartedOperator:
    return PartedOperator(
        lambda: step.operator(ordered=True),
        settings.parts(step.slots),
        workers=settings.workers,
        chunk_rows=settings.chunk_rows,
    )


class OneHostChain:
    """A host's chain, without its server."""

    def __init__(self, flow: FlowPlan, settings: Settings) -> None:
        self.flow = flow
        self.machines = [HostMachine(parted(step, settings)) for step in flow.keyed]
        for machine, step in zip(self.machines, flow.keyed, strict=True):
            machine.assign(Assignment(-1, tuple(range(step.slots))))
        self.chain = StepChain(flow, self.machines, settings)
        self.run = 0
        self._attempts = count()

    def header(
        self,
        time: EpochTime | Sequence[EpochTime],
        partition: int,
        partitions: int,
        attempt: int | None = None,
    ) -> ChannelHeader:
        times = [time] * len(self.machines) if isinstance(time, EpochTime) else time
        attempt = next(self._attempts) if attempt is None else attempt
        first, *others = zip((step.id for step in self.flow.keyed), times, strict=True)
        step, at = first
        return ChannelHeader(
            *(at.epoch, self.run, step, partition, attempt, partitions, at),
            chained=tuple(others),
            keep_late=True,
        )

    def channel(self, header: ChannelHeader, batches: list[pa.RecordBatch]) -> Answer:
        return self.chain.close_channel(header, ROWS, batches)

    def seal(self, epoch: int, partitions: int) -> list[pa.Table]:
        return [machine.seal(epoch, self.run, partitions)[0] for machine in self.machines]

    def roll_back(self, version: int) -> None:
        for machine in self.machines:
            machine.rollback(version, self.run)
        self.run += 1

    def deltas(self) -> list[pa.Table]:
        """Return the changes since the last seal, by step."""
        return [machine.operator.table.delta() for machine in self.machines]

    def end(self) -> None:
        self.chain.end()
        for machine in self.machines:
            machine.operator.shutdown()


def rows_of(answer: Answer) -> list[Values]:
    return [row for batch in answer.batches for row in values_of(batch)]


def cut(rows: Sequence[Values], size: int) -> list[pa.RecordBatch]:
    """Cut rows into batches, as a source may send them, with an empty one in some cases."""
    return [batch_of(rows[at : at + size]) for at in range(0, len(rows) + 1, size)]


def twin(model: SerialChain) -> SerialChain:
    return copy.deepcopy(model)
