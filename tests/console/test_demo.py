"""The demo: its meter and display alone, then the whole demo in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from rich.console import Console

from penstock.console.demo.display import draw, line
from penstock.console.demo.meter import DemoMeter
from penstock.console.demo.steady import Totals, keys_and_values, rows_taken
from penstock.driver.progress import EpochProgress, HostProgress, Latency
from penstock.model import SLA

BOUND = SLA(latency_ms=1000, window_ms=1000)


def epoch(number: int, rows: int = 100, latency_ms: float = 50.0) -> EpochProgress:
    """The progress of one epoch; epochs follow each other every 200 ms."""
    latency = Latency(latency_ms, latency_ms, latency_ms * 2) if rows else None
    hosts = tuple(HostProgress(f"sum/{n}", 5, 2048, rows // 2, useful_ms=20.0) for n in range(2))
    return EpochProgress(
        epoch=number,
        runs=1,
        rows=rows,
        partitions=2,
        started_ms=1_000_000 + 200 * number,
        sink_ms=200.0,
        seal_ms=0.0,
        latency=latency,
        watermark_ms=None,
        dead_letters=0,
        hosts=hosts,
    )


def test_meter_reads_the_last_second() -> None:
    meter = DemoMeter(BOUND)
    meter.take([epoch(n, latency_ms=900.0 if n < 5 else 100.0) for n in range(20)])
    reading = meter.reading()
    assert reading is not None
    assert (reading.epoch, reading.rows) == (19, 2000)
    assert reading.rows_per_second == 500
    assert reading.latency == Latency(100.0, 100.0, 200.0)
    assert reading.worst_ms == 900.0
    assert [host.busy for host in reading.hosts] == [0.1, 0.1]
    assert [host.taken for host in reading.hosts] == [1000, 1000]
    assert len(reading.history_ms) == 9


def test_meter_takes_each_epoch_once() -> None:
    meter = DemoMeter(BOUND)
    for n in range(10):
        meter.take([epoch(m) for m in range(n + 1)])
    reading = meter.reading()
    assert reading is not None
    assert reading.rows == 1000


def test_meter_weights_by_rows() -> None:
    meter = DemoMeter(BOUND)
    meter.take([epoch(0, 300, 100.0), epoch(1, 100, 500.0), epoch(2, 0)])
    reading = meter.reading()
    assert reading is not None
    assert reading.latency == Latency(200.0, 100.0, 1000.0)
    assert reading.worst_ms == 200.0


def test_meter_without_rows() -> None:
    meter = DemoMeter(BOUND)
    assert meter.reading() is None
    meter.take([epoch(0, rows=0)])
    reading = meter.reading()
    assert reading is not None
    assert reading.latency is None


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("latency_ms", [50.0, 700.0, 4000.0])
def test_display_at_any_width(width: int, latency_ms: float) -> None:
    meter = DemoMeter(BOUND)
    meter.take([epoch(n, latency_ms=latency_ms) for n in range(400)])
    reading = meter.reading()
    assert reading is not None
    console = Console(width=width)
    with console.capture() as capture:
        pids = {"sum/0": 11, "sum/1": 12}
        console.print(draw("title", reading, BOUND, 12.0, 30, pids, console.width))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    assert ("kept" if latency_ms <= 1000 else "missed") in text
    assert "sum/1" in text


def test_line() -> None:
    meter = DemoMeter(BOUND)
    meter.take([epoch(n) for n in range(10)])
    reading = meter.reading()
    assert reading is not None
    assert line(reading, BOUND, 2.0) == (
        "   2 s  epoch 9, 1,000 rows, 500 rows/s, latency p50 50 ms, p99 100 ms, "
        "average 50 of 1,000 ms"
    )


def test_totals_are_compared_with_the_rows_that_arrived() -> None:
    totals = Totals(keys=10)
    k, v = keys_and_values(np.arange(1000), 10)
    np.add.at(totals.sums, k, v)
    np.add.at(totals.counts, k, 1)
    assert totals.faults([range(1000)]) == ""
    assert "1,000 rows were counted, 999 arrived" in totals.faults([range(999)])
    totals.sums[3] += 1
    assert totals.faults([range(1000)]).startswith("1 of 10 keys")


def test_live_rows_are_checked_by_partition() -> None:
    """Each partition has every second row, and one is ahead of the other. Of several rows of a key, the one
    with the highest count wins, in any order."""
    numbers = [range(0, 8, 2), range(1, 7, 2)]
    totals, keys = Totals(keys=4), [keys_and_values(np.array(part), 4)[0] for part in numbers]
    k = np.concatenate(keys)
    v = np.concatenate([np.array(part) % 1000 for part in numbers])
    rows = [{"k": i, "total": int(v[k == i].sum()), "n": int((k == i).sum())} for i in range(4)]
    rows = [row for row in rows if row["n"]]
    early = [{"k": row["k"], "total": 0, "n": 0} for row in rows]
    totals.take(pa.Table.from_pylist([*rows, *early]))
    totals.take(pa.Table.from_pylist(early))
    assert totals.faults(numbers) == ""
    assert totals.faults([range(8)]) != ""


def test_rows_taken_are_those_of_sparks_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text('v1\n{"batchTimestampMs":1}\n{"row": 812}')
    assert rows_taken(tmp_path, 4) == [range(812)]
    assert rows_taken(tmp_path, -1) == []


# -- the whole demo


@dataclass
class Demo:
    """A demo in a process and a temporary folder of its own."""

    process: subprocess.Popen[str]
    folder: Path

    @staticmethod
    def start(folder: Path, seconds: int, *options: str) -> Demo:
        # Spark starts faster if the JVM does not optimise code.
        environ = {"TMPDIR": str(folder), "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
        load = ["--seconds", str(seconds), "--rate", "2000", "--keys", "500", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "demo", *load],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environ,
            start_new_session=True,
        )
        return Demo(process, folder)

    def end(self) -> tuple[str, str]:
        """Wait until it has ended; returns its output."""
        return self.process.communicate(timeout=240)

    def left_over(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name.startswith("penstock-")]


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Demo, Demo]]:
    """One demo that runs to its end and one to be interrupted, in parallel to save time."""
    short = Demo.start(tmp_path_factory.mktemp("short"), seconds=4)
    long = Demo.start(tmp_path_factory.mktemp("long"), seconds=200)
    yield short, long
    for demo in (short, long):
        if demo.process.poll() is None:
            demo.process.kill()


def test_ctrl_c_leaves_nothing(demos: tuple[Demo, Demo]) -> None:
    _, demo = demos
    assert demo.process.stdout is not None
    for text in demo.process.stdout:
        if "rows/s, latency" in text:
            break
    children = psutil.Process(demo.process.pid).children(recursive=True)
    assert len(children) >= 4  # the JVM, Python's daemon, two hosts
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    out, err = demo.end()
    assert demo.process.returncode == 130, out + err
    assert "Traceback" not in out + err
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert demo.left_over() == []


def test_live_demo_runs_and_is_exact(tmp_path: Path) -> None:
    demo = Demo.start(tmp_path, 4, "--live")
    out, err = demo.end()
    assert demo.process.returncode == 0, out + err
    assert "live, for 4 s: 500 rows/s, bursts of 2,000 rows/s for 2 s of every 10 s" in out
    assert re.search(r"^exactly once: 500 keys, [\d,]+ rows, all sums are correct$", out, re.M), out
    assert re.search(
        r"^\d+ slots? moved to other hosts while the flow ran; it ended with \d host", out, re.M
    ), out
    assert re.search(r" of 100 ms$", out, re.M)
    assert all(" INFO penstock." in line for line in err.splitlines()), err
    assert demo.left_over() == []


def test_demo_runs_and_is_exact(demos: tuple[Demo, Demo]) -> None:
    demo, _ = demos
    out, err = demo.end()
    assert demo.process.returncode == 0, out + err
    assert re.search(r"^exactly once: 500 keys, [\d,]+ rows, all sums are correct$", out, re.M), out
    assert all(" INFO penstock." in line for line in err.splitlines()), err
    assert demo.left_over() == []
