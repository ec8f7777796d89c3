"""A live courier that sends rows to burst workers: answers, failures, checkpoints and event time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import codec
from penstock.errors import ProtocolError
from penstock.faults import armed
from penstock.operators.aggregate.aggregates import AggregatePlan, count, last
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.epoch import Offload
from penstock.plan.reflex import Reflex
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.live import CheckpointMessage, Guides, Handing, Reroute, StepGuide
from penstock.wire.report import Seen
from tests.live.pretence import Scene, TapSource, taps, wait_for
from tests.live.test_loop import CALM, ROWS, TOTALS, one_step, rows_of, totals_of
from tests.offload.in_process import ANYHOW, WELL, Chances, Helped, helped

ALL, HALF, NONE = (np.full(TOTALS.slots, share) for share in (1.0, 0.5, 0.0))


@contextmanager
def bursting(
    scene: Scene, shares: Any = ALL, chances: Chances = WELL, deadline_ms: int = 5_000, **more: Any
) -> Iterator[Helped]:
    """A running courier with burst workers for these shares."""
    with helped(scene.flow, chances) as by, scene.running():
        guide(scene, by, Offload(np.asarray(shares), 4, deadline_ms, **more))
        yield by


def guide(scene: Scene, by: Helped, offload: Offload | None) -> None:
    (step,) = scene.flow.keyed
    scene.run.guide(Guides((StepGuide(step.id, offload=offload),), by.text))


def hold(by: Helped) -> threading.Event:
    """Make burst workers wait until the event is set."""
    goes, answer = threading.Event(), by.workers.invoke

    def invoke(request: bytes, timeout_ms: int) -> bytes:
        by.workers.asked += 1
        goes.wait(20)
        return answer(request, timeout_ms)

    by.workers.invoke = invoke  # type: ignore[method-assign]
    return goes


@pytest.mark.parametrize("chances", [WELL, ANYHOW, {"fail": 1}, {"hang": 1}, {"strange": 1}])
@pytest.mark.parametrize("shares", [ALL, HALF])
def test_all_rows_count_once_whatever_burst_workers_do(shares: Any, chances: Chances) -> None:
    source, scene = one_step()
    deadline_ms = 10_000 if chances is WELL else 100
    with bursting(scene, shares, chances, deadline_ms) as by:
        for n in range(20):
            source.taps["p0"].give(rows_of(*((k, n) for k in range(10))))
            if n % 7 == 6:
                scene.checkpoint()
        wait_for(lambda: totals_of(scene) == dict.fromkeys(range(10), 190))
        scene.checkpoint()
        assert sum(by.workers.did.values()) > 0
    seen = reports(scene)
    offloaded = [entry for report in seen for entry in report.offloaded]
    rows = sum(entry.rows for entry in offloaded)
    assert rows == 200 if shares is ALL else 20 < rows < 180
    if chances is WELL:
        assert all(not entry.failures and not entry.returned for entry in offloaded)
    if chances == {"fail": 1}:
        assert sum(entry.returned for entry in offloaded) == rows
    assert sum(sum(entry.latency_counts) for entry in seen) == 200
    loads = sum(int(entry.loads["sum"].sum()) for entry in seen)
    assert loads == 200, "offloaded rows count as if hosts had got them"


def reports(scene: Scene) -> list[Seen]:
    """The courier's report of each epoch."""
    return [codec.from_plain(passed.seen, Seen) for passed in scene.driver.passed]


def test_a_checkpoint_waits_for_burst_workers_and_a_reroute_does_not() -> None:
    source, scene = one_step()
    first, second = scene.hosts.values()
    with bursting(scene) as by:
        goes = hold(by)
        source.taps["p0"].give(rows_of(*((k, 1) for k in range(10))))
        wait_for(lambda: by.workers.asked)
        handing = Handing(tuple(range(4)), first.name, first.location, second.name, second.location)
        scene.tell(reroute=Reroute(scene.numbers, "sum", (handing,)))
        saved = scene.tell(checkpoint=CheckpointMessage(scene.numbers, 5, 4))
        source.taps["p0"].give(rows_of((1, 1)))
        wait_for(lambda: 0 in first.rows_at and 0 in second.rows_at)
        wait_for(lambda: scene.source_read(source))
        assert saved.number not in second.rows_at
        assert not scene.driver.passed
        goes.set()
        wait_for(lambda: scene.driver.passed)
        wait_for(lambda: totals_of(scene) == {k: 1 + (k == 1) for k in range(10)})
    assert not first.rows, "its slots had moved when the answer came"
    assert second.rows_at[saved.number] == 10
    assert scene.driver.passed[0].positions == {0: {"p0": 1}}


def test_without_an_answer_in_time_the_courier_does_the_rows_itself() -> None:
    source, scene = one_step()
    with bursting(scene, deadline_ms=50) as by:
        goes = hold(by)
        source.taps["p0"].give(rows_of((1, 5), (1, 6)))
        wait_for(lambda: totals_of(scene) == {1: 11})
        goes.set()  # late answers are ignored
        source.taps["p0"].give(rows_of((2, 1)))
        wait_for(lambda: totals_of(scene) == {1: 11, 2: 1})
        scene.checkpoint()
    (offloaded,) = reports(scene)[0].offloaded
    assert offloaded.returned >= 2
    assert offloaded.failures["timeout"] >= 1


def test_a_guide_is_taken_back_while_rows_are_with_burst_workers() -> None:
    source, scene = one_step()
    with bursting(scene) as by:
        goes = hold(by)
        source.taps["p0"].give(rows_of((1, 5)))
        wait_for(lambda: by.workers.asked)
        guide(scene, by, None)
        source.taps["p0"].give(rows_of((1, 6)))
        wait_for(lambda: totals_of(scene) == {1: 6})
        goes.set()
        wait_for(lambda: totals_of(scene) == {1: 11})
        scene.checkpoint()
    (offloaded,) = reports(scene)[0].offloaded
    assert offloaded.rows == 1


EVENTS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])


def events(*pairs: tuple[int, int]) -> pa.RecordBatch:
    rows = pa.table({"k": [k for k, _ in pairs], "at": [at for _, at in pairs]})
    return rows.cast(EVENTS).combine_chunks().to_batches()[0]


def windowed() -> tuple[TapSource, Scene]:
    """Windows of 10 ms, on one host."""
    source = TapSource(taps("p0"), EVENTS)
    plan = WindowPlan(EVENTS, ["k"], {"n": count()}, tumbling("10ms"), on="at")
    time = SourcePlan(EVENTS, event_time="at", delay_ms=0)
    flow = FlowPlan((time,), (KeyedStep("win", 4, plan),))
    return source, Scene(flow, [source], {"win": 1}, CALM)


def test_no_window_closes_before_its_rows_are_back_and_time_goes_on_between_answers() -> None:
    source, scene = windowed()
    host = scene.hosts["win/0"]
    with bursting(scene, np.ones(4)) as by:
        goes = hold(by)
        source.taps["p0"].give(events((1, 5), (1, 7)))
        wait_for(lambda: by.workers.asked == 1)
        guide(scene, by, None)
        source.taps["p0"].give(events((1, 25)))
        wait_for(lambda: host.rows)
        source.taps["p0"].give(events((1, 3)))  # behind the courier's own time, not the hosts'
        wait_for(lambda: scene.source_read(source))
        source.taps["p0"].give(events((2, 45)))
        wait_for(lambda: len(host.rows) == 2)
        assert not scene.shelf.rows, "a window closed without its rows"
        goes.set()
        wait_for(lambda: len(scene.shelf.rows) >= 2)
        passed = scene.checkpoint()
    assert sorted(row["n"] for row in scene.shelf.rows) == [1, 2]
    assert passed.seen["late"] == {"win": 1}


def test_the_watermark_does_not_pass_partial_states_for_a_busy_host() -> None:
    """Rows wait in the courier for a slow host, and hold event time back. Partial states of burst workers are
    of older rows, and do not wait."""
    source, scene = windowed()
    host = scene.hosts["win/0"]
    with bursting(scene, np.zeros(4)) as by:
        goes = hold(by)
        source.taps["p0"].give(events((1, 6)))
        wait_for(lambda: host.rows)
        guide(scene, by, Offload(np.ones(4), 4, 5_000))
        source.taps["p0"].give(events((1, 5), (1, 7)))
        wait_for(lambda: by.workers.asked == 1)
        guide(scene, by, None)
        host.going.clear()
        source.taps["p0"].give(events(*((2, 25) for _ in range(400))))
        wait_for(lambda: scene.source_read(source))
        with armed() as points:
            goes.set()
            wait_for(lambda: points.passed["courier.offloaded"])
            for _ in range(20):  # the courier goes on
                scene.tell(reroute=Reroute(scene.numbers, "win", ()))
                wait_for(lambda: points.passed["courier.messaged"] == scene.numbers)
        host.going.set()
        wait_for(lambda: scene.shelf.rows)
        scene.checkpoint()
    assert [row["n"] for row in scene.shelf.rows] == [3]


def test_a_step_whose_output_depends_on_arrival_is_not_offloaded() -> None:
    source = TapSource(taps("p0"), ROWS)
    step = KeyedStep("newest", 8, AggregatePlan(ROWS, ["k"], {"v": last("v")}))
    scene = Scene(FlowPlan((SourcePlan(ROWS),), (step,)), [source], {"newest": 1}, CALM)
    with bursting(scene):
        (trouble,) = wait_for(lambda: scene.driver.troubles)
    assert isinstance(trouble, ProtocolError)


def test_rows_that_hosts_cannot_take_in_time_go_to_burst_workers_by_reflex() -> None:
    """Small chunks stay with the hosts. A chunk with many more rows than they can apply in time does not."""
    source, scene = one_step()
    reflex = Reflex(1_000.0, 900.0, 1_000.0, 0.1, workers=8, within_ms=200.0)
    with bursting(scene, NONE, reflex=reflex):
        for n in range(5):
            source.taps["p0"].give(rows_of((n, 1)))
            wait_for(lambda: len(totals_of(scene)) == len(source.taps["p0"].batches))
        scene.checkpoint()
        source.taps["p0"].give(rows_of(*((k % 10, 1) for k in range(2_000))))
        wait_for(lambda: sum(totals_of(scene).values()) == 2_005)
        scene.checkpoint()
    calm, burst = reports(scene)
    assert not calm.offloaded
    (offloaded,) = burst.offloaded
    assert 1_700 < offloaded.rows < 2_000
    assert burst.routed["sum"].rows == 2_000


def test_nothing_is_left_running() -> None:
    source, scene = one_step()
    with bursting(scene, chances={"hang": 1}, deadline_ms=200):
        source.taps["p0"].give(rows_of((1, 5)))
        wait_for(lambda: any("invoke" in thread.name for thread in threading.enumerate()))
    wait_for(lambda: not any("invoke" in thread.name for thread in threading.enumerate()))
