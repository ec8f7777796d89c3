"""The demo from its start to its verdict, in micro-batches or live."""

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
from penstock.console.terminal import cleaned_up, counted, telling
from penstock.live.sources.rate import RateSource
from penstock.model import SLA
from penstock.spark.checkpoint import locate
from penstock.spark.session import quiet_session
from penstock.spark.sinks import Collect
from penstock.state.store.store import Store

_SLA, _LIVE_SLA = SLA(latency_ms=1000, window_ms=1000), SLA(latency_ms=100, window_ms=1000)
_DECISIONS = 4
"""Lines of the journal that are shown."""
_SETTLED_S = 60.0
"""Seconds that a live flow may take to catch up with what arrived while it started."""
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
    live: bool = False
    """Live, with bursts and hosts that follow the load; else in micro-batches."""

    @property
    def sla(self) -> SLA:
        return _LIVE_SLA if self.live else _SLA

    def __str__(self) -> str:
        if self.live:
            return (
                f"{self.rate // 4:,} rows/s, for 2 s of every 10 s {self.rate:,}; {self.keys:,} keys, "
                f"1 to {counted(self.hosts, 'host')}"
            )
        return f"{self.rate:,} rows/s, {self.keys:,} keys, {counted(self.hosts, 'host')}"


def run(load: DemoLoad) -> bool:
    """Run to the end and say whether the result is exact. Nothing is left behind, Ctrl-C or not."""
    console = Console(highlight=False, soft_wrap=True)
    how = "live, " if load.live else ""
    console.print(f"Keyed sums and counts of generated rows, {how}for {load.seconds} s: {load}.")
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
            f"{counted(seen.moved, 'slot')} changed hosts while rows flowed; "
            f"there were {counted(len(seen.hosts), 'host')} at the end"
        )
    faults = totals.faults(taken)
    if faults:
        console.print(f"not exactly once: {faults}", style="bold red")
        return False
    rows_in_all = sum(map(len, taken))
    told = f"exactly once: {load.keys:,} keys, {rows_in_all:,} rows, all sums equal"
    console.print(told, style="bold green")
    return True


def _summed(rows: DataFrame | RateSource, load: DemoLoad) -> ps.Flow:
    begun = ps.flow(rows) if isinstance(rows, RateSource) else ps.flow(rows, arrival="arrival")
    summed = begun.key_by("k").aggregate(total=ps.sum("v"), n=ps.count())
    return summed.sla(latency=load.sla.latency_ms / 1000, window=load.sla.window_ms / 1000)


def _start_live(load: DemoLoad, sink: Collect, checkpoint: str) -> ps.FlowQuery:
    """Begin with one host: the load decides how many there are."""
    flow = _summed(bursts(load.rate, load.keys), load).elastic(at_most=load.hosts)
    return flow.start(sink, mode="live", checkpoint=checkpoint, checkpoint_every="500ms", hosts=1)


def _await_arrivals(query: ps.FlowQuery, load: DemoLoad) -> None:
    """Wait until the query is up and rows have begun to arrive; a live one has then to catch up with rows
    that arrived while it started."""
    until = time.monotonic() + _SETTLED_S
    while True:
        found = [epoch.latency.p99_ms for epoch in query.progress if epoch.latency]
        settled = not load.live or time.monotonic() > until
        if found and (settled or found[-1] <= load.sla.latency_ms):
            return
        if query.await_termination(_FRAME_S):
            raise ps.PenstockError("the query ended before any row arrived")


def _watch(query: ps.FlowQuery, load: DemoLoad, console: Console) -> Reading:
    """Show the query until its time is over or it fails; returns how it stood then."""
    sla = load.sla
    meter, pause, began = DemoMeter(sla), threading.Event(), time.monotonic()
    title = f"penstock demo: {load}"
    first, told = query.progress[-1].epoch if load.live else 0, 0
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
                for decision in decisions[told:]:
                    console.print(decision)
                told = len(decisions)
                console.print(line(reading, sla, elapsed))
                next_line += _LINE_S
            if elapsed >= load.seconds or not query.is_active:
                return reading
            pause.wait(min(_FRAME_S, load.seconds - elapsed))
