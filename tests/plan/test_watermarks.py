"""Watermarks: a fast partition makes no row of another late, and an idle one does not hold others back."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.watermarks import (
    FREE,
    Bound,
    Known,
    Partition,
    SourceTime,
    advance,
    known_from,
    known_rows,
    source_watermarks,
    step_watermarks,
    watermark_of,
)

WHOLE = SourceTime(delay_ms=10, idle_ms=None, by_partition=False)
TOPIC = SourceTime(delay_ms=10, idle_ms=100, by_partition=True)


def bound(source: SourceTime, known: Known, now_ms: int, started_ms: int = 0) -> Bound:
    return source_watermarks((source,), known, now_ms, started_ms)[0]


def test_without_partitions_the_newest_row_of_all_decides() -> None:
    known = advance((WHOLE,), {}, [(0, "", 50), (0, "", 70), (0, "", 60)], now_ms=1)
    assert known == {(0, ""): Partition(70, 1)}
    assert bound(WHOLE, known, now_ms=10**9) == 60
    known = advance((WHOLE,), known, [(0, "", 20)], now_ms=2)
    assert bound(WHOLE, known, now_ms=2) == 60


def test_the_slowest_partition_decides_until_it_is_idle() -> None:
    known = advance((TOPIC,), {}, [(0, "a", 500), (0, "b", 50)], now_ms=0)
    known = advance((TOPIC,), known, [(0, "a", 900)], now_ms=99)
    assert bound(TOPIC, known, now_ms=99) == 40
    assert bound(TOPIC, known, now_ms=100) == 890
    known = advance((TOPIC,), known, [(0, "b", 60)], now_ms=150)
    assert bound(TOPIC, known, now_ms=150) == 50, "an active partition counts again"


def test_a_partition_is_never_idle_without_a_limit() -> None:
    topic = SourceTime(0, None, by_partition=True)
    known = advance((topic,), {}, [(0, "a", 5), (0, "b", 9)], now_ms=0)
    assert bound(topic, known, now_ms=10**12) == 5
    assert bound(topic, {}, now_ms=10**12) is None


def test_all_idle_leaves_the_watermark_where_it_is() -> None:
    known = advance((TOPIC,), {}, [(0, "a", 500)], now_ms=0)
    assert bound(TOPIC, known, now_ms=100) is FREE
    assert step_watermarks((("s", (0,)),), (FREE,), {"s": 490}) == {"s": 490}
    assert step_watermarks((("s", (0,)),), (FREE,), {"s": None}) == {"s": None}


def test_downtime_of_the_query_is_not_idle_time() -> None:
    known = advance((TOPIC,), {}, [(0, "a", 500), (0, "b", 50)], now_ms=0)
    assert bound(TOPIC, known, now_ms=10_050, started_ms=10_000) == 40
    assert bound(TOPIC, known, now_ms=10_100, started_ms=10_000) is FREE


def test_an_input_without_rows_holds_a_join_back_until_it_is_idle() -> None:
    sources = (TOPIC, TOPIC)
    known = advance(sources, {}, [(0, "a", 500)], now_ms=90)
    graph = (("join", (0, 1)),)
    early = source_watermarks(sources, known, now_ms=99, started_ms=0)
    assert early == (490, None)
    assert step_watermarks(graph, early, {"join": None}) == {"join": None}
    later = source_watermarks(sources, known, now_ms=100, started_ms=0)
    assert later == (490, FREE)
    assert step_watermarks(graph, later, {"join": None}) == {"join": 490}


def test_an_input_without_event_time_is_ignored() -> None:
    sources = (WHOLE, None)
    known = advance(sources, {}, [(0, "", 500), (1, "", 7)], now_ms=0)
    assert set(known) == {(0, "")}
    bounds = source_watermarks(sources, known, 0, 0)
    graph = (("count", (1,)), ("join", (0, 1)), ("both", (0, "count")), ("next", ("count",)))
    before: dict[str, int | None] = dict.fromkeys(["count", "join", "both", "next"])
    watermarks = step_watermarks(graph, bounds, before)
    assert watermarks == {"count": None, "join": 490, "both": 490, "next": None}


def test_a_step_lags_the_step_it_reads_by_one_epoch() -> None:
    graph = (("a", (0,)), ("b", ("a",)), ("c", ("b", 0)))
    marks: dict[str, int | None] = {"a": None, "b": None, "c": None}
    history = []
    for ahead in (10, 20, 30):
        marks = step_watermarks(graph, (ahead,), marks)
        history.append(tuple(marks.values()))
    assert history == [(10, None, None), (20, 10, None), (30, 20, 10)]


def test_idleness_propagates_through_steps() -> None:
    graph = (("a", (0,)), ("join", ("a", 1)))
    assert step_watermarks(graph, (FREE, 90), {"a": 10, "join": 10}) == {"a": 10, "join": 90}
    assert step_watermarks(graph, (None, 90), {"a": 10, "join": 10}) == {"a": 10, "join": 10}


def test_partitions_that_the_flow_no_longer_has_are_dropped() -> None:
    known = {(0, ""): Partition(1, 0), (0, "p"): Partition(2, 0), (1, ""): Partition(3, 0)}
    assert set(advance((TOPIC,), known, [], 0)) == {(0, "p")}
    assert set(advance((WHOLE,), known, [], 0)) == {(0, "")}
    assert set(advance((None, WHOLE), known, [], 0)) == {(1, "")}


source_times = st.builds(
    SourceTime, st.integers(0, 20), st.none() | st.integers(1, 60), st.booleans()
)
sources_of = st.lists(st.none() | source_times, min_size=1, max_size=3).map(tuple)


@st.composite
def graphs(draw: st.DrawFn, inputs: int) -> Any:
    steps: list[tuple[str, tuple[int | str, ...]]] = []
    for number in range(draw(st.integers(1, 4))):
        readable = [*range(inputs), *(step for step, _ in steps)]
        reads = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
        steps.append((f"s{number}", tuple(reads)))
    return tuple(steps)


@settings(max_examples=200)
@given(st.data())
def test_laws(data: st.DataObject) -> None:
    """A watermark never goes back, is never ahead of an active partition, and finally reaches the newest
    rows."""
    sources = data.draw(sources_of)
    graph = data.draw(graphs(len(sources)))
    event = st.tuples(
        st.integers(0, len(sources) - 1), st.sampled_from(["p", "q"]), st.integers(-50, 500)
    )
    marks: dict[str, int | None] = {step: None for step, _ in graph}
    known: Known = {}
    newest: dict[tuple[int, str], list[int]] = {}
    now_ms = 0
    for events in data.draw(st.lists(st.lists(event, max_size=4), max_size=8)):
        now_ms += data.draw(st.integers(0, 40))
        before_known = dict(known)
        after = advance(sources, known, events, now_ms)
        assert known == before_known, "advance is pure"
        known = known_from(json.loads(json.dumps(known_rows(after))))
        assert known == after
        for number, name, time in events:
            source = sources[number]
            if source is not None:
                place = (number, name if source.by_partition else "")
                newest.setdefault(place, []).append(time)
        assert {place: part.newest_ms for place, part in known.items()} == {
            place: max(times) for place, times in newest.items()
        }
        bounds = source_watermarks(sources, known, now_ms, started_ms=0)
        for number, (source, limit) in enumerate(zip(sources, bounds, strict=True)):
            parts = [part for (of, _), part in known.items() if of == number]
            check_source(source, parts, limit, now_ms)
        after_marks = step_watermarks(graph, bounds, marks)
        check_steps(graph, bounds, marks, after_marks)
        marks = after_marks


def check_source(
    source: SourceTime | None, parts: list[Partition], limit: Bound, now_ms: int
) -> None:
    if source is None:
        assert limit is FREE
        return
    awake = [
        part
        for part in parts
        if source.idle_ms is None or now_ms - part.last_seen_ms < source.idle_ms
    ]
    if isinstance(limit, int):
        assert awake
        assert limit == min(part.newest_ms for part in awake) - source.delay_ms
    elif limit is None:
        assert not parts
    else:
        assert not awake
        assert source.idle_ms is not None
    assert watermark_of(source, parts, now_ms, 0) == limit


def check_steps(
    graph: Any, bounds: tuple[Bound, ...], before: dict[str, int | None], after: Any
) -> None:
    assert set(after) == {step for step, _ in graph}
    for step, reads in graph:
        old, new = before[step], after[step]
        assert old is None or (new is not None and new >= old)
        if new == old:
            continue
        for limit in (bounds[read] for read in reads if isinstance(read, int)):
            if limit is not FREE:
                assert isinstance(limit, int)
                assert new <= limit


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.integers(1, 19))
def test_how_rows_are_split_among_reports_does_not_matter(times: list[int], cut: int) -> None:
    seen = [(0, "pq"[time % 2], time) for time in times]
    at_once = advance((TOPIC,), {}, seen, now_ms=5)
    in_parts = advance((TOPIC,), advance((TOPIC,), {}, seen[:cut], 5), seen[cut:], 5)
    assert at_once == in_parts == advance((TOPIC,), {}, reversed(seen), now_ms=5)
