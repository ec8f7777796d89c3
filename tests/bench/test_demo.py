"""The demo: its story, check, verdict and display alone, then the whole demo in a process of its own."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pyarrow as pa
import pytest
from rich.console import Console

from penstock.driver.progress import EpochProgress
from penstock.errors import SettingError
from penstock.observe.moment import Moment
from penstock.sim.skews import Uniform
from penstock.testing import ProcessorTester
from penstock_bench.demo import telling
from penstock_bench.demo.bids import SLOTS, Bids, source
from penstock_bench.demo.check import BidsRead, Checked, check, compared, waiting_ms
from penstock_bench.demo.display import Scene, draw, line
from penstock_bench.demo.phases import Story
from penstock_bench.demo.run import make_room
from penstock_bench.demo.screening import ScreenedBids
from penstock_bench.demo.telling import Demo as DemoOptions
from penstock_bench.demo.telling import Show, conclude
from penstock_bench.demo.verdict import Judged, Killed, exit_code, judged, silent_ms
from penstock_bench.workloads.shaped import KeyedRows
from tests.observe.made_up import SLA_1S, START_MS, epoch, recording

STORY = Story(90, 100)


# -- the story


def test_phases_scale_with_the_length() -> None:
    assert [phase.name for phase in STORY.phases] == [
        "warm-up", "steady", "hotspot", "burst", "calm", "kill",
    ]  # fmt: skip
    assert STORY.phases[-1].end_s == pytest.approx(90)
    for half, whole in zip(Story(45, 100).phases[1:], STORY.phases[1:], strict=True):
        assert half.end_s == pytest.approx(whole.end_s / 2)


def test_the_burst_is_five_times_the_rate() -> None:
    burst = STORY.phase("burst")
    rates = STORY.arrivals.rate_at([burst.begin_s - 0.1, burst.begin_s, burst.end_s])
    assert rates.tolist() == [100.0, 500.0, 100.0]


def test_a_host_is_killed_within_its_phase() -> None:
    assert STORY.at(STORY.kill_s).name == "kill"


def busiest_quarter(begin_s: float, end_s: float) -> tuple[int, float]:
    """The quarter of the slots with the most bids between two times, and its share of them."""
    number = np.arange(2_000, dtype=np.int64)
    t_us = np.linspace(begin_s * 1e6, end_s * 1e6 - 1, len(number)).astype(np.int64)
    auction, _, _ = Bids(STORY, 2_000).rows(number, t_us)
    slots = KeyedRows(2_000, Uniform(), SLOTS).slots_of(auction.to_numpy())
    counts = np.bincount(slots // (SLOTS // 4), minlength=4)
    return int(counts.argmax()), float(counts.max() / len(number))


def test_the_hotspot_comes_moves_and_goes() -> None:
    hotspot = STORY.phase("hotspot")
    third_s = (hotspot.end_s - hotspot.begin_s) / 3
    places = []
    for n in range(3):
        begin_s = hotspot.begin_s + n * third_s
        quarter, share = busiest_quarter(begin_s, begin_s + third_s)
        assert share > 0.85
        places.append(quarter)
    assert len(set(places)) == 3
    assert busiest_quarter(0, hotspot.begin_s)[1] < 0.3
    assert busiest_quarter(hotspot.end_s, 90)[1] < 0.3


# -- the check


def bids_of(auctions: list[int], prices: list[int]) -> pa.Table:
    return pa.table({"auction": pa.array(auctions), "price": pa.array(prices)})


def output_of(*rows: tuple[int, int, int, int]) -> pa.Table:
    names = ("auction", "bids", "highest", "total")
    return pa.table(dict(zip(names, map(pa.array, zip(*rows, strict=True)), strict=True)))


BIDS = bids_of([1, 1, 2], [5, 7, 9])


def test_an_answer_is_right_in_any_order_of_its_rows() -> None:
    early, late = output_of((1, 1, 5, 5)), output_of((2, 1, 9, 9), (1, 2, 7, 12))
    for output in ([early, late], [late, early], [late, early, late]):
        checked = compared(BIDS, output)
        assert (checked.wrong, checked.auctions, checked.bids) == (0, 2, 3)
    assert str(checked).startswith("Exactly once")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((1, 3, 7, 12), id="a bid counted twice"),
        pytest.param((1, 1, 5, 5), id="a lost bid"),
        pytest.param((1, 2, 8, 12), id="another highest price"),
        pytest.param((1, 2, 7, 13), id="another sum"),
        pytest.param((3, 1, 1, 1), id="another auction"),
    ],
)
def test_a_wrong_answer_is_found(row: tuple[int, int, int, int]) -> None:
    checked = compared(BIDS, [output_of((2, 1, 9, 9), row)])
    assert checked.wrong
    assert str(checked).startswith("Wrong answer")


def test_no_output_is_wrong_if_there_were_bids() -> None:
    assert compared(BIDS, []).wrong == 2


def test_the_processor_gives_duckdbs_answer(tmp_path: Path) -> None:
    """Over the bids of two partitions, of which one was read further than the other."""
    made = source(STORY, 500, tmp_path / "gate")
    read = BidsRead((range(0, 60, 2), range(1, 41, 2)), start_ms=0)
    columns = "auction long, bidder long, price long"
    tester = ProcessorTester(ScreenedBids(), columns, key="auction")
    batches = [made.made(np.array(numbers), 0) for numbers in read.numbers]
    rows = [row for b in batches for row in b.drop_columns(["arrival"]).to_pylist()]
    output = output_of(*tester.feed(rows))
    assert check(made, read, [output]).wrong == 0
    assert check(made, replace(read, numbers=(range(60),)), [output]).wrong > 0


# -- the verdict


def moments(seconds: int) -> list[Moment]:
    return list(recording(seconds).kept)


def test_windows_of_the_warm_up_do_not_count() -> None:
    recorded = moments(10)
    begin_ms = recorded[3].time_ms
    after = judged(recorded, SLA_1S, begin_ms)
    assert after.windows == sum(moment.windows for moment in recorded[5:])
    assert after.met
    assert not judged(recorded, SLA_1S, recorded[-1].time_ms).met  # nothing was judged


def test_the_oldest_bid_that_was_not_read_tells_how_long_bids_waited(tmp_path: Path) -> None:
    """Of two partitions, one was read further than the other."""
    made = source(STORY, 500, tmp_path / "gate")  # 25 bids/s at first
    read = BidsRead((range(0, 60, 2), range(1, 41, 2)), start_ms=0)
    made.begin(1_000)
    assert waiting_ms(made, read, 5_000) == pytest.approx(4_000 - 42 * 40)
    assert waiting_ms(made, read, 2_000) == 0
    assert waiting_ms(made, BidsRead((), 0), 5_000) == pytest.approx(4_000 - 40)


def test_one_missed_window_misses_the_sla() -> None:
    recorded = moments(10)
    recorded[7] = replace(recorded[7], windows=2, kept=1)
    assert not judged(recorded, SLA_1S, recorded[0].time_ms).met


@pytest.mark.parametrize(
    ("waiting_ms", "missed"), [(0, 0), (1_000, 0), (1_001, 1), (2_000, 1), (4_500, 4)]
)
def test_bids_without_output_at_the_end_miss_windows(waiting_ms: float, missed: int) -> None:
    """The query's own meter judges nothing before there is output again."""
    recorded = moments(10)
    result = judged(recorded, SLA_1S, recorded[0].time_ms, waiting_ms)
    assert result.windows - result.kept == missed
    assert result.met == (missed == 0)


def test_silence_counts_from_the_last_bids_that_were_done() -> None:
    silent_epoch = epoch(3, 9.0, rows=0)
    epochs = [epoch(1, 1.9), epoch(2, 2.8), silent_epoch]
    assert silent_ms(epochs, START_MS, START_MS + 6_000) == pytest.approx(3_200, abs=1)
    assert silent_ms([], START_MS, START_MS + 6_000) == 6_000


@pytest.mark.parametrize(
    ("right", "met", "recovery_s", "code"),
    [
        *((True, True, 0.7, 0), (True, False, 0.7, 3), (True, True, None, 3)),
        *((False, True, 0.7, 1), (False, False, None, 1)),
    ],
)
def test_only_a_right_answer_in_time_with_a_recovery_is_a_success(
    right: bool, met: bool, recovery_s: float | None, code: int
) -> None:
    assert exit_code(right, met, recovery_s) == code


def shown_end(result: Judged, killed: Killed | None, recovery_s: float | None, to: Path) -> str:
    console = Console(width=200)
    demo = DemoOptions(STORY, 2_000, 12, SLA_1S, to, opens=False)
    with console.capture() as capture:
        conclude(console, demo, Checked(10, 2, 0), result, killed, recovery_s)
    return capture.get()


def test_the_end_names_what_is_missing(tmp_path: Path) -> None:
    recorded = moments(10)
    stalled = judged(recorded, SLA_1S, recorded[0].time_ms, 4_500)
    text = shown_end(stalled, None, None, tmp_path)
    assert "SLA missed" in text
    assert "bids had waited for 4.5 s" in text
    assert "No host was killed" in text
    text = shown_end(replace(stalled, waiting_ms=10.0), Killed("a/0", 1, START_MS), None, tmp_path)
    assert "had waited" not in text
    assert "a/0, whose work was not done again" in text


def test_recovery_ends_with_the_epoch_that_is_run_again() -> None:
    killed = Killed("a/0", 1, START_MS + 2_000)
    before, again, after = epoch(1, 1.9), epoch(2, 2.8, runs=2), epoch(3, 3.3)
    assert killed.recovery_s([before]) is None
    assert killed.recovery_s([before, again, after]) == pytest.approx(0.8)


# -- the display


def scene(recorded: list[Moment]) -> Scene:
    result = judged(recorded, SLA_1S, START_MS)
    return Scene(12.0, 90, STORY.at(12.0), SLA_1S, recorded, result, "http://x/")


def drawn(shown: Scene, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(draw(shown, console.width))
    return capture.get()


@pytest.mark.parametrize("wait_ms", [300.0, 12_000.0], ids=["flows", "stalled"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_panel_fits_any_width(width: int, wait_ms: float) -> None:
    text = drawn(replace(scene(moments(10)), waiting_ms=wait_ms), width)
    assert max(map(len, text.splitlines())) <= width
    assert "clicks/0" in text
    assert "kept" in text


def test_a_line_has_rate_hosts_latency_and_sla() -> None:
    text = line(scene(moments(10)))
    assert re.search(r"^   12 s  [\d,]+ bids/s, 2 hosts, latency p50 200 ms, p99 400 ms", text), (
        text
    )
    assert text.endswith("average 200 of 1,000 ms; SLA kept in 8 of 8 windows")
    assert line(scene([])).endswith("waiting for the first bids")


def test_a_stall_shows_how_long_bids_wait() -> None:
    stalled = replace(scene(moments(10)), waiting_ms=3_400.0)
    text = line(stalled)
    assert "bids wait for 3.4 s, the bound is 1,000 ms; 40 bids waiting" in text
    assert text.endswith("bids wait too long now")
    assert "average" not in text  # that of the last bids tells nothing
    panel = drawn(stalled, 92)
    assert "3,400 ms of 1,000 ms" in panel
    assert "bids wait too long now" in panel


def test_a_short_silence_is_no_stall() -> None:
    text = line(replace(scene(moments(10)), waiting_ms=700.0))
    assert "average 200 of 1,000 ms" in text
    assert "wait" not in text


# -- telling


class NeverDone:
    """A query that is up, and of which no bid is ever done."""

    is_active, dashboard_url = True, None
    progress: tuple[EpochProgress, ...] = ()
    status = SimpleNamespace(hosts={})

    def __init__(self) -> None:
        self.recording = recording(1)  # a moment in which 40 bids wait


def test_a_stall_is_told_once_and_ends_the_story_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(START_MS / 1000, 0.05)
    monkeypatch.setattr(telling, "time", SimpleNamespace(time=lambda: next(clock)))
    monkeypatch.setattr(telling, "_FRAME_S", 0.0)
    demo = DemoOptions(Story(4, 100), 2_000, 12, SLA_1S, tmp_path, opens=False)
    bids = source(demo.story, demo.auctions, tmp_path / "gate")
    bids.begin(round(START_MS - 1000 * demo.story.warm_up_s))
    console = Console(width=200)
    with console.capture() as capture:
        killed = Show(console, demo, cast(Any, NeverDone()), bids).watch()
    assert killed is None
    assert capture.get().count("longer than the bound") == 1
    # 4 s, and then the bound, a window and 2 s for the last bids.
    assert next(clock) == pytest.approx(START_MS / 1000 + 8, abs=0.6)


# -- the output folder


def test_an_earlier_demos_folder_is_replaced_and_another_is_not(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    for _ in range(2):  # a new folder, and that of an earlier demo
        make_room(output)
        assert [path.name for path in output.iterdir()] == [".penstock-demo"]
        (output / "checkpoint").mkdir()
    (output / "thesis.tex").touch()
    with pytest.raises(SettingError, match=r"thesis\.tex"):
        make_room(output)
    assert (output / "checkpoint").is_dir()


@pytest.mark.parametrize("name", ["checkpoint", "report.html", "log.txt"])
def test_a_folder_that_no_demo_made_is_never_removed(name: str, tmp_path: Path) -> None:
    """A checkpoint of a flow of the user's own, for example."""
    kept = tmp_path / "out" / name / "state"
    kept.mkdir(parents=True)
    with pytest.raises(SettingError, match=r"was not made by a demo.*--output"):
        make_room(tmp_path / "out")
    assert kept.is_dir()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    make_room(tmp_path)
    assert (tmp_path / ".penstock-demo").is_file()


# -- the whole demo


@dataclass
class Demo:
    """A demo in a process and a temporary folder of its own."""

    process: subprocess.Popen[str]
    folder: Path

    @staticmethod
    def start(folder: Path, seconds: int, sla: str, before: str = "") -> Demo:
        """Start a demo after the Python code `before`."""
        # Spark starts faster if the JVM does not optimise code.
        environ = {"TMPDIR": str(folder), "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
        words = f"demo --seconds {seconds} --rate 60 --keys 500 --hosts 3 --live --no-open".split()
        words += ["--sla", sla, "--output", str(folder / "out")]
        code = f"{before}\nfrom penstock.cli.app import main\nmain({words!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environ,
            start_new_session=True,
        )
        return Demo(process, folder)

    def end(self) -> str:
        """Wait until it has ended; returns its output."""
        out, err = self.process.communicate(timeout=240)
        return out + err

    def left_over(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name.startswith("penstock-")]


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Demo, Demo]]:
    """One demo that runs to its end and one to be interrupted, in parallel to save time."""
    short = Demo.start(tmp_path_factory.mktemp("short"), 8, "60s")
    long = Demo.start(tmp_path_factory.mktemp("long"), 200, "60s")
    yield short, long
    for demo in (short, long):
        if demo.process.poll() is None:
            demo.process.kill()


def test_ctrl_c_leaves_nothing(demos: tuple[Demo, Demo]) -> None:
    _, demo = demos
    assert demo.process.stdout is not None
    for text in demo.process.stdout:
        if " hosts, latency " in text:
            break
    children = psutil.Process(demo.process.pid).children(recursive=True)
    assert len(children) >= 5  # the JVM, Python's daemon, three hosts
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    text = demo.end()
    assert demo.process.returncode == 130, text
    assert "Traceback" not in text
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert demo.left_over() == []
    assert not (demo.folder / "out").exists()


def test_the_demo_tells_its_story_and_is_exact(demos: tuple[Demo, Demo]) -> None:
    demo, _ = demos
    text = demo.end()
    assert demo.process.returncode == 0, text
    titles = [phase.title for phase in Story(8, 60).phases]
    assert [line for line in text.splitlines() if line in titles] == titles
    assert re.search(r"^Dashboard: http://127\.0\.0\.1:\d+", text, re.M), text
    assert re.search(r"^Exactly once: .* of [\d,]+ bids are the same as DuckDB's", text, re.M)
    assert re.search(r"^SLA met: kept in (\d+) of \1 windows", text, re.M), text
    assert re.search(r"^Killed host: auctions/\d, recovered after [\d.]+ s\.$", text, re.M), text
    assert {path.name for path in (demo.folder / "out").iterdir()} == {
        ".penstock-demo", "checkpoint", "log.txt", "report.html",
    }  # fmt: skip
    assert demo.left_over() == []


_LOSES_A_BID = """
import penstock_bench.demo.run as run
from dataclasses import replace
read = run.bids_read
run.bids_read = lambda store: replace(read(store), numbers=[n[:-1] for n in read(store).numbers])
"""


def test_a_wrong_answer_and_a_missed_sla_have_their_exit_codes(tmp_path: Path) -> None:
    for name in ("wrong", "missed"):
        (tmp_path / name).mkdir()
    wrong = Demo.start(tmp_path / "wrong", 4, "60s", before=_LOSES_A_BID)
    missed = Demo.start(tmp_path / "missed", 4, "1ms")
    text = wrong.end()
    assert wrong.process.returncode == 1, text
    assert "Wrong answer: another one than DuckDB's for" in text
    text = missed.end()
    assert missed.process.returncode == 3, text
    assert "SLA missed: kept in 0 of" in text
    assert "Exactly once" in text
