from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

import pytest

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress
from penstock.model import HostId, StepId
from penstock.observe.dashboard.series import (
    bound_name,
    columns,
    marks,
    marks_by_hand,
    merged,
    moves,
    point_of,
    thinned,
)
from penstock.observe.dashboard.timeline import Follower, Looks, Timeline, page_data
from penstock.observe.moment import Moment, MovesMoment
from penstock.observe.recorder import Recorder
from penstock.plan.placement import Handover, Why
from tests.observe.dashboard.burst import START_MS, Growing, burst, with_bounds
from tests.observe.made_up import FACTS, epoch, look, recording


def test_a_point_has_the_figures_of_its_moment() -> None:
    moment = recording(6, burst=range(4, 6)).kept[3]
    point = point_of(moment)
    assert (point.rate, point.mean_ms, point.bound_ms) == (500.0, 1500.0, 1000)
    assert (point.hosts, point.moved, point.fetched, point.asked) == (3, 1, 5, 1)
    assert (point.read_ms, point.process_ms, point.seal_ms) == (90.0, 60.0, 20.0)


def test_many_points_become_few_and_keep_sums_and_peaks() -> None:
    points = [point_of(moment) for moment in recording(90, burst=range(40, 43)).kept]
    few = thinned(points, 10)
    assert len(few) == 10
    for name in ("rows", "windows", "kept", "moved"):
        assert sum(getattr(p, name) for p in few) == sum(getattr(p, name) for p in points)
    assert max(p.p99_ms or 0 for p in few) == 3000.0
    assert max(p.hosts for p in few) == 3
    assert [p.time_ms for p in few] == sorted(p.time_ms for p in few)
    assert few[-1].time_ms == points[-1].time_ms
    assert thinned(points, 90) == points


def test_a_mean_latency_weighs_rows() -> None:
    slow, quick = (point_of(m) for m in recording(5, burst=range(4, 5)).kept[3:])
    both = merged([slow, quick])
    assert both.mean_ms == (500 * 1500 + 100 * 200) / 600
    assert both.p99_ms == 3000.0


def test_columns_are_averages_of_epochs_and_short_numbers() -> None:
    points = [point_of(moment) for moment in burst(5).kept]
    table = columns(points)
    assert set(map(len, table.values())) == {5}
    assert table["seal_ms"][0] is not None
    assert 20 < table["seal_ms"][0] < 30  # two epochs, 22 to 28 ms each
    assert columns([])["time_ms"] == []
    odd = replace(points[0], time_ms=START_MS + 0.123)
    assert columns([odd])["time_ms"] == [START_MS + 0.123]  # as in the moment itself


def test_treatments_and_lost_hosts_are_marked() -> None:
    kept = burst()
    kinds = [mark["kind"] for mark in marks(kept.journal)]
    assert kinds.count("scale out") == 2
    assert {"scale in", "balance", "host lost", "hot key", "offload"} <= set(kinds)
    both = Entry(
        0.0, 1, "s", "began", "", {"treatments": [{"kind": "scale_out"}, {"kind": "balance"}]}
    )
    assert [mark["kind"] for mark in marks([both])] == ["scale out, balance"]
    assert marks([Entry(0.0, 1, "s", "decided", "")]) == []


def test_splits_and_failures_are_marked() -> None:
    entries = [Entry(0.0, 1, "s", event, "") for event in ("split", "failed", "done")]
    assert [mark["kind"] for mark in marks(entries)] == ["split", "failed"]


def _moved(slots: tuple[int, ...], target: str, why: Why) -> Moment:
    handover = Handover(StepId("clicks"), slots, HostId("clicks/0"), HostId(target), why)
    return replace(burst(1).kept[0], moves=MovesMoment(handovers=(handover,)))


def test_moves_by_hand_are_marked_and_those_of_the_controller_are_not() -> None:
    at_ms, slots = START_MS + 1000, {"clicks": 64}
    began = Entry(
        at_ms - 500,
        1,
        "clicks",
        "began",
        "",
        {"treatments": [{"slots": "0-9", "target": "clicks/1"}]},
    )
    leaves = Entry(at_ms - 500, 1, "clicks", "host leaves", "", {"slots": "20", "by": "clicks/2"})

    def marked(moment: Moment, *entries: Entry) -> list[tuple[str, str]]:
        found = marks_by_hand(moves(moment), entries, slots)
        return [(mark["kind"], mark["text"]) for mark in found]

    by_hand = _moved((3,), "clicks/1", "move")
    assert marked(by_hand) == [("move by hand", "slots 3 to clicks/1")]
    assert marked(by_hand, began) == []
    assert marked(by_hand, replace(began, time_ms=at_ms + 500)) != []
    assert marked(_moved((3, 30), "clicks/1", "scale"), began) == [
        ("scale by hand", "slots 30 to clicks/1")
    ]
    assert marked(_moved((20,), "clicks/2", "move"), leaves) == []
    assert marked(_moved((64,), "clicks/1", "move")) == []  # a part of a split slot
    assert marked(_moved((3,), "clicks/1", "host lost")) == []
    odd = replace(began, facts={"treatments": [{"slots": "many", "target": "clicks/1"}]})
    assert len(marked(by_hand, odd)) == 1


def test_a_timeline_marks_moves_by_hand() -> None:
    whole = burst(1)
    kept = replace(whole, kept=[_moved((3,), "clicks/1", "move")], journal=[])
    assert [mark["kind"] for mark in Timeline(kept).whole()["marks"]] == ["move by hand"]
    assert {mark["kind"] for mark in Timeline(burst()).whole()["marks"]}.isdisjoint(
        {"move by hand", "scale by hand"}
    )


def test_moves_name_slots_and_hosts_in_words() -> None:
    (move,) = moves(recording(5, burst=range(4, 5)).kept[3])
    assert (move["slots"], move["source"], move["target"], move["count"]) == (
        "7", "clicks/0", "clicks/2", 1,
    )  # fmt: skip


def test_a_timeline_shows_a_span_and_the_totals_of_all() -> None:
    kept = burst()
    timeline = Timeline(kept)
    whole = timeline.whole(points=50)
    assert len(whole["series"]["time_ms"]) == 50
    assert len(whole["recent"]["time_ms"]) == 120
    assert whole["totals"]["windows"] == 180
    assert whole["moment"]["time_ms"] == whole["ended_ms"] == kept.kept[-1].time_ms
    last = timeline.whole(from_ms=-20_000)
    assert len(last["series"]["time_ms"]) == 21
    assert last["totals"] == whole["totals"]
    assert timeline.whole(START_MS, START_MS + 10_000)["series"]["time_ms"][-1] == START_MS + 10_000
    assert any("clicks/3" in item["text"] for item in whole["journal"])


def test_news_have_the_journal_only_with_entries() -> None:
    kept = burst()
    before_ms, last_ms = (moment.time_ms for moment in kept.kept[-2:])
    quiet = Follower(Timeline(kept), before_ms).news()
    assert quiet is not None
    assert (quiet["series"]["time_ms"], quiet["journal"]) == ([last_ms], None)
    follower = Follower(Timeline(kept), kept.journal[-1].time_ms - 1)
    news = follower.news()
    assert news is not None
    assert news["journal"][-1]["time_ms"] <= kept.journal[-1].time_ms
    assert follower.news() is None
    assert follower.ended


def test_the_nearest_moment_is_found() -> None:
    timeline = Timeline(burst(20))
    for asked, found in ((7_400, 7_000), (7_600, 8_000), (900_000, 20_000), (-5, 1_000)):
        moment = timeline.nearest(START_MS + asked)
        assert moment is not None
        assert moment.time_ms == START_MS + found


def test_only_the_moment_that_is_looked_at_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(most=40)
    for moment in burst(100).kept:
        looks.add(moment)
    unpacked: list[bytes] = []
    real = codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda data, kind: unpacked.append(data) or real(data, kind)
    )
    newest = [looks.nearest(START_MS + 1000 * second) for second in (99, 100)]
    assert [moment and moment.time_ms for moment in newest] == [
        START_MS + 99_000,
        START_MS + 100_000,
    ]
    assert len(unpacked) == 2
    old = looks.nearest(START_MS + 5_000)  # of the time before, fewer are kept
    assert old is not None
    assert abs(old.time_ms - START_MS - 5_000) < 20_000
    assert Looks().nearest(0.0) is None


def _recorder(begun: int = 0) -> tuple[Recorder, list[float]]:
    """A recorder, and the second that its query is in."""
    now = [float(begun)]

    def epochs() -> list[EpochProgress]:
        return [epoch(int(now[0]), now[0])]

    recorder = Recorder(
        FACTS, lambda: look(now[0]), epochs, list, lambda _: None, lambda: (int(now[0]),) * 2
    )
    return recorder, now


def test_a_timeline_is_fed_though_nobody_looks() -> None:
    recorder, now = _recorder()
    recorder._kept = deque(maxlen=5)  # instead of an hour
    timeline = Timeline(recorder)
    timeline.feed(threading.Event())
    for second in range(1, 31):
        now[0] = second
        recorder.take()
    whole = timeline.whole()
    assert len(whole["series"]["time_ms"]) == 30
    assert (whole["totals"]["windows"], whole["totals"]["rows"]) == (30, 3_000)
    assert whole["totals"]["bounds"] == {"mean": {"windows": 30, "kept": 30}}
    past = timeline.nearest(START_MS + 3_000)
    assert past is not None
    assert past.time_ms == START_MS + 3_000


def test_a_timeline_that_begins_late_has_each_moment_once() -> None:
    recorder, now = _recorder()
    for second in (1, 2):
        now[0] = second
        recorder.take()
    timeline = Timeline(recorder)
    timeline.feed(threading.Event())
    now[0] = 3.0
    recorder.take()
    times = timeline.whole()["series"]["time_ms"]
    assert times == [START_MS + 1000 * second for second in (1, 2, 3)]


def test_totals_are_those_of_the_run_though_old_points_are_dropped() -> None:
    timeline = Timeline(burst(30))
    timeline._points = deque(maxlen=10)
    whole = timeline.whole()
    assert len(whole["series"]["time_ms"]) == 10
    assert whole["totals"]["windows"] == 30
    assert whole["begun_ms"] == START_MS + 1000


def test_a_recording_that_cannot_be_watched_is_read_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.observe.dashboard.timeline._FEED_S", 0.001)
    read, closing = threading.Event(), threading.Event()

    class Remote(Growing):
        def moments(self, since_ms: float = 0.0) -> list[Moment]:
            read.set()
            return super().moments(since_ms)

    Timeline(Remote(burst(5), lambda: 2.0)).feed(closing)
    try:
        assert read.wait(10)
    finally:
        closing.set()


def test_every_bound_has_its_figure_limit_and_success() -> None:
    table = columns([point_of(moment) for moment in with_bounds(burst(70)).kept])
    assert table["limit:mean"][-1] == 1_000
    assert table["limit:p99"][-1] == 1_500
    assert table["limit:mean of clicks"][-1] == 800
    assert table["reached:p99"] == pytest.approx(table["p99_ms"], abs=0.1)
    assert table["reached:mean"] == pytest.approx(table["mean_ms"], abs=0.1)
    missed = [w - k for w, k in zip(table["windows:p99"], table["kept:p99"], strict=True)]  # type: ignore[operator]
    assert sum(missed) > 0
    assert Timeline(with_bounds(burst(70))).whole()["totals"]["bounds"]["p99"]["windows"] == 70


def test_bounds_of_many_points_keep_counts_and_peaks() -> None:
    points = [point_of(moment) for moment in with_bounds(burst(70)).kept]
    both = {bound_name(bound): bound for bound in merged(points).bounds}
    assert both["p99"].windows == 70
    assert both["p99"].reached_ms == pytest.approx(max(p.p99_ms or 0 for p in points), abs=0.1)
    mean = both["mean"].reached_ms
    assert mean is not None
    assert mean == pytest.approx(merged(points).mean_ms, abs=0.1)


def test_a_bound_that_is_set_later_has_no_figures_before() -> None:
    early, late = burst(2).kept[0], with_bounds(burst(2)).kept[1]
    assert columns([point_of(early), point_of(late)])["limit:p99"] == [None, 1_500]


def test_the_data_of_a_file_has_every_move() -> None:
    data = page_data(burst())
    assert data["running"] is False
    times = {moment["time_ms"] for moment in data["moments"]}
    assert {move["time_ms"] for move in data["moves"]} <= times
