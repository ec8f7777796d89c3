"""A live courier with fake hosts, over real streams: rows, messages, time, faults, backpressure."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import HostLostError, ProtocolError, StepError
from penstock.faults import Fault, armed
from penstock.operators.aggregate import aggregates
from penstock.operators.aggregate.aggregates import AggregatePlan, count
from penstock.operators.join.bounds import Regular
from penstock.operators.join.plan import JoinPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from penstock.settings import Settings
from penstock.wire.live import Guides, Handing, Part, Reroute, StepGuide, Time
from tests.live.pretence import Scene, TapSource, by_key, taps, wait_for

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TOTALS = KeyedStep("sum", 8, AggregatePlan(ROWS, ["k"], {"total": aggregates.sum("v")}))
CALM = Settings(live_pause_ms=5.0, rpc_timeout_ms=5_000, host_lost_ms=2_000)


def rows_of(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], ROWS)


def newest(scene: Scene, column: str) -> dict[int, int]:
    return {k: values[-1] for k, values in by_key(scene.shelf.rows, "k", column).items()}


def totals_of(scene: Scene) -> dict[int, int]:
    return newest(scene, "total")


def one_step(hosts: int = 2, names: tuple[str, ...] = ("p0",), **options: Any) -> Any:
    source = TapSource(taps(*names), ROWS)
    flow = FlowPlan((SourcePlan(ROWS),), (TOTALS,), **options)
    return source, Scene(flow, [source], {"sum": hosts}, CALM)


def test_rows_go_to_the_owners_of_their_slots_and_answers_to_the_sink() -> None:
    source, scene = one_step()
    with scene.running():
        for n in range(20):
            source.taps["p0"].give(rows_of(*((k, n) for k in range(10))))
        wait_for(lambda: totals_of(scene) == dict.fromkeys(range(10), 190))
        passed = scene.checkpoint()
    assert passed.positions == {0: {"p0": 20}}
    assert passed.seen["rows"] == 200
    assert sum(passed.seen["latency_counts"]) == 200
    keys = [{row["k"] for row in host.rows} for host in scene.hosts.values()]
    assert all(keys)
    assert not keys[0] & keys[1]
    ids = [ids for ids, _ in scene.shelf.written]
    firsts = [entry.first for entry in ids]
    sizes = [len(rows) for _, rows in scene.shelf.written]
    assert {(entry.courier, entry.epoch) for entry in ids} == {(0, 5)}
    assert firsts == [sum(sizes[:n]) for n in range(len(sizes))]


def test_a_checkpoint_is_a_point_between_rows() -> None:
    source, scene = one_step()
    with scene.running():
        for n in range(200):
            source.taps["p0"].give(rows_of(*((k, 1) for k in range(5))))
            if n % 40 == 39:
                number = scene.numbers
                passed = scene.checkpoint()
                # all rows up to the position were sent before the message, and none after it
                before = sum(host.rows_at[number] for host in scene.hosts.values())
                assert before == 5 * passed.positions[0]["p0"]
        wait_for(lambda: totals_of(scene) == dict.fromkeys(range(5), 200))
        scene.checkpoint()
        # each message names the durable epoch, so the source is told of the epoch before the last
        wait_for(lambda: source.taps["p0"].committed == scene.driver.passed[-2].positions[0]["p0"])
    assert scene.shelf.flushed == [5, 6, 7, 8, 9, 10]
    assert [p.epoch for p in scene.driver.passed] == scene.shelf.flushed
    assert sum(p.seen["rows"] for p in scene.driver.passed) == 1_000


def test_the_same_rows_go_through_two_keyed_steps_with_a_stateless_one_between() -> None:
    source = TapSource(taps("p0"), ROWS)
    middle = pa.schema([("parity", pa.int64()), ("total", pa.int64())])

    def parity(batch: pa.RecordBatch) -> pa.RecordBatch:
        odd = pc.bit_wise_and(batch.column("k"), 1)
        return pa.RecordBatch.from_arrays([odd, batch.column("total")], schema=middle)

    second = KeyedStep("seen", 4, AggregatePlan(middle, ["parity"], {"n": count()}))
    flow = FlowPlan(
        (SourcePlan(ROWS),), (TOTALS, MapStep("odd", parity, TOTALS.output, middle), second)
    )
    scene = Scene(flow, [source], {"sum": 2, "seen": 2}, CALM)
    with scene.running():
        for n in range(12):
            source.taps["p0"].give(rows_of((n, 1)))
            if n == 5:
                number = scene.numbers
                passed = scene.checkpoint()
                seconds = [host for name, host in scene.hosts.items() if "seen" in name]
                before = sum(host.rows_at[number] for host in seconds)
                assert before == passed.positions[0]["p0"]
        wait_for(lambda: by_key(scene.shelf.rows, "parity", "n").get(0, [0])[-1] == 6)
        wait_for(lambda: by_key(scene.shelf.rows, "parity", "n").get(1, [0])[-1] == 6)
        passed = scene.checkpoint()
    assert passed.seen["loads"].keys() == {"sum", "seen"}


def test_two_sources_meet_in_a_join() -> None:
    left = TapSource(taps("l0", "l1"), pa.schema([("k", pa.int64()), ("a", pa.int64())]))
    right = TapSource(taps("r0"), pa.schema([("k", pa.int64()), ("b", pa.int64())]))
    plan = JoinPlan(left.columns, right.columns, (("k", "k"),), "inner", Regular())
    step = KeyedStep("both", 4, plan, reads=(0, 1))
    flow = FlowPlan((SourcePlan(left.columns), SourcePlan(right.columns)), (step,))
    scene = Scene(flow, [left, right], {"both": 2}, CALM)

    def give_row(source: TapSource, tap: str, k: int, value: int) -> None:
        name = source.columns.names[1]
        source.taps[tap].give(pa.RecordBatch.from_pylist([{"k": k, name: value}], source.columns))

    with scene.running():
        for n in range(10):
            give_row(left, f"l{n % 2}", n, n)
            give_row(right, "r0", n, -n)
        wait_for(lambda: len(scene.shelf.rows) == 10)
        passed = scene.checkpoint()
    assert sorted((r["k"], r["a"], r["b"]) for r in scene.shelf.rows) == [
        (n, n, -n) for n in range(10)
    ]
    assert passed.positions == {0: {"l0": 5, "l1": 5}, 1: {"r0": 10}}


def test_a_flow_without_keyed_steps_writes_what_its_functions_make() -> None:
    source = TapSource(taps("p0"), ROWS)

    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "v", pc.multiply(batch.column("v"), 2))

    flow = FlowPlan((SourcePlan(ROWS),), (MapStep("double", double, ROWS, ROWS),))
    scene = Scene(flow, [source], {}, CALM)
    with scene.running():
        source.taps["p0"].give(rows_of((1, 1), (2, 2)))
        wait_for(lambda: [row["v"] for row in scene.shelf.rows] == [2, 4])
        first = scene.checkpoint()
        source.taps["p0"].give(rows_of((3, 3)))
        wait_for(lambda: len(scene.shelf.rows) == 3)
        second = scene.checkpoint()
    assert (first.positions, second.positions) == ({0: {"p0": 1}}, {0: {"p0": 2}})
    assert [(ids.epoch, ids.first) for ids, _ in scene.shelf.written] == [(5, 0), (6, 0)]
    assert first.seen["latency_counts"] == [2]
    assert not first.ended


@pytest.mark.parametrize("first", [False, True])
def test_slots_go_to_a_new_host_in_the_middle_and_the_old_one_leaves(first: bool) -> None:
    """This also works with the very first message of a run."""
    source, scene = one_step(hosts=1)
    tap, old = source.taps["p0"], scene.hosts["sum/0"]
    new = scene.host("sum/9", TOTALS)
    with scene.running():
        tap.give(rows_of(*((k, 1) for k in range(10))))
        wait_for(lambda: len(old.rows) == 10)
        if not first:
            scene.checkpoint()
        handings = tuple(
            Handing(slots, "sum/0", old.location, "sum/9", new.location)
            for slots in (tuple(range(3)), tuple(range(3, 8)))
        )
        message = scene.tell(reroute=Reroute(scene.numbers, "sum", handings))
        wait_for(
            lambda: any(f.message == message for f in old.log) and any(f.message for f in new.log)
        )
        tap.give(rows_of(*((k, 1) for k in range(10))))
        wait_for(lambda: len(new.rows) == 10)
        parted = scene.tell(part=Part(scene.numbers, "sum", "sum/0"))
        passed = scene.checkpoint()
    assert len(old.rows) == 10
    (header,) = new.headers
    assert header.after == message.number - 1
    assert new.log[0].message == message
    assert new.log[1].time is not None
    assert passed.positions == {0: {"p0": 2}}
    assert [frame.message for frame in old.log[-2:]] == [parted, None]
    assert old.log[-1].leave
    assert not scene.driver.troubles


def test_a_broken_stream_is_reported_to_the_driver_once_and_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, scene = one_step()
    with scene.running(), caplog.at_level(logging.INFO, "penstock.live"):
        source.taps["p0"].give(rows_of(*((k, 1) for k in range(10))))
        wait_for(lambda: len(totals_of(scene)) == 10)
        for host in scene.hosts.values():
            host.broken = True
        source.taps["p0"].give(rows_of(*((k, 1) for k in range(10))))
        wait_for(lambda: scene.driver.troubles)
        scene.run.halt()
        scene.run.join()
        polls = source.taps["p0"].polls
        source.taps["p0"].give(rows_of((1, 1)))
    assert len(scene.driver.troubles) == 1
    assert isinstance(scene.driver.troubles[0], HostLostError)
    assert [record.exc_info for record in caplog.records] == [None]
    assert source.taps["p0"].polls == polls
    assert not scene.deaths


def test_an_error_of_user_code_reaches_the_driver() -> None:
    source = TapSource(taps("p0"), ROWS)

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such thing")

    flow = FlowPlan((SourcePlan(ROWS),), (MapStep("bad", fails, ROWS, ROWS), TOTALS))
    scene = Scene(flow, [source], {"sum": 1}, CALM)
    with scene.running():
        source.taps["p0"].give(rows_of((1, 1)))
        wait_for(lambda: scene.driver.troubles)
    assert isinstance(scene.driver.troubles[0], StepError)


def test_rows_without_a_key_are_set_aside_with_the_epoch_that_they_came_in() -> None:
    source, scene = one_step(on_error="dead_letter")
    with scene.running():
        source.taps["p0"].give(
            pa.RecordBatch.from_pylist([{"k": None, "v": 1}, {"k": 1, "v": 1}], ROWS)
        )
        wait_for(lambda: totals_of(scene) == {1: 1})
        first, second = scene.checkpoint(), scene.checkpoint()
    assert len((first.aside or {})["dead"]) == 1
    assert second.aside is None


def test_a_host_that_does_not_answer_stops_the_polling() -> None:
    source, scene = one_step(hosts=1)
    scene.task = replace(scene.task, settings=replace(CALM, live_window_mb=0.1))
    tap, host = source.taps["p0"], scene.hosts["sum/0"]
    batch = rows_of(*((k, 1) for k in range(1_000)))  # 16 kB
    with scene.running():
        tap.give(batch)
        wait_for(lambda: len(totals_of(scene)) == 1_000)
        host.going.clear()
        before = tap.polls
        for _ in range(40):
            tap.give(batch)
            time.sleep(0.01)
        # overdue chunks let others pass, up to the limit of the window
        held = tap.polls - before
        assert 1 <= held <= 12
        host.going.set()
        wait_for(lambda: totals_of(scene) == dict.fromkeys(range(1_000), 41))


def test_a_window_closes_when_the_watermark_has_passed_it_and_late_rows_are_counted() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
    plan = WindowPlan(schema, ["k"], {"n": count()}, tumbling("1s"), "at")
    flow = FlowPlan(
        (SourcePlan(schema, event_time="at", delay_ms=100),), (KeyedStep("w", 4, plan),)
    )
    source = TapSource(taps("p0", "p1"), schema)
    scene = Scene(flow, [source], {"w": 2}, CALM)

    def at(tap: str, *times: int) -> None:
        rows = [{"k": time_ms % 3, "at": time_ms} for time_ms in times]
        source.taps[tap].give(pa.RecordBatch.from_pylist(rows, schema))

    def watermarks() -> set[int | None]:
        return {host.watermark_ms for host in scene.hosts.values()}

    with scene.running():
        at("p0", 100, 200, 2_000)
        at("p1", 300, 400)
        wait_for(lambda: watermarks() == {300})
        assert not scene.shelf.rows
        at("p1", 1_500)
        wait_for(lambda: watermarks() == {1_400})
        wait_for(lambda: sum(row["n"] for row in scene.shelf.rows) == 4)
        at("p1", 500)
        at("p0", 1_600)
        wait_for(lambda: sum(len(host.rows) for host in scene.hosts.values()) == 7)
        passed = scene.checkpoint()
    assert passed.seen["late"] == {"w": 1}
    assert [tuple(entry) for entry in passed.seen["event_ms"]] == [
        (0, "p0", 2_000),
        (0, "p1", 1_500),
    ]


def test_an_idle_courier_reports_it_and_waits_for_watermarks_before_it_goes_on() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
    plan = WindowPlan(schema, ["k"], {"n": count()}, tumbling("1s"), "at")
    time_of = SourcePlan(schema, event_time="at", idle_ms=50)
    flow = FlowPlan((time_of,), (KeyedStep("w", 4, plan),))
    source = TapSource(taps("p0"), schema)
    scene = Scene(flow, [source], {"w": 1}, CALM)
    host = scene.hosts["w/0"]

    def at(time_ms: int) -> None:
        source.taps["p0"].give(pa.RecordBatch.from_pylist([{"k": 1, "at": time_ms}], schema))

    def times() -> list[Time]:
        return [frame.time for frame in host.log if frame.time]

    with scene.running():
        at(500)
        wait_for(lambda: times() and times()[-1].idle)
        assert times()[-1].watermark_ms == 500
        at(700)
        wait_for(lambda: not times()[-1].idle and times()[-1].watermark_ms == 700)
        awake = next(n for n, f in enumerate(host.log) if f.time == Time(500) and n > 2)
        assert host.log[awake + 1].chunk is not None


def test_a_source_that_ends_closes_windows_and_the_next_checkpoint_says_so() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
    plan = WindowPlan(schema, ["k"], {"n": count()}, tumbling("1s"), "at")
    again = AggregatePlan(plan.output, ["k"], {"n": aggregates.sum("n")})
    steps = (KeyedStep("w", 4, plan), KeyedStep("all", 4, again))
    flow = FlowPlan((SourcePlan(schema, event_time="at"),), steps)
    source = TapSource(taps("p0"), schema)
    scene = Scene(flow, [source], {"w": 2, "all": 1}, CALM)
    with scene.running():
        rows = [{"k": n % 3, "at": 500 * n} for n in range(6)]
        source.taps["p0"].give(pa.RecordBatch.from_pylist(rows, schema))
        assert not scene.checkpoint().ended
        source.taps["p0"].give(end=True)
        wait_for(lambda: scene.checkpoint().ended)
        assert not scene.checkpoint(closes=True).closed
        wait_for(
            lambda: (
                {k: n[-1] for k, n in by_key(scene.shelf.rows, "k", "n").items()}
                == dict.fromkeys(range(3), 2)
            )
        )
        wait_for(lambda: scene.hosts["all/0"].final)
        assert wait_for(lambda: scene.checkpoint(closes=True).closed)


def test_a_courier_that_dies_sends_no_report() -> None:
    source, scene = one_step()
    with armed(Fault("courier.messaged", where={"epoch": 5})) as faults, scene.running():
        source.taps["p0"].give(rows_of((1, 1)))
        wait_for(lambda: totals_of(scene) == {1: 1})
        scene.tell(checkpoint=None, part=Part(0, "sum", "sum/7"))
        wait_for(lambda: scene.deaths)
    assert faults.passed["courier.message"] == 1
    assert not scene.driver.troubles
    assert not scene.driver.passed


@pytest.mark.slow
def test_an_idle_courier_takes_less_than_2_percent_of_a_core() -> None:
    source, scene = one_step(names=("p0", "p1"))
    with scene.running():
        source.taps["p0"].give(rows_of((1, 1)))
        wait_for(lambda: totals_of(scene) == {1: 1})
        began, used = time.monotonic(), time.process_time()
        time.sleep(5)
        share = (time.process_time() - used) / (time.monotonic() - began)
    assert share < 0.02


# Guides


def test_rows_and_combined_rows_go_on_one_stream() -> None:
    """Rows are sent before a guide, after it, and after it is withdrawn."""
    source, scene = one_step(hosts=1)
    host = scene.hosts["sum/0"]
    with scene.running():
        sent: list[int] = []
        for two_stage in (False, True, False):
            scene.run.guide(Guides((StepGuide("sum", two_stage=two_stage),)))
            before = len(host.rows)
            source.taps["p0"].give(rows_of(*((k % 3, 1) for k in range(30))))
            wait_for(lambda: sum(totals_of(scene).values()) == 30 * (len(sent) + 1))
            sent.append(len(host.rows) - before)
        passed = scene.checkpoint()
    assert sent == [30, 3, 30]
    kinds = [frame.chunk.kind for frame in host.log if frame.chunk is not None]
    assert kinds == ["rows", "partials", "rows"]
    assert sum(passed.seen["latency_counts"]) == 90


def test_hot_keys_of_watched_slots_are_reported() -> None:
    source, scene = one_step()
    with scene.running():
        scene.run.guide(Guides((StepGuide("sum", watched=tuple(range(TOTALS.slots))),)))
        source.taps["p0"].give(rows_of(*((7 if n % 2 else n, 1) for n in range(100))))
        wait_for(lambda: sum(totals_of(scene).values()) == 100)
        hot = scene.checkpoint().seen["hot"]
        scene.run.guide(Guides())
        source.taps["p0"].give(rows_of((7, 1)))
        wait_for(lambda: sum(totals_of(scene).values()) == 101)
        assert scene.checkpoint().seen["hot"] == []
    assert max(hot, key=lambda entry: entry["count"])["key"] == "k=7"
    assert max(entry["count"] for entry in hot) == 50


def test_a_guide_that_names_no_slot_of_the_step_is_refused() -> None:
    _, scene = one_step()
    with scene.running():
        scene.run.guide(Guides((StepGuide("sum", watched=(99,)),)))
        (trouble,) = wait_for(lambda: scene.driver.troubles)
    assert isinstance(trouble, ProtocolError)
