"""Pictures of the five queries: schedules, queues and reorderings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures
from penstock_bench.ordered.drawing import Value, bars, by_workers, curve, figure, named
from penstock_bench.ordered.sweeps import QUEUES, SCHEDULES
from penstock_bench.ordered.trials import Tell, of
from penstock_bench.switch.drawing import legend, panels, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_SCHEDULE = {"queue": "hybrid", "reorder": "nonblocking"}


def throughput(told: Sequence[Tell]) -> Figure:
    """By schedule, over workers."""
    heading = "Throughput by schedule, over workers"
    return _schedules(heading, "thousand records/s", told, figure("records_per_s", 1e-3), log=False)


def latency(told: Sequence[Tell]) -> Figure:
    """By schedule, over workers."""
    heading = "Latency by schedule, over workers"
    return _schedules(heading, "ms, first operator to exit", told, figure("latency_ms"), log=True)


def _schedules(heading: str, label: str, told: Sequence[Tell], value: Value, log: bool) -> Figure:
    queries = list(dict.fromkeys(one["query"] for one in told))
    columns = min(3, len(queries))
    drawn, axes = panels(heading, -(-len(queries) // columns), columns, sharex=False)
    lines: dict[str, Any] = {}
    for axis, query in zip(axes.flat, queries, strict=False):
        chosen = of(told, query=query, **_BY_SCHEDULE)
        title(axis, f"Q{query}")
        for schedule in SCHEDULES:
            side = of(chosen, schedule=schedule)
            lines[schedule] = curve(axis, schedule, side, "workers", value)
        by_workers(axis, chosen)
        values = [one for trial in chosen for one in value(trial)]
        if log:
            pictures.log_axis(axis, "y", min(values), max(values))
        else:
            axis.set_ylim(bottom=0)
        axis.set_xlabel("workers")
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    for unused in axes.flat[len(queries) :]:
        unused.remove()
    legend(drawn, named(lines))
    return drawn


def queues(told: Sequence[Tell]) -> Figure:
    """Hybrid against partitioned: throughput at its peak, and the latency there."""
    drawn, axes = panels("Queues of keyed operators: the queries at their peak", 1, 2)
    chosen = of(told, schedule="ct", reorder="nonblocking")
    handles = bars(axes[0, 0], chosen, "queue", QUEUES, figure("records_per_s", 1e-3))
    bars(axes[0, 1], chosen, "queue", QUEUES, figure("latency_ms"))
    axes[0, 0].set_ylabel("thousand records/s")
    axes[0, 1].set_ylabel("latency, ms")
    values = [value for one in chosen for value in one["latency_ms"]]
    pictures.log_axis(axes[0, 1], "y", min(values), max(values))
    legend(drawn, handles)
    return drawn


def reorderings(told: Sequence[Tell]) -> Figure:
    """Non-blocking against lock-based, and against no order at all: throughput at its peak."""
    drawn, axes = panels("Reorderings: the queries at their peak", 1)
    chosen = of(told, schedule="ct", queue="hybrid")
    sides = ("nonblocking", "lock", "none")
    handles = bars(axes[0, 0], chosen, "reorder", sides, figure("records_per_s", 1e-3))
    axes[0, 0].set_ylabel("thousand records/s")
    legend(drawn, handles)
    return drawn


def hosts(told: Sequence[Tell]) -> Figure:
    """The real queries in one host, by schedule."""
    workers = sorted({one["workers"] for one in told})
    drawn, axes = panels("The queries in one host, by schedule", 1, len(workers))
    handles: dict[str, Any] = {}
    for axis, number in zip(axes[0], workers, strict=True):
        chosen = of(told, workers=number)
        title(axis, f"{number} workers")
        handles = bars(axis, chosen, "schedule", SCHEDULES, figure("records_per_s", 1e-3))
    axes[0, 0].set_ylabel("thousand rows/s")
    legend(drawn, handles)
    return drawn


def cores(told: Sequence[Tell]) -> Figure:
    """The real queries in one host with one worker and with two, nothing slept."""
    drawn, axes = panels("The queries in one host, on one core and on two", 1)
    handles = bars(axes[0, 0], told, "workers", (1, 2), figure("records_per_s", 1e-3))
    axes[0, 0].set_ylabel("thousand rows/s")
    legend(drawn, handles)
    return drawn
