"""How the demo draws a reading: a panel on a terminal, a line anywhere else."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.demo.meter import Reading
from penstock.model import SLA

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 86


def draw(
    title: str, reading: Reading | None, sla: SLA, elapsed_s: float, seconds: int,
    pids: Mapping[str, int], width: int,
) -> RenderableType:  # fmt: skip
    """The whole display, for a terminal of this width."""
    left = max(0, seconds - elapsed_s)
    clock = Table.grid(expand=True, padding=(0, 1))
    clock.add_column(ratio=1)
    clock.add_column(justify="right", no_wrap=True)
    shown = min(max(elapsed_s, 0.0), seconds)
    clock.add_row(
        Padding(ProgressBar(total=seconds, completed=shown), (0, 1, 0, 0)),
        Text(f"{shown:.0f} s of {seconds} s, {left:.0f} s to go", "dim"),
    )
    parts: list[RenderableType] = [clock, Text()]
    if reading is None:
        parts.append(Text("waiting for the first epoch", "dim"))
    else:
        parts += [_figures(reading), Text(), _latency(reading, sla), Text(), _hosts(reading, pids)]
    return Panel(
        Group(*parts),
        title=Text(title, "bold"),
        title_align="left",
        border_style="blue",
        padding=(1, 2),
        width=min(width, _WIDTH),
    )


def line(reading: Reading | None, sla: SLA, elapsed_s: float) -> str:
    """The same as one line of text."""
    head = f"{elapsed_s:4.0f} s  "
    if reading is None:
        return head + "waiting for the first epoch"
    told = f"epoch {reading.epoch}, {reading.rows:,} rows, {reading.rows_per_second:,.0f} rows/s"
    if reading.latency is not None:
        latency = reading.latency
        told += f", latency p50 {latency.p50_ms:,.0f} ms, p99 {latency.p99_ms:,.0f} ms"
        told += f", average {latency.mean_ms:,.0f} of {sla.latency_ms:,} ms"
    return head + told


def _figures(reading: Reading) -> RenderableType:
    grid = Table.grid(expand=True)
    for _ in range(3):
        grid.add_column(ratio=1)
    grid.add_row(
        Text.assemble(("epoch   ", "dim"), (f"{reading.epoch:,}", "bold")),
        Text.assemble(("rows   ", "dim"), (f"{reading.rows:,}", "bold")),
        Text.assemble(("rows/s   ", "dim"), (f"{reading.rows_per_second:,.0f}", "bold")),
    )
    return grid


def _latency(reading: Reading, sla: SLA) -> RenderableType:
    found = reading.latency
    if found is None:
        return Text("no rows in the last second", "dim")
    colour = _colour(found.mean_ms, sla)
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    p50, p99 = (Text(f"{ms:,.0f} ms", "bold") for ms in (found.p50_ms, found.p99_ms))
    percentiles = Text.assemble(("p50 ", "dim"), p50, ("    p99 ", "dim"), p99)
    grid.add_row("latency", percentiles, Text("over the last second", "dim"))
    headroom = ProgressBar(
        total=sla.latency_ms,
        completed=min(found.mean_ms, sla.latency_ms),
        complete_style=colour,
        finished_style=colour,
    )
    average = Text(f"{found.mean_ms:,.0f} ms", f"bold {colour}")
    grid.add_row("average", headroom, Text.assemble(average, f" of {sla.latency_ms:,} ms"))
    kept = reading.worst_ms <= sla.latency_ms
    worst = Text(f"at worst {reading.worst_ms:,.0f} ms", "dim" if kept else "red")
    grid.add_row("history", _sparkline(reading.history_ms, sla), worst)
    latency, window = (f"{ms / 1000:g} s" for ms in (sla.latency_ms, sla.window_ms))
    verdict = Text("kept", "bold green") if kept else Text("missed", "bold red")
    grid.add_row("SLA", f"average latency at most {latency} over any {window}", verdict)
    return grid


def _hosts(reading: Reading, pids: Mapping[str, int]) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("host")
    for name in ("pid", "entries", "state", "busy", "rows"):
        table.add_column(name, justify="right")
    for host in reading.hosts:
        table.add_row(
            Text(host.host),
            str(pids.get(host.host, "-")),
            f"{host.entries:,}",
            _bytes(host.state_bytes),
            f"{host.busy:.1%}",
            f"{host.taken:,}",
        )
    return table


def _sparkline(history_ms: tuple[float, ...], sla: SLA) -> Text:
    top = max(*history_ms, 1.0, sla.latency_ms / 4)
    text = Text(no_wrap=True, overflow="crop")
    for value in history_ms:
        bar = _BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))]
        text.append(bar, _colour(value, sla))
    return text


def _colour(latency_ms: float, sla: SLA) -> str:
    if latency_ms > sla.latency_ms:
        return "red"
    return "yellow" if latency_ms > sla.latency_ms / 2 else "green"


def _bytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"
