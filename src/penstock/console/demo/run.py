"""Runs the demo, in micro-batches or live, and checks its result."""

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
from penstock.console.demo.meter import DemoMeter, Reading
from penstock.console.demo.steady import Totals, bursts, rows_read, rows_taken, steady
from penstock.console.terminal import cleaned_up, counted, progress_messages
from penstock.live.sources.rate import RateSource
from penstock.model import SLA
from penstock.spark.checkpoint import locate
from penstock.spark.session import quiet_session
from penstock.spark.sinks import Collect
from penstock.state.store.store import Store

_SLA, _LIVE_SLA = SLA(latency_ms=1000, window_ms=1000), SLA(latency_ms=100, window_ms=1000)
_DECISIONS = 4
"""Journal lines shown."""
_SETTLED_S = 60.0
"""Seconds that a live flow has to process the rows that arrived during its start."""
_FRAME_S = 0.25
_LINE_S = 2.0
"""Seconds between two lines, where there is no terminal to draw on."""


@dataclass(frozen=True)
class DemoLoad:
    """Size and mode of the demo."""

    seconds: int
    rate: int
    """Rows per second; in live mode, during bursts."""
    keys: int
    hosts: int
    live: bool = False
    """Whether to run live, with bursts and autoscaling; else in micro-batches."""

    @property
    def sla(self) -> SLA:
        return _LIVE_SLA if self.live else _SLA

    def __str__(self) -> str:
        if self.live:
            return (
                f"{self.rate // 4:,} rows/s, bursts of {self.rate:,} rows/s for 2 s of every 10 s, "
                f"{self.keys:,} keys, 1 to {counted(self.hosts, 'host')}"
            )
        return f"{self.rate:,} rows/s, {self.keys:,} keys, {counted(self.hosts, 'host')}"


def run(load: DemoLoad) -> bool:
    """Run the demo and return whether its result is exact. Cleans up after itself, also on Ctrl-C."""
    console = Console(highlight=False, soft_wrap=True)
    how = "live, " if load.live else ""
    console.print(f"Sums and counts of generated rows per key, {how}for {load.seconds} s: {load}.")
    totals = Totals(load.keys)
    with cleaned_up(console) as resources:
        with progress_messages(console) as tell:
            checkpoint = resources.enter_context(
                tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
            )
            tell("Starting Spark, which takes about 10 s")
            spark = resources.enter_context(quiet_session("penstock-demo", load.hosts + 4))
            tell("Starting the query and its hosts; the first start is slow, since numba compiles")
            left = ps.collect()
            if load.live:
                query = _start_live(load, left, checkpoint)
            else:
                rows = _summed(steady(spark, load.rate, load.keys), load)
                query = rows.start(totals, checkpoint=checkpoint, hosts=load.hosts)
            resources.callback(query.stop)
            _await_arrivals(query, load)
        seen = _watch(query, load, console)
        query.stop()
        query.await_termination()
        if load.live:
            taken = rows_read(Store(locate(spark, checkpoint).store))
            for table in left.epochs().values():
                totals.take(table)
        else:
            taken = rows_taken(Path(checkpoint), totals.epoch)
    kept = "kept" if seen.worst_ms <= load.sla.latency_ms else "missed"
    console.print(f"SLA {kept}: the worst average over a second was {seen.worst_ms:,.0f} ms")
    if load.live:
        console.print(
            f"{counted(seen.moved, 'slot')} moved to other hosts while the flow ran; "
            f"it ended with {counted(len(seen.hosts), 'host')}"
        )
    faults = totals.faults(taken)
    if faults:
        console.print(f"not exactly once: {faults}", style="bold red")
        return False
    rows_in_all = sum(map(len, taken))
    verdict = f"exactly once: {load.keys:,} keys, {rows_in_all:,} rows, all sums are correct"
    console.print(verdict, style="bold green")
    return True


def _summed(rows: DataFrame | RateSource, load: DemoLoad) -> ps.Flow:
    flow = ps.flow(rows) if isinstance(rows, RateSource) else ps.flow(rows, arrival="arrival")
    summed = flow.key_by("k").aggregate(total=ps.sum("v"), n=ps.count())
    return summed.sla(latency=load.sla.latency_ms / 1000, window=load.sla.window_ms / 1000)


def _start_live(load: DemoLoad, sink: Collect, checkpoint: str) -> ps.FlowQuery:
    """Start the live flow with one host; autoscaling adds others as the load requires."""
    flow = _summed(bursts(load.rate, load.keys), load).elastic(at_most=load.hosts)
    return flow.start(sink, mode="live", checkpoint=checkpoint, checkpoint_every="500ms", hosts=1)


def _await_arrivals(query: ps.FlowQuery, load: DemoLoad) -> None:
    """Wait until rows arrive, and a live query has caught up with those that arrived during its start."""
    until = time.monotonic() + _SETTLED_S
    while True:
        p99s_ms = [epoch.latency.p99_ms for epoch in query.progress if epoch.latency]
        settled = not load.live or time.monotonic() > until
        if p99s_ms and (settled or p99s_ms[-1] <= load.sla.latency_ms):
            return
        if query.await_termination(_FRAME_S):
            raise ps.PenstockError("the query ended before any row arrived")


def _watch(query: ps.FlowQuery, load: DemoLoad, console: Console) -> Reading:
    """Show the query until its time is over or it fails; returns the last reading."""
    sla = load.sla
    meter, pause, began = DemoMeter(sla), threading.Event(), time.monotonic()
    title = f"penstock demo: {load}"
    first, printed = query.progress[-1].epoch if load.live else 0, 0
    screen = console.is_terminal and not console.is_dumb_terminal
    with ExitStack() as shown:
        live = shown.enter_context(Live(console=console, auto_refresh=False)) if screen else None
        next_line = _LINE_S
        while True:
            meter.take(epoch for epoch in query.progress if epoch.epoch >= first)
            decisions = [f"{e.when}  {e.event}: {e.text}" for e in query.journal]
            reading, elapsed = meter.reading(), time.monotonic() - began
            assert reading is not None
            if live is not None:
                pids = query.status.hosts
                shown_last = decisions[-_DECISIONS:]
                facts = (sla, elapsed, load.seconds, pids, console.width, shown_last)
                live.update(draw(title, reading, *facts), refresh=True)
            elif elapsed >= min(next_line, load.seconds):
                for decision in decisions[printed:]:
                    console.print(decision)
                printed = len(decisions)
                console.print(line(reading, sla, elapsed))
                next_line += _LINE_S
            if elapsed >= load.seconds or not query.is_active:
                return reading
            pause.wait(min(_FRAME_S, load.seconds - elapsed))
