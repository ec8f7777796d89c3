"""Goals that figures are held against, and the table that shows both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Goal:
    """A bound on a figure, from one side or from both.

    >>> Goal(at_least=2.5).met(3.0), Goal(at_most=64).met(80.0), str(Goal(at_least=2.5))
    (True, False, 'at least 2.5')
    """

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether the value keeps the bound; one that is not a number keeps none."""
        low = self.at_least is None or value >= self.at_least
        high = self.at_most is None or value <= self.at_most
        return low and high and value == value

    def __str__(self) -> str:
        parts = [("at least", self.at_least), ("at most", self.at_most)]
        return ", ".join(f"{words} {bound:,g}" for words, bound in parts if bound is not None)


def judged(figures: Mapping[str, float], goals: Mapping[str, Goal]) -> Table:
    """Every figure beside its goal, if it has one, and every goal that nothing was measured for."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("goal")
    table.add_column("")
    for name in [*figures, *(name for name in goals if name not in figures)]:
        value, goal = figures.get(name), goals.get(name)
        table.add_row(name, _rounded(value), str(goal or ""), _verdict(value, goal))
    return table


def _verdict(value: float | None, goal: Goal | None) -> Text:
    if goal is None:
        return Text()
    if value is None:
        return Text("not measured", "yellow")
    return Text("met", "green") if goal.met(value) else Text("missed", "bold red")


def _rounded(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
