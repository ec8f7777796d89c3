"""The report of a benchmark: machine, settings, results, and ratios with their goals."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table
from rich.text import Text

Show = Callable[[str], None]
"""A function that shows a progress line."""


Result = dict[str, Any]
"""The JSON of one result of a report, or of a whole report."""


@dataclass(frozen=True)
class Sample:
    """A metric measured several times: its median, lowest and highest value."""

    median: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(values: list[float]) -> Sample:
        """The sample of these values.

        >>> Sample.of([3.0, 1.0, 2.0])
        Sample(median=2.0, low=1.0, high=3.0, n=3)
        """
        return Sample(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Report:
    """The report that every benchmark writes."""

    bench: str
    settings: dict[str, Any]
    results: dict[str, Any]
    ratios: dict[str, float]
    commit: str = field(default_factory=lambda: _git("rev-parse", "HEAD") or "unknown")
    dirty: bool = field(default_factory=lambda: bool(_git("status", "--porcelain")))
    machine: dict[str, Any] = field(default_factory=lambda: describe_machine())

    def to_json(self) -> str:
        order = ("bench", "commit", "dirty", "machine", "settings", "results", "ratios")
        facts = asdict(self)
        return json.dumps({key: facts[key] for key in order}, indent=1)


@dataclass(frozen=True)
class PartResult:
    """The results of one part of a benchmark, and its settings."""

    settings: dict[str, Any]
    results: dict[str, Any]

    def to_plain(self, quick: bool) -> dict[str, Any]:
        """The results, with the commit, date and settings of their run."""
        run = {
            "commit": _git("rev-parse", "HEAD") or "unknown",
            "dirty": bool(_git("status", "--porcelain")),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "quick": quick,
            "settings": self.settings,
        }
        return {"run": run, **self.results}


def describe_machine() -> dict[str, Any]:
    """Properties of the machine that results depend on, without anything that identifies it."""
    import pyarrow
    import pyspark

    return {
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
    }


def _git(*words: str) -> str:
    """Output of a git command in this source tree; empty if there is none."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False, timeout=10
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def by(results: Iterable[Result], *facts: str) -> dict[tuple[Any, ...], list[Result]]:
    """Results grouped by their values of some facts, in the order of first occurrence.

    >>> by([{"seed": 1, "alpha": 0.5}, {"seed": 2, "alpha": 0.5}], "alpha").keys()
    dict_keys([(0.5,)])
    """
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result[fact] for fact in facts), []).append(result)
    return groups


def having(results: Iterable[Result], **facts: Any) -> list[Result]:
    """The results that have these facts.

    >>> having([{"workers": 1}, {"workers": 2}], workers=2)
    [{'workers': 2}]
    """
    return [result for result in results if facts.items() <= result.items()]


def mean(results: Sequence[Result], of: str) -> float:
    """The mean of a metric over results. Results where it is None do not count."""
    values = [float(result[of]) for result in results if result[of] is not None]
    return sum(values) / len(values) if values else float("nan")


@dataclass(frozen=True)
class Goal:
    """A lower or upper bound of a metric, or both.

    >>> Goal(at_least=2.5).met(3.0), Goal(at_most=64).met(80.0), str(Goal(at_least=2.5))
    (True, False, 'at least 2.5')
    """

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether the value is within the bounds; nan never is."""
        low = self.at_least is None or value >= self.at_least
        high = self.at_most is None or value <= self.at_most
        return low and high and value == value

    def __str__(self) -> str:
        parts = [("at least", self.at_least), ("at most", self.at_most)]
        return ", ".join(f"{words} {bound:,g}" for words, bound in parts if bound is not None)


def judged(figures: Mapping[str, float], goals: Mapping[str, Goal]) -> Table:
    """A table of all metrics with their goals, if any, including goals whose metric was not measured."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric")
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
