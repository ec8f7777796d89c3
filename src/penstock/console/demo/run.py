"""The demo from its start to its verdict."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from rich.console import Console
from rich.live import Live

import penstock as ps
from penstock.console.demo.display import draw, line
from penstock.console.demo.meter import DemoMeter
from penstock.console.demo.steady import Totals, rows_taken, steady
from penstock.console.terminal import cleaned_up, counted, telling
from penstock.model import SLA
from penstock.spark.session import quiet_session

_SLA = SLA(latency_ms=1000, window_ms=1000)
_FRAME_S = 0.25
_LINE_S = 2.0
"""Seconds between two lines, where there is no terminal to draw on."""


@dataclass(frozen=True)
class DemoLoad:
    """What the demo runs."""

    seconds: int
    rate: int
    """Rows a second."""
    keys: int
    hosts: int

    def __str__(self) -> str:
        return f"{self.rate:,} rows/s, {self.keys:,} keys, {counted(self.hosts, 'host')}"


def run(load: DemoLoad) -> bool:
    """Run to the end and say whether the result is exact. Nothing is left behind, Ctrl-C or not."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Keyed sums and counts of generated rows, for {load.seconds} s: {load}.")
    totals = Totals(load.keys)
    with cleaned_up(console) as resources:
        with telling(console) as tell:
            checkpoint = resources.enter_context(
                tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
            )
            tell("Starting Spark; it takes about 10 s to come up")
            spark = resources.enter_context(quiet_session("penstock-demo", load.hosts + 4))
            tell(
                "Starting the query and its hosts; numba compiles the first time, which takes long"
            )
            rows = steady(spark, load.rate, load.keys)
            query = _summed(rows).start(totals, checkpoint=checkpoint, hosts=load.hosts)
            resources.callback(query.stop)
            _await_arrivals(query)
        worst_ms = _watch(query, load, console)
        query.stop()
        query.await_termination()
        taken = rows_taken(Path(checkpoint), totals.epoch)
    kept = "kept" if worst_ms <= _SLA.latency_ms else "missed"
    console.print(f"SLA {kept}: the worst average over a second was {worst_ms:,.0f} ms")
    faults = totals.faults(taken)
    if faults:
        console.print(f"not exactly once: {faults}", style="bold red")
        return False
    told = f"exactly once: {load.keys:,} keys, {taken:,} rows, all sums equal"
    console.print(told, style="bold green")
    return True


def _summed(rows: DataFrame) -> ps.Flow:
    flow = ps.flow(rows, arrival="arrival").key_by("k")
    summed = flow.aggregate(total=ps.sum("v"), n=ps.count())
    return summed.sla(latency=_SLA.latency_ms / 1000, window=_SLA.window_ms / 1000)


def _await_arrivals(query: ps.FlowQuery) -> None:
    """Wait until the query is up and rows have begun to arrive."""
    while not any(epoch.latency for epoch in query.progress):
        if query.await_termination(_FRAME_S):
            raise ps.PenstockError("the query ended before any row arrived")


def _watch(query: ps.FlowQuery, load: DemoLoad, console: Console) -> float:
    """Show the query until its time is over or it fails. Returns the worst average latency."""
    meter, pause, began = DemoMeter(_SLA), threading.Event(), time.monotonic()
    title = f"penstock demo: {load}"
    screen = console.is_terminal and not console.is_dumb_terminal
    with ExitStack() as shown:
        live = shown.enter_context(Live(console=console, auto_refresh=False)) if screen else None
        next_line = _LINE_S
        while True:
            meter.take(query.progress)
            reading, elapsed = meter.reading(), time.monotonic() - began
            assert reading is not None
            if live is not None:
                pids = query.status.hosts
                panel = draw(title, reading, _SLA, elapsed, load.seconds, pids, console.width)
                live.update(panel, refresh=True)
            elif elapsed >= min(next_line, load.seconds):
                console.print(line(reading, _SLA, elapsed))
                next_line += _LINE_S
            if elapsed >= load.seconds or not query.is_active:
                return reading.worst_ms
            pause.wait(min(_FRAME_S, load.seconds - elapsed))
