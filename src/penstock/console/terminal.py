"""Terminal output shared by Penstock's commands: progress, clean shutdown, latency gauges, bars, colours."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from penstock.control.money import Money
from penstock.driver.progress import Latency
from penstock.model import SLA


@contextmanager
def progress_messages(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done: beside a spinner on a terminal, line by line elsewhere."""
    if not console.is_terminal:
        yield lambda text: console.print(f"{text} ...")
        return
    with console.status("") as status:
        yield status.update


@contextmanager
def cleaned_up(console: Console) -> Iterator[ExitStack]:
    """An `ExitStack` that is closed at the end of the block. Ctrl-C does not interrupt the closing."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with ExitStack() as resources:
            try:
                yield resources
            except KeyboardInterrupt:
                console.print("\nStopping")
                raise
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)


_BARS = "▁▂▃▄▅▆▇█"
HEALTH: dict[str | None, str] = {"good": "green", "moderate": "yellow", "severe": "red"}
"""Colour of each health state."""


def page(
    parts: Sequence[RenderableType], title: str, width: int, padding: tuple[int, int]
) -> Panel:
    """A framed page with the parts stacked vertically."""
    shown, head = Group(*parts), Text(title, "bold")
    return Panel(
        shown, title=head, title_align="left", border_style="blue", padding=padding, width=width
    )


def listing(*columns: Column | str) -> Table:
    """A table without lines, with bold titles. Columns given by title alone fold long texts."""
    folded = [Column(col, overflow="fold") if isinstance(col, str) else col for col in columns]
    return Table(*folded, box=None, pad_edge=False, header_style="bold")


def facts() -> Table:
    """An empty two-column table without titles, for names and values."""
    columns = Column(style="dim", no_wrap=True), Column(overflow="fold")
    return Table(*columns, box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def numbers(*titles: str) -> list[Column]:
    """Right-aligned columns with these titles."""
    return [Column(title, justify="right") for title in titles]


def counted(number: int, noun: str) -> str:
    """A number followed by its noun, in the plural where needed.

    >>> counted(1, "slot"), counted(1200, "slot")
    ('1 slot', '1,200 slots')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


class Sparkline:
    """A chart with one bar per latency value. Drops the oldest values if they do not all fit."""

    def __init__(self, history_ms: Sequence[float], sla: SLA) -> None:
        self._history_ms, self._sla = history_ms, sla

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._history_ms[-options.max_width :]
        top = max(*shown, 1.0, self._sla.latency_ms / 4)
        text = Text(no_wrap=True)
        for value in shown:
            bar = _BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))]
            text.append(bar, colour(value, self._sla))
        yield text


def latency_gauge(
    latency: Latency,
    span: str,
    average_ms: float,
    bars_ms: Sequence[float],
    worst_ms: float,
    sla: SLA,
) -> RenderableType:
    """Latency over a span of time: percentiles, average against its bound, history, SLA kept or missed."""
    shade = colour(average_ms, sla)
    names, middle = Column(style="dim", no_wrap=True), Column(ratio=1)
    figures = Column(justify="right", no_wrap=True)
    grid = Table.grid(names, middle, figures, expand=True, padding=(0, 2, 0, 0))
    grid.add_row("latency", percentiles(latency), Text(span, "dim"))
    average = Text(f"{average_ms:,.0f} ms", f"bold {shade}")
    headroom = bar(average_ms / sla.latency_ms, shade)
    grid.add_row("average", headroom, Text.assemble(average, f" of {sla.latency_ms:,} ms"))
    kept = worst_ms <= sla.latency_ms
    worst = Text(f"worst {worst_ms:,.0f} ms", "dim" if kept else "red")
    grid.add_row("history", Sparkline(bars_ms, sla), worst)
    verdict = Text("kept", "bold green") if kept else Text("missed", "bold red")
    grid.add_row("SLA", promise(sla), verdict)
    return grid


def percentiles(latency: Latency) -> Text:
    p50, p99 = (Text(f"{ms:,.0f} ms", "bold") for ms in (latency.p50_ms, latency.p99_ms))
    return Text.assemble(("p50 ", "dim"), p50, ("    p99 ", "dim"), p99)


def bar(share: float, style: str, width: int | None = None) -> ProgressBar:
    """A bar that is full at a share of 1 or more. Without a width it takes all the room there is."""
    full = min(share, 1.0)
    return ProgressBar(1.0, full, width, complete_style=style, finished_style=style)


def promise(sla: SLA) -> str:
    """An SLA in words."""
    latency, window = (f"{ms / 1000:g} s" for ms in (sla.latency_ms, sla.window_ms))
    return f"average latency at most {latency} over any {window}"


def colour(latency_ms: float, sla: SLA) -> str:
    """Colour for a latency: red above the bound, yellow above half of it, else green.

    >>> [colour(ms, SLA(1000, 1000)) for ms in (400.0, 600.0, 1200.0)]
    ['green', 'yellow', 'red']
    """
    if latency_ms > sla.latency_ms:
        return "red"
    return "yellow" if latency_ms > sla.latency_ms / 2 else "green"


def health(word: str | None) -> Text:
    """The health of a step or host, coloured. None means that control has not examined it yet."""
    return Text(word or "not known", HEALTH.get(word, "dim"))


def money_text(money: dict[str, float] | None) -> str:
    """The money a query has spent, from its status; empty if it is not known."""
    return "" if money is None else str(Money(money["hosts"], money["functions"]))


def offload_text(offload: dict[str, Any] | None) -> str:
    """The part of a step's load that burst workers carry; empty if they carry nothing."""
    if not offload or not offload["redirected"]:
        return ""
    number = offload["functions"]
    workers = "1 function carries" if number == 1 else f"{number:,} functions carry"
    text = f"{workers} {offload['redirected']:,.0f} of {offload['rate']:,.0f} records/s"
    text += f", {offload['warm']:,} kept warm"
    return text + "; the burst lasts: more hosts are needed" if offload["lasts"] else text


def milliseconds_text(ms: float | None) -> str:
    """A time in milliseconds, or a dash if it is unknown."""
    return "-" if ms is None else f"{ms:,.0f} ms"
