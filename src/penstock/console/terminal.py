"""What Penstock's commands share on a terminal: saying what they do, a clean end, latency against an SLA,
bars and colours."""

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
def telling(console: Console) -> Iterator[Callable[[str], None]]:
    """A way to say what is being done: with a spinner on a terminal, line by line elsewhere."""
    if not console.is_terminal:
        yield lambda text: console.print(f"{text} ...")
        return
    with console.status("") as status:
        yield status.update


@contextmanager
def cleaned_up(console: Console) -> Iterator[ExitStack]:
    """What is opened inside is closed at the end, which takes seconds; no Ctrl-C cuts it short."""
    with ExitStack() as resources:
        try:
            yield resources
        except KeyboardInterrupt:
            console.print("\nStopping")
            raise
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


_BARS = "▁▂▃▄▅▆▇█"
HEALTH: dict[str | None, str] = {"good": "green", "moderate": "yellow", "severe": "red"}
"""The colour of each health."""


def page(
    parts: Sequence[RenderableType], title: str, width: int, padding: tuple[int, int]
) -> Panel:
    """Parts below each other, framed."""
    shown, head = Group(*parts), Text(title, "bold")
    return Panel(
        shown, title=head, title_align="left", border_style="blue", padding=padding, width=width
    )


def listing(*columns: Column | str) -> Table:
    """A table without lines, with bold titles. Long texts of a column named by its title are folded."""
    folded = [Column(one, overflow="fold") if isinstance(one, str) else one for one in columns]
    return Table(*folded, box=None, pad_edge=False, header_style="bold")


def facts() -> Table:
    """A table without titles: the name of a fact, and the fact."""
    columns = Column(style="dim", no_wrap=True), Column(overflow="fold")
    return Table(*columns, box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def numbers(*titles: str) -> list[Column]:
    """Columns whose texts stand at the right."""
    return [Column(title, justify="right") for title in titles]


def counted(number: int, what: str) -> str:
    """A number with what it counts.

    >>> counted(1, "slot"), counted(1200, "slot")
    ('1 slot', '1,200 slots')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


class Sparkline:
    """Latencies over time, a bar for each; the newest ones, where there is no room for all."""

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
    found: Latency,
    span: str,
    average_ms: float,
    bars_ms: Sequence[float],
    worst_ms: float,
    sla: SLA,
) -> RenderableType:
    """Latency over a span of time, the average beside its bound, how it was, and the verdict."""
    shade = colour(average_ms, sla)
    names, middle = Column(style="dim", no_wrap=True), Column(ratio=1)
    figures = Column(justify="right", no_wrap=True)
    grid = Table.grid(names, middle, figures, expand=True, padding=(0, 2, 0, 0))
    grid.add_row("latency", percentiles(found), Text(span, "dim"))
    average = Text(f"{average_ms:,.0f} ms", f"bold {shade}")
    headroom = bar(average_ms / sla.latency_ms, shade)
    grid.add_row("average", headroom, Text.assemble(average, f" of {sla.latency_ms:,} ms"))
    kept = worst_ms <= sla.latency_ms
    worst = Text(f"at worst {worst_ms:,.0f} ms", "dim" if kept else "red")
    grid.add_row("history", Sparkline(bars_ms, sla), worst)
    verdict = Text("kept", "bold green") if kept else Text("missed", "bold red")
    grid.add_row("SLA", promise(sla), verdict)
    return grid


def percentiles(found: Latency) -> Text:
    p50, p99 = (Text(f"{ms:,.0f} ms", "bold") for ms in (found.p50_ms, found.p99_ms))
    return Text.assemble(("p50 ", "dim"), p50, ("    p99 ", "dim"), p99)


def bar(share: float, style: str, width: int | None = None) -> ProgressBar:
    """A bar that is full at a share of 1, and beyond it. Without a width, as long as there is room."""
    full = min(share, 1.0)
    return ProgressBar(1.0, full, width, complete_style=style, finished_style=style)


def promise(sla: SLA) -> str:
    """An SLA in words."""
    latency, window = (f"{ms / 1000:g} s" for ms in (sla.latency_ms, sla.window_ms))
    return f"average latency at most {latency} over any {window}"


def colour(latency_ms: float, sla: SLA) -> str:
    """How bad a latency is.

    >>> [colour(ms, SLA(1000, 1000)) for ms in (400.0, 600.0, 1200.0)]
    ['green', 'yellow', 'red']
    """
    if latency_ms > sla.latency_ms:
        return "red"
    return "yellow" if latency_ms > sla.latency_ms / 2 else "green"


def health(word: str | None) -> Text:
    """The health of a step or host as control sees it; None before it has looked."""
    return Text(word or "not known", HEALTH.get(word, "dim"))


def money_text(money: dict[str, float] | None) -> str:
    """What was spent, as a query's status tells it; empty if that is not known."""
    return "" if money is None else str(Money(money["hosts"], money["functions"]))


def offload_text(offload: dict[str, Any] | None) -> str:
    """What burst workers carry of a step, as control tells it; empty if they carry nothing."""
    if not offload or not offload["redirected"]:
        return ""
    number = offload["functions"]
    what = "1 function carries" if number == 1 else f"{number:,} functions carry"
    told = f"{what} {offload['redirected']:,.0f} of {offload['rate']:,.0f} records/s"
    told += f", {offload['warm']:,} kept warm"
    return told + "; it lasts: time for hosts" if offload["lasts"] else told


def milliseconds_text(ms: float | None) -> str:
    """A time in milliseconds, or a dash where none is known."""
    return "-" if ms is None else f"{ms:,.0f} ms"
