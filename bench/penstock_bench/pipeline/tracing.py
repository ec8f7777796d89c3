"""`penstock bench pipeline --trace`: where the time of a trigger goes, phase by phase, beside the limit."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from penstock.driver.phases import PHASES
from penstock.observe.trace import Trace, mean_phases
from penstock.spark.triggers import triggers_of
from penstock_bench import sides
from penstock_bench.report import Show
from penstock_bench.sides import Triggers

FILE = "pipeline-trace.json"
"""Trace file, in the current folder."""
_WIDTH = 170
"""Characters of a line of the table."""
_IN_FILE = 10
"""Triggers of each size in the trace file."""


def measure(
    spark: SparkSession,
    keys: int,
    sizes: tuple[int, ...],
    warm: int,
    measured: int,
    rounds: int,
    show: Show,
) -> dict[str, Any]:
    """Phases of Penstock's triggers and of the limit's, in milliseconds, by rows per epoch.

    The sides take turns, and the first round does not count. Spark keeps 100 triggers, so `warm` and
    `measured` together must not be more.
    """
    results: dict[str, Any] = {}
    shown = Trace([], [])
    for rows in sizes:
        accounts: dict[str, list[dict[str, float]]] = {"penstock": [], "limit": []}
        for number in range(rounds + 1):
            with sides.penstock_sum(sides.spread(spark, rows, keys)) as query:
                Triggers(query.spark_query()).progress(until=warm + measured)
                trace = query.trace()
            ours = _after(warm, trace.by_epoch())
            with sides.limit(sides.spread(spark, rows, keys)) as limit:
                Triggers(limit).progress(until=warm + measured)
                theirs = _after(warm, Trace.of_spark(triggers_of(limit)).by_epoch())
            if number:
                accounts["penstock"] += ours
                accounts["limit"] += theirs
                show(f"{rows:>9,} rows, round {number}: traced {len(ours)} triggers")
        shown = shown.plus(trace.last(_IN_FILE))
        results[f"rows_{rows}"] = {side: _typical(found) for side, found in accounts.items()}
    Path(FILE).write_text(shown.to_chrome())
    show(f"wrote {FILE}: open it at ui.perfetto.dev")
    return results


def _after(warm: int, by_epoch: dict[int, dict[str, float]]) -> list[dict[str, float]]:
    return [phases for epoch, phases in by_epoch.items() if epoch >= warm]


def _typical(accounts: list[dict[str, float]]) -> dict[str, Any]:
    """The mean phases of the middle half of all triggers, by length. Means add up, medians do not, and a few
    triggers with a garbage collection in them would shift the mean of all."""
    ordered = sorted(accounts, key=lambda phases: sum(phases.values()))
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter] or ordered
    phases = mean_phases(middle)
    lengths = [sum(phases.values()) for phases in accounts]
    return {
        "trigger_ms": sum(phases.values()),
        "median_ms": median(lengths),
        "triggers": len(accounts),
        "phases_ms": phases,
    }


def table(results: dict[str, Any]) -> str:
    """Milliseconds of each phase, by rows per epoch, for Penstock and the limit."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("phase")
    columns = [
        (size.removeprefix("rows_"), side, of[side]) for size, of in results.items() for side in of
    ]
    for size, side, _ in columns:
        shown.add_column(f"{int(size):,}\n{side}", justify="right")
    shown.add_column("what")

    def row(name: str, what: str, cell: Callable[[dict[str, Any]], float | None]) -> None:
        cells = (cell(account) for _, _, account in columns)
        shown.add_row(name, *("" if c is None else f"{c:.1f}" for c in cells), what)

    for phase, what in PHASES.items():
        if any(phase in account["phases_ms"] for _, _, account in columns):
            row(phase, what, lambda account, phase=phase: account["phases_ms"].get(phase))  # type: ignore[misc]
    row("sum", "mean of the middle half of all triggers", lambda a: a["trigger_ms"])
    row("median", "median of all triggers", lambda a: a["median_ms"])
    console = Console(file=StringIO(), width=_WIDTH)
    with console.capture() as text:
        console.print(shown)
    return text.get()
