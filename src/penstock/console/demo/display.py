"""The demo's display: a panel on a terminal, one line per reading elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from penstock.console.demo.meter import Reading
from penstock.console.terminal import latency_gauge, numbers, page
from penstock.model import SLA

_WIDTH = 86


def draw(
    title: str, reading: Reading | None, sla: SLA, elapsed_s: float, seconds: int,
    pids: Mapping[str, int], width: int, decisions: Sequence[str] = (),
) -> RenderableType:  # fmt: skip
    """The whole display for a terminal of this width. `decisions` are lines of the journal."""
    left = max(0, seconds - elapsed_s)
    columns = Column(ratio=1), Column(justify="right", no_wrap=True)
    clock = Table.grid(*columns, expand=True, padding=(0, 1))
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
        if decisions:
            lines = (Text(text, "dim", no_wrap=True, overflow="ellipsis") for text in decisions)
            parts += [Text(), *lines]
    return page(parts, title, min(width, _WIDTH), padding=(1, 2))


def line(reading: Reading | None, sla: SLA, elapsed_s: float) -> str:
    """A summary of the reading in one line of text."""
    head = f"{elapsed_s:4.0f} s  "
    if reading is None:
        return head + "waiting for the first epoch"
    text = f"epoch {reading.epoch}, {reading.rows:,} rows, {reading.rows_per_second:,.0f} rows/s"
    if reading.latency is not None:
        latency = reading.latency
        text += f", latency p50 {latency.p50_ms:,.0f} ms, p99 {latency.p99_ms:,.0f} ms"
        text += f", average {latency.mean_ms:,.0f} of {sla.latency_ms:,} ms"
    return head + text


def _figures(reading: Reading) -> RenderableType:
    figures = {"epoch": reading.epoch, "rows": reading.rows, "rows/s": reading.rows_per_second}
    grid = Table.grid(*(Column(ratio=1) for _ in figures), expand=True)
    texts = [(f"{name}   ", f"{figure:,.0f}") for name, figure in figures.items()]
    grid.add_row(*(Text.assemble((name, "dim"), (text, "bold")) for name, text in texts))
    return grid


def _latency(reading: Reading, sla: SLA) -> RenderableType:
    latency = reading.latency
    if latency is None:
        return Text("no rows in the last second", "dim")
    span, history_ms = "over the last second", reading.history_ms
    return latency_gauge(latency, span, latency.mean_ms, history_ms, reading.worst_ms, sla)


def _hosts(reading: Reading, pids: Mapping[str, int]) -> RenderableType:
    columns = Column("host"), *numbers("pid", "entries", "state", "busy", "rows")
    table = Table(*columns, box=None, expand=True, pad_edge=False, header_style="dim")
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


def _bytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"
