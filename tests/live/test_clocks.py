"""Event time of a courier's sources: held back by slow partitions, silent ones, and those of an earlier
run."""

from __future__ import annotations

import pyarrow as pa

from penstock.live.clocks import TOGETHER_MS, UNHEARD_MS, SourceClock, known_partitions
from penstock.live.junction import LaneMark
from penstock.plan.steps import SourcePlan
from penstock.plan.watermarks import FREE, Partition

SCHEMA = pa.schema([("at", pa.timestamp("ms")), ("p", pa.string())])
PLAIN = SourcePlan(SCHEMA, event_time="at")
IDLE = SourcePlan(SCHEMA, event_time="at", idle_ms=100)


def bound(clock: SourceClock, now_ms: int) -> object:
    return clock.mark(now_ms, ended=False, close=False).bound


def test_a_silent_partition_holds_the_others_back_for_a_while() -> None:
    clock = SourceClock(PLAIN, ["a", "b"], {}, started_ms=1_000)
    clock.heard("a", {"": 70}, 1_001)
    assert bound(clock, 1_002) is None
    assert clock.idle_ms == UNHEARD_MS
    assert bound(clock, 1_000 + UNHEARD_MS) == 70
    clock.heard("b", {"": 50}, 9_000)
    assert bound(clock, 9_000) == 50
    assert clock.idle_ms is None


def test_a_courier_without_rows_holds_the_others_back_for_a_while() -> None:
    clock = SourceClock(PLAIN, ["a", "b"], {}, started_ms=1_000)
    assert [bound(clock, 999 + UNHEARD_MS), bound(clock, 1_000 + UNHEARD_MS)] == [None, FREE]
    clock.heard("b", {"": 50}, 9_000)
    assert [bound(clock, now) for now in (9_000, 8_999 + UNHEARD_MS)] == [None, None]
    assert bound(clock, 9_000 + UNHEARD_MS) == 50


def test_when_an_empty_source_fills_couriers_wait_for_each_other() -> None:
    clock = SourceClock(PLAIN, ["a"], {}, started_ms=0, shared=True)
    clock.heard("a", {"": 50}, 9_000)
    assert clock.idle_ms is not None
    assert [bound(clock, now) for now in (9_000, 8_999 + TOGETHER_MS)] == [None, None]
    assert bound(clock, 9_000 + TOGETHER_MS) == 50
    assert clock.idle_ms is None
    at_once = SourceClock(PLAIN, ["a"], {}, started_ms=0, shared=True)
    at_once.heard("a", {"": 50}, 10)
    assert bound(at_once, 10) == 50


def test_event_times_from_before_the_run_count_for_own_partitions_only() -> None:
    rows = [[0, "a", 300, 5], [0, "z", 100, 5], [1, "b", 1, 5]]
    known = known_partitions(rows, 0, PLAIN, ["a", "b"])
    assert known == {"a": Partition(300, 5)}
    clock = SourceClock(PLAIN, ["a"], known, started_ms=10)
    assert bound(clock, 11) == 300


def test_partitions_that_rows_name_are_kept_by_those_names() -> None:
    clock = SourceClock(PLAIN, ["topic-0"], {}, started_ms=0)
    assert clock.heard("topic-0", {"x": 9, "y": 4}, 1) == {"x": 9, "y": 4}
    assert bound(clock, 2) == 4


def test_idle_partitions_are_ignored_and_if_all_are_idle_nothing_is_held_back() -> None:
    clock = SourceClock(IDLE, ["a", "b"], {}, started_ms=0)
    clock.heard("a", {"": 10}, 50)
    clock.heard("b", {"": 5}, 10)
    assert [bound(clock, now) for now in (109, 110, 150)] == [5, 10, FREE]


def test_the_end_is_final_only_if_windows_are_to_close() -> None:
    clock = SourceClock(PLAIN, ["a"], {}, started_ms=0)
    assert clock.mark(1, ended=True, close=False) == LaneMark(FREE)
    assert clock.mark(1, ended=True, close=True) == LaneMark(FREE, final=True)
    assert SourceClock(PLAIN, [], {}, 0).mark(1, ended=False, close=True) == LaneMark(
        FREE, final=True
    )
