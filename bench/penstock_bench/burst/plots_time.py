"""Pictures of bursts over time: latency and load, by query and side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench.burst.plots_style import (
    BREAKDOWN,
    COMPARED,
    QUERIES,
    joined,
    line_of,
    ordered,
    shade,
    side_legend,
    values,
)
from penstock_bench.pictures import INK, grid, log_axis
from penstock_bench.switch.drawing import Run, by, percent, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEFORE_S = 10
"""Seconds before the burst that are shown."""


def latency(what: str, runs: Sequence[Run]) -> Figure:
    """The 99th percentile by the second of delivery: a panel for each query."""
    return _latencies(f"{what}: p99 of what is delivered in a second", runs, COMPARED)


def breakdown(runs: Sequence[Run]) -> Figure:
    """What each part of the rewriting brings."""
    return _latencies("Simulated: what the parts bring, p99", runs, BREAKDOWN)


def loads(what: str, runs: Sequence[Run]) -> Figure:
    """The busiest host's load."""
    figure, axes, handles = _by_query(f"{what}: the busiest host's load", runs)
    for axis, some in axes:
        for run in _of(some, COMPARED):
            load = values(run["by_second"]["load"])
            (handles[run["side"]],) = axis.plot(load, **line_of(run["side"]))
        for bound in (0.6, 0.8):
            axis.axhline(bound, color=INK, lw=0.8, ls=(0, (4, 3)))
        axis.set_ylim(0, 1.05)
        percent(axis)
    return _finished(figure, axes, handles, "load (dashed: 60 and 80 %)")


def _latencies(what: str, runs: Sequence[Run], sides: Sequence[str]) -> Figure:
    figure, axes, handles = _by_query(what, runs)
    drawn = []
    for axis, some in axes:
        for run in _of(some, sides):
            seconds, p99 = joined(run["by_second"]["p99_ms"])
            (handles[run["side"]],) = axis.plot(seconds, p99, **line_of(run["side"]))
            drawn += p99[seconds >= run["at_s"] - _BEFORE_S].tolist()
    log_axis(axes[0][0], "y", min(drawn), max(drawn))
    return _finished(figure, axes, handles, "p99, ms")


def _by_query(
    what: str, runs: Sequence[Run]
) -> tuple[Figure, list[tuple[Axes, list[Run]]], dict[str, Any]]:
    """A panel for each query, with the time of the burst."""
    queries = by(runs, "query")
    names = ordered((name for (name,) in queries), QUERIES)
    figure, axes = grid(what, len(names))
    panels = [(axis, queries[name,]) for axis, name in zip(axes.flat, names, strict=False)]
    last_s = max(_shown_s(run) for run in runs)
    for axis, some in panels:
        title(axis, some[0]["query"])
        shade(axis, some[0])
        axis.set_xlim(max(0, some[0]["at_s"] - _BEFORE_S), last_s)
        axis.set_xlabel("seconds (grey: the burst)")
    return figure, panels, {}


def _shown_s(run: Run) -> float:
    """Until the burst is over twice: what is left to do then is told by figures."""
    return float(min(run["at_s"] + 2 * run["seconds"] + 5, len(run["by_second"]["p99_ms"])))


def _of(runs: Sequence[Run], sides: Sequence[str]) -> list[Run]:
    """In the order of sides: Penstock is drawn late, so that it is on top."""
    return sorted(
        (run for run in runs if run["side"] in sides), key=lambda run: sides.index(run["side"])
    )


def _finished(
    figure: Figure, axes: list[tuple[Axes, list[Run]]], handles: dict[str, Any], label: str
) -> Figure:
    for axis, _ in axes:
        if axis.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axis.set_ylabel(label)
    side_legend(figure, handles)
    return figure
