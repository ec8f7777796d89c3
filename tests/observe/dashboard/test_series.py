from __future__ import annotations

from dataclasses import replace

from penstock.control.journal.entry import Entry
from penstock.observe.dashboard.series import columns, marks, merged, moves, point_of, thinned
from penstock.observe.dashboard.timeline import Timeline, nearest, page_data, update
from tests.observe.dashboard.burst import START_MS, burst
from tests.observe.made_up import recording


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


def test_an_update_has_the_journal_only_with_news() -> None:
    kept = burst()
    late = kept.journal[-1].time_ms
    assert update(kept.kept[-1:], kept.journal, late)["journal"] is None
    news = update(kept.kept[-2:], kept.journal, late - 1)
    assert len(news["series"]["time_ms"]) == 2
    assert news["journal"][-1]["time_ms"] <= late


def test_the_nearest_moment_is_found() -> None:
    kept = burst(20)
    found = nearest(kept, START_MS + 7_400)
    assert found is not None
    assert found.time_ms == START_MS + 7_000
    far = nearest(kept, START_MS + 900_000)
    assert far is not None
    assert far.time_ms == START_MS + 20_000


def test_the_data_of_a_file_has_every_move() -> None:
    data = page_data(burst())
    assert data["running"] is False
    times = {moment["time_ms"] for moment in data["moments"]}
    assert {move["time_ms"] for move in data["moves"]} <= times
