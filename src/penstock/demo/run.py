"""The demo from its start to its verdict."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

import penstock as ps
from penstock.demo.display import draw, line
from penstock.demo.exact import Totals, rows_taken
from penstock.demo.meter import Meter
from penstock.demo.quiet import quiet_spark
from penstock.model import SLA
from penstock.workloads.steady import steady

_SLA = SLA(latency_ms=1000, window_ms=1000)
_LEAD_MS = 4000
"""Rows begin to arrive so long after the start: until then hosts come up."""
_FRAME_S = 0.25
_LINE_S = 2.0
"""Between two lines, where there is no terminal to draw on."""


@dataclass(frozen=True)
class Load:
    """What the demo runs."""

    seconds: int
    rate: int
    """Rows a second."""
    keys: int
    hosts: int

    def __str__(self) -> str:
        hosts = f"{self.hosts} hosts" if self.hosts > 1 else "1 host"
        return f"{self.rate:,} rows/s, {self.keys:,} keys, {hosts}"


def run(load: Load) -> bool:
    """Run to the end and tell whether the result is exact. Nothing is left behind, also on Ctrl-C."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Starting Spark and a keyed sum for {load.seconds} s: {load}.")
    console.print("Spark takes about 10 s to come up.", style="dim")
    with _workspace() as folder, quiet_spark("penstock-demo", load.hosts + 4, folder / "log") as spark:
        totals, checkpoint = Totals(load.keys), folder / "checkpoint"
        start_ms = int(time.time() * 1000) + _LEAD_MS
        flow = (
            ps.flow(steady(spark, load.rate, load.keys, start_ms=start_ms), arrival="arrival")
            .key_by("k")
            .aggregate(total=ps.sum("v"), n=ps.count())
            .sla(latency=_SLA.latency_ms / 1000, window=_SLA.window_ms / 1000)
        )
        query = flow.start(totals, checkpoint=str(checkpoint), hosts=load.hosts)
        try:
            worst_ms = _watch(query, load, start_ms / 1000, console)
        finally:
            query.stop()
        query.await_termination()
        rows = rows_taken(checkpoint, totals.epoch)
    kept = "kept" if worst_ms <= _SLA.latency_ms else "missed"
    console.print(f"SLA {kept}: the worst average over any second was {worst_ms:,.0f} ms")
    faults = totals.faults(rows)
    if faults:
        console.print(f"NOT exact: {faults}", style="bold red")
        return False
    console.print(
        f"exactly once: {load.keys:,} keys, {rows:,} rows, all sums equal", style="bold green"
    )
    return True


def _watch(query: ps.FlowQuery, load: Load, start_s: float, console: Console) -> float:
    """Show the query until its time is over or it fails. Returns the worst average latency."""
    meter, pause = Meter(_SLA), threading.Event()
    screen = console.is_terminal and not console.is_dumb_terminal
    title = f"penstock demo: {load}"

    def elapsed() -> float:
        return time.time() - start_s

    def over() -> bool:
        return elapsed() >= load.seconds or not query.is_active

    if screen:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                meter.take(query.progress)
                pids = query.status.hosts
                frame = draw(
                    title, meter.reading(), _SLA, elapsed(), load.seconds, pids, console.width
                )
                live.update(frame, refresh=True)
                if over():
                    break
                pause.wait(_FRAME_S)
    else:
        due = 0.0
        while not over():
            meter.take(query.progress)
            if elapsed() >= due:
                console.print(line(meter.reading(), _SLA, elapsed()))
                due = elapsed() + _LINE_S
            pause.wait(_FRAME_S)
    reading = meter.reading()
    return reading.worst_ms if reading else 0.0


@contextmanager
def _workspace() -> Iterator[Path]:
    """A folder that goes at the end. A second Ctrl-C cannot interrupt the cleaning up."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
