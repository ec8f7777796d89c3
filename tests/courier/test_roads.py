"""Records that a courier sends to hosts, and the order of the answers that it passes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import codec
from penstock.courier import channels
from penstock.courier.delivery import Delivery, Task
from penstock.courier.roads import HostRoad
from penstock.model import HostId, StepId
from penstock.operators.operator import Answer, EpochTime
from penstock.operators.places import SERIAL, Places, with_places
from penstock.operators.process.step import ProcessPlan
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.access import Access
from penstock.wire.messages import ChannelHeader, Close
from penstock.wire.report import Seen
from tests.operators.processors import SCHEMA, Summed

SLOTS, HOSTS = 8, 3
STEP = KeyedStep("step", SLOTS, ProcessPlan(SCHEMA, ["user"], Summed()))
PLAN = EpochPlan(
    0,
    0,
    1,
    (
        StepRoutes(
            StepId("step"),
            RouteTable.even([HostId(f"step/{n}") for n in range(HOSTS)], SLOTS),
            tuple(f"host {n}" for n in range(HOSTS)),
            EpochTime(0, 0),
        ),
    ),
    "",
)


class Host:
    """A stand-in for a host that records its input, and sends it back."""

    greeted = True

    def __init__(self, ordered: bool) -> None:
        self.ordered, self.got = ordered, list[pa.RecordBatch]()
        self.words: list[bytes] = []

    @contextmanager
    def exchange(self, header: bytes, timeout_ms: int) -> Iterator[tuple[Any, Any]]:
        writer = SimpleNamespace(
            begin=lambda schema: None,
            write_batch=self.got.append,
            write_metadata=self.words.append,
            done_writing=lambda: None,
        )
        yield writer, self.answers()

    def hearing_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def answers(self) -> Iterator[Any]:
        """Yield all rows as received; if ordered, in reverse order and with their places."""
        rows = pa.Table.from_batches(self.got).combine_chunks().to_batches()
        for batch in rows:
            answer = Answer([batch])
            if self.ordered:
                back = batch.take(pa.array(np.arange(batch.num_rows)[::-1]))
                serials = back.column(SERIAL).to_numpy()
                answer = Answer([back.select(SCHEMA.names)], [], [Places.of_records(0, serials)])
            for sent in with_places(answer.batches, answer.places):
                yield SimpleNamespace(data=sent, app_metadata=None)


def through(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> tuple[list[Host], list[pa.RecordBatch], pa.Table]:
    hosts = [Host(ordered) for _ in range(HOSTS)]
    monkeypatch.setattr(channels, "endpoint", lambda place, *_: hosts[int(place[-1])])
    sent = [
        pa.RecordBatch.from_pydict(
            {"user": [f"u{(7 * n) % 10}" for n in range(start, start + 20)],
             "n": range(start, start + 20)}, SCHEMA,
        )
        for start in (0, 20)
    ]  # fmt: skip
    flow = FlowPlan((SourcePlan(SCHEMA),), (STEP,), ordered=ordered)
    with HostRoad(Delivery(flow, PLAN, Task(0, 0), Access("token"), 1000, 1000), 0, STEP) as road:
        road.send([sent])
        assert sum(road.tell(Seen(0)).loads["step"]) == 40
        output = list(road.answer())
    for host in hosts:
        (word,) = host.words
        assert codec.decode(word, Close) == Close("rows", sum(b.num_rows for b in host.got), 0)
    return hosts, output, pa.Table.from_batches(sent)


def test_records_are_numbered_before_they_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, output, sent = through(monkeypatch, ordered=True)
    for host in hosts:
        rows = pa.Table.from_batches(host.got)
        assert rows.column(SERIAL).to_pylist() == rows.column("n").to_pylist()
        assert 0 < rows.num_rows < 40
    assert pa.Table.from_batches(output).equals(sent)
    assert len(output) == 1


def test_nothing_is_added_without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, output, sent = through(monkeypatch, ordered=False)
    assert all(batch.schema.equals(SCHEMA) for host in hosts for batch in host.got)
    by_host = [row for host in hosts for batch in host.got for row in batch.to_pylist()]
    rows = [row for batch in output for row in batch.to_pylist()]
    assert rows == by_host
    assert rows != sent.to_pylist()


def test_where_functions_help_a_task_has_two_channels_to_each_host() -> None:
    offload = Offload(np.ones(SLOTS), workers=2, deadline_ms=100)
    helped = replace(PLAN, partitions=3, steps=(replace(PLAN.steps[0], offload=offload),))
    places = [
        (header.partition, header.partitions)
        for channel in range(helped.steps[0].channels)
        for task in range(3)
        for header in [ChannelHeader.of(helped, helped.steps[0], task, 9, channel)]
    ]
    assert places == [(number, 6) for number in range(6)]
    assert ChannelHeader.of(replace(PLAN, partitions=3), PLAN.steps[0], 2, 9).partitions == 3
