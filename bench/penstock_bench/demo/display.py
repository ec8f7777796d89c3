"""The demo's display: a panel on a terminal, one line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from penstock.console.terminal import (
    Sparkline,
    bar,
    colour,
    counted,
    health,
    numbers,
    page,
    percentiles,
)
from penstock.model import SLA
from penstock.observe.moment import HostMoment, Moment
from penstock_bench.demo.phases import Phase
from penstock_bench.demo.verdict import Judged

_WIDTH = 92
_WAITING_MS = 1_500.0
"""Milliseconds without output after which that is shown. Normally there is some every half second."""


@dataclass(frozen=True)
class Scene:
    """The demo at one moment."""

    t_s: float
    """Seconds after the warm-up."""
    seconds: float
    """Length of the story."""
    phase: Phase
    sla: SLA
    moments: Sequence[Moment]
    """All seconds of the query so far."""
    judged: Judged
    """The seconds since the end of the warm-up."""
    url: str | None = None
    """Address of the dashboard."""
    waiting_ms: float = 0.0
    """How long bids have waited without any output."""

    @property
    def stalled(self) -> bool:
        """Whether there was no output for so long that the figures of the last bids tell nothing."""
        return self.waiting_ms >= _WAITING_MS

    @property
    def verdict(self) -> str:
        """How the SLA was kept so far, in words."""
        if self.waiting_ms > self.sla.latency_ms:
            return f"{_kept(self.judged)}; bids wait too long now"
        return _kept(self.judged)

    @property
    def newest(self) -> Moment | None:
        """The newest second in which bids were done."""
        return next((moment for moment in reversed(self.moments) if moment.latency), None)

    @property
    def hosts(self) -> list[HostMoment]:
        """The hosts that are up."""
        steps = self.moments[-1].steps if self.moments else ()
        return [host for step in steps for host in step.hosts if host.up]


def line(scene: Scene) -> str:
    """The scene as one line of text."""
    head = f"{scene.t_s:5.0f} s  "
    newest = scene.newest
    if newest is None or newest.latency is None:
        return head + "waiting for the first bids"
    latency = newest.latency
    if scene.stalled:
        return head + (
            f"bids wait for {scene.waiting_ms / 1000:.1f} s, the bound is {scene.sla.latency_ms:,} ms; "
            f"{counted(scene.moments[-1].backlog, 'bid')} waiting, {counted(len(scene.hosts), 'host')}; SLA "
            f"{scene.verdict}"
        )
    return head + (
        f"{newest.rate or 0:,.0f} bids/s, {counted(len(scene.hosts), 'host')}, latency p50 "
        f"{latency.p50_ms:,.0f} ms, p99 {latency.p99_ms:,.0f} ms, average {latency.mean_ms:,.0f} of "
        f"{scene.sla.latency_ms:,} ms; SLA {scene.verdict}"
    )


def draw(scene: Scene, width: int) -> RenderableType:
    """The scene as a panel for a terminal of this width."""
    columns = Column(ratio=1), Column(justify="right", no_wrap=True)
    clock = Table.grid(*columns, expand=True, padding=(0, 1))
    shown = min(max(scene.t_s, 0.0), scene.seconds)
    clock.add_row(
        ProgressBar(total=scene.seconds, completed=shown),
        Text(f"{scene.phase.title}, {shown:.0f} of {scene.seconds:.0f} s", "dim"),
    )
    parts: list[RenderableType] = [clock, Text()]
    newest = scene.newest
    parts.append(Text("waiting for the first bids", "dim") if newest is None else _figures(scene))
    if hosts := scene.hosts:
        parts += [Text(), _hosts(hosts)]
    if scene.url:
        parts += [Text(), Text.assemble(("dashboard  ", "dim"), (scene.url, "bold"))]
    return page([Group(*parts)], "penstock demo", min(width, _WIDTH), padding=(0, 2))


def _figures(scene: Scene) -> RenderableType:
    newest, sla = scene.newest, scene.sla
    assert newest is not None and newest.latency is not None
    average_ms = scene.waiting_ms if scene.stalled else newest.latency.mean_ms
    shade = colour(average_ms, sla)
    names, middle = Column(style="dim", no_wrap=True), Column(ratio=1)
    figures = Column(justify="right", no_wrap=True)
    grid = Table.grid(names, middle, figures, expand=True, padding=(0, 2, 0, 0))
    rate = Text(f"{newest.rate or 0:,.0f} bids/s", "bold")
    grid.add_row("input", rate, Text(f"{scene.moments[-1].backlog:,} waiting", "dim"))
    grid.add_row("latency", percentiles(newest.latency), Text(_age(scene, newest), "dim"))
    average = Text.assemble(
        (f"{average_ms:,.0f} ms", f"bold {shade}"), f" of {sla.latency_ms:,} ms"
    )
    grid.add_row(
        "waiting" if scene.stalled else "average",
        bar(average_ms / sla.latency_ms, shade),
        average,
    )
    history_ms = [moment.latency.mean_ms for moment in scene.moments if moment.latency]
    grid.add_row("history", Sparkline(history_ms, sla), Text("a bar for each second", "dim"))
    met = scene.judged.kept == scene.judged.windows and scene.waiting_ms <= sla.latency_ms
    verdict = Text(scene.verdict, "bold green" if met else "bold red")
    grid.add_row("SLA", verdict, Text(f"worst {scene.judged.worst_ms:,.0f} ms", "dim"))
    return grid


def _age(scene: Scene, newest: Moment) -> str:
    """Of when the newest latencies are."""
    if not scene.stalled:
        return "of the last second"
    return f"{(scene.moments[-1].time_ms - newest.time_ms) / 1000:.0f} s ago"


def _kept(judged: Judged) -> str:
    if not judged.windows:
        return "not judged yet"
    return f"kept in {judged.kept:,} of {counted(judged.windows, 'window')}"


def _hosts(hosts: Sequence[HostMoment]) -> RenderableType:
    name, state = Column("host", no_wrap=True), Column("health", no_wrap=True)
    columns = name, *numbers("slots", "bids/s", "possible", "busy"), state
    table = Table(*columns, box=None, expand=True, pad_edge=False, header_style="dim")
    for host in hosts:
        table.add_row(
            Text(host.host),
            str(host.slots),
            _rate(host.rate),
            _rate(host.service_rate),
            f"{min(1.0, host.useful_ms / 1000):.0%}",
            health(host.health),
        )
    return table


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"
