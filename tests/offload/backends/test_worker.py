"""Rows that go through burst workers give the same state and output as rows that do not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError, StepError
from penstock.offload.backends.messages import Requests, WorkerAnswer
from penstock.offload.backends.worker import BurstWorker
from penstock.offload.plan.segments import segments
from penstock.operators.operator import PARTIALS, ROWS, EpochTime, Operator
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.offload.backends.flows import (
    COUNT,
    SCHEMA,
    counting,
    doubled,
    request,
    rows,
    slow_or_wrong,
)
from tests.operators.test_two_stage import PLANS, epochs_of
from tests.operators.trials import Epoch, Outcome, Row, bag, run

SLOTS = 8


class Courier:
    """Sends the rows of one channel: some directly, some through burst workers, in several requests each."""

    def __init__(self, step: KeyedStep, time: EpochTime, chance: random.Random) -> None:
        self.step, self.plan, self.time, self.chance = step, step.plan, time, chance
        flow = FlowPlan((SourcePlan(step.plan.inputs[0]),), (step,))
        [segment] = segments(flow)
        self.whole_keys = segment.whole_keys
        self.worker = BurstWorker(flow)
        self.requests = Requests.of(flow, [step], time, "test")
        self.late: list[Row] = []

    def sent(self, some: list[Row], roads: int, cut: int) -> tuple[str, list[pa.RecordBatch]]:
        """Records of the channel: those of the courier's own rows, then those of each request."""
        taken = self._roads(some, roads)
        sender = self.plan.sender(self.time, two_stage=True)
        sent = [
            out.batch for batch in _cut(self._batch(taken[0]), cut) for out in sender.add(0, batch)
        ]
        kind, rest = sender.finish()
        sent += [out.batch for out in rest]
        self.late += [row for _, batch in sender.late for row in batch.to_pylist()]
        for number, road in enumerate(taken[1:]):
            for part, batch in enumerate(_cut(self._batch(road), 2 * cut)):
                asked = self.requests.one(10 * number + part, list(_cut(batch, cut)))
                got = WorkerAnswer.from_bytes(self.worker.answer(asked.to_bytes()), asked)
                assert got.kind == kind or not got.batches
                for out, hashes in got.outgoing(self.plan):
                    out.validate(full=True)
                    assert len(hashes) == out.num_rows
                    sent.append(out)
                self.late += [row for batch in got.late for row in batch.to_pylist()]
        return kind, sent

    def _roads(self, some: list[Row], roads: int) -> list[list[Row]]:
        taken: list[list[Row]] = [[] for _ in range(roads + 1)]
        by_key: dict[tuple[object, ...], int] = {}
        for row in some:
            road = self.chance.randrange(roads + 1)
            if self.whole_keys:
                road = by_key.setdefault(tuple(row[name] for name in self.plan.key_names), road)
            taken[road].append(row)
        return taken

    def _batch(self, some: list[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(some, self.plan.inputs[0])


def _cut(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [batch.slice(at, size) for at in range(0, batch.num_rows, size)]


def with_burst_workers(
    step: KeyedStep, epochs: list[Epoch], cut: int, seed: int, roads: int
) -> Outcome:
    operator, outcome, chance = step.operator(), Outcome(), random.Random(seed)
    for number, epoch in enumerate(epochs):
        time = EpochTime(number, epoch.now_ms, epoch.watermark_ms, epoch.final)
        answers, late = [operator.open(time)], []
        for channel in epoch.channels:
            courier = Courier(step, time, chance)
            kind, sent = courier.sent(channel, roads, cut)
            operator.keys(kind, sent)
            answers.append(operator.apply(kind, sent))
            late += courier.late
        answers.append(operator.close())
        outcome.rows.append([r for a in answers for batch in a.batches for r in batch.to_pylist()])
        outcome.late.append(late)
        operator.table.seal()
    outcome.operator = operator
    return outcome


def state(operator: Operator | None) -> Counter[str]:
    """Content of a table, independent of the order of entries and of list items."""
    assert operator is not None
    table = operator.table
    whole = table.export(table.entries_in(np.arange(table.slots)))
    return Counter(
        str(
            [
                (name, sorted(map(str, value)) if isinstance(value, list) else value)
                for name, value in row.items()
            ]
        )
        for row in whole.to_pylist()
    )


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=12)
@given(epochs_of(), st.integers(1, 5), st.integers(0, 999), st.integers(1, 3))
def test_the_results_are_the_same(
    name: str, epochs: list[Epoch], cut: int, seed: int, roads: int
) -> None:
    quiet = [replace(epoch, mishap="") for epoch in epochs]
    step = KeyedStep("step", SLOTS, PLANS[name])
    alone = run(PLANS[name], quiet, cut)
    helped = with_burst_workers(step, quiet, cut, seed, roads)
    assert list(map(bag, helped.rows)) == list(map(bag, alone.rows))
    assert list(map(bag, helped.late)) == list(map(bag, alone.late))
    assert state(helped.operator) == state(alone.operator)


def test_stateless_steps_come_first() -> None:
    flow = counting(doubled)
    asked = request(flow, ("a", 1), ("b", 2), ("a", 4))
    got = WorkerAnswer.from_bytes(BurstWorker(flow).answer(asked.to_bytes()), asked)
    [partials] = got.batches
    assert got.kind == PARTIALS
    assert partials.to_pylist() == [{"__key": b"a", "sum(v)": 10}, {"__key": b"b", "sum(v)": 4}]


def test_a_segment_without_a_keyed_step_gives_rows() -> None:
    flow = counting(doubled)
    asked = Requests.of(flow, flow.steps[:1], EpochTime(0, 0), "test").one(0, [rows(("a", 3))])
    got = WorkerAnswer.from_bytes(BurstWorker(flow).answer(asked.to_bytes()), asked)
    assert (got.kind, got.batches) == (ROWS, (rows(("a", 6)),))


def test_bad_rows_fail_the_invocation() -> None:
    flow = counting(slow_or_wrong)
    with pytest.raises(ValueError, match="such a row"):
        BurstWorker(flow).answer(request(flow, ("a", 1), ("wrong", 1)).to_bytes())
    with pytest.raises(StepError, match="a null in the key"):
        BurstWorker(flow).answer(request(flow, ("a", 1), (None, 1)).to_bytes())


def test_a_burst_worker_of_another_flow_does_not_answer() -> None:
    other = FlowPlan((SourcePlan(SCHEMA),), (COUNT,))
    with pytest.raises(FlowError, match="another flow"):
        BurstWorker(other).answer(request(counting(doubled), ("a", 1)).to_bytes())


@pytest.mark.parametrize("name", PLANS)
def test_a_rehearsal_needs_no_rows_of_the_user(name: str) -> None:
    flow = FlowPlan((SourcePlan(PLANS[name].inputs[0]),), (KeyedStep("s", 4, PLANS[name]),))
    BurstWorker(flow).rehearse()
