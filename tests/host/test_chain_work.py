"""Rounds of a host of all steps: time advances step by step, and a new run starts from a rollback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import StepError
from penstock.host.chain_work import ChainWork
from penstock.host.chunks import ChannelChunk, Round, Rounded
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.operators.aggregate.aggregates import count, sum
from penstock.operators.operator import ROWS, Answer, EpochTime
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from penstock.settings import Settings

SLOTS = 4
TIMED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
_SMALL = WindowPlan(TIMED, ["k"], {"n": count()}, tumbling("10ms"), "at")
_LARGE = WindowPlan(_SMALL.output, [], {"n": sum("n")}, tumbling("50ms"), "window_end")
NOW = EpochTime(0, 0)


def choosy(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 13 in batch.column("k").to_pylist():
        raise ValueError("thirteen")
    return batch


FLOW = FlowPlan(
    (SourcePlan(TIMED, "at"),),
    (
        KeyedStep("small", SLOTS, _SMALL),
        MapStep("choosy", choosy, _SMALL.output, _SMALL.output),
        KeyedStep("large", 1, _LARGE),
    ),
    one_host=True,
)


class Host:
    """A host with all steps of a flow."""

    def __init__(self, cores: int) -> None:
        settings, every = Settings(host_cores=cores), tuple(range(SLOTS))
        self.machines = []
        for step in FLOW.keyed:
            operator = PartedOperator(
                lambda step=step: step.operator(ordered=True),  # type: ignore[misc]
                settings.parts(step.slots),
                workers=1,
                chunk_rows=100,
            )
            machine, slots = HostMachine(operator), every[: step.slots]
            machine.assign(Assignment(-1, slots, (Incoming(slots, None),)))
            self.machines.append(machine)
        self.work = ChainWork(FLOW, self.machines, settings)

    def submit(self, *events: tuple[int, int], courier: int = 0, time: EpochTime = NOW) -> None:
        columns = [
            pa.array([k for k, _ in events]),
            pa.array([t for _, t in events], TIMED[1].type),
        ]
        batch = pa.record_batch(columns, schema=TIMED)
        self.work.submit(ChannelChunk(ROWS, [batch], None, Round(courier, time)))

    def cut(self, epoch: int) -> None:
        for machine in self.machines:
            machine.cut(epoch)
            machine.settle(epoch)


@pytest.fixture(params=[1, 3], ids=["one core", "three cores"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(request.param)
    yield made
    made.work.end()


def at(watermark_ms: int) -> EpochTime:
    return replace(NOW, watermark_ms=watermark_ms)


def counted(answer: Answer) -> list[int]:
    return [row["n"] for batch in answer.batches for row in batch.to_pylist()]


def test_time_goes_through_the_steps_one_by_one(host: Host) -> None:
    """Rows that the first step fires are never late for the second, whatever the watermark is."""
    host.submit((1, 3), (2, 12), (1, 48), (1, 60))
    (touched,) = host.work.drain()
    assert touched.answer.due, "it is known when windows close"
    assert not touched.answer.batches
    assert counted(host.work.fire(at(49))) == []
    fired = host.work.fire(at(100))
    assert counted(fired) == [2, 2]
    assert not fired.late
    assert [records for records, _ in host.work.spent()] == [4, 2], (
        "the second step gets combined rows"
    )


def test_late_rows_are_set_aside(host: Host) -> None:
    host.work.fire(at(100))
    host.submit((1, 3), (1, 130), time=at(100))
    late = [rows for rounded in host.work.drain() for rows in rounded.answer.late]
    assert [(rows.step, rows.count) for rows in late] == [("small", 1)]


def test_a_run_that_begins_again_knows_nothing_of_the_time_before(host: Host) -> None:
    host.submit((1, 3), (2, 12))
    host.work.drain()
    host.cut(0)
    before: Any = counted(host.work.fire(at(100)))
    assert before == [2]
    for machine in host.machines:
        machine.return_to(0)
    host.work.begin()
    again = host.work.fire(at(100))
    assert counted(again) == before
    assert not again.late


def test_after_a_failure_nothing_is_left_under_way(host: Host) -> None:
    host.submit((13, 3))
    host.work.drain()
    host.cut(0)
    host.submit((2, 5), courier=1)
    with pytest.raises(StepError, match="thirteen"):
        host.work.fire(at(100))
    host.work.abandon()
    for machine in host.machines:
        machine.return_to(0)
    host.work.begin()
    host.submit((1, 200))
    rounded: list[Rounded] = host.work.drain()
    assert not counted(rounded[0].answer)
    assert len(host.machines[0].operator.table) == 2
