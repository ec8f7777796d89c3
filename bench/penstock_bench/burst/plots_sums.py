"""Pictures that sum bursts up: peaks by what arrives, sweeps, and latency against money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_bench.burst.money import BURST_SHARE, day
from penstock_bench.burst.plots_style import (
    COLOURS,
    COMPARED,
    case,
    joined,
    line_of,
    ordered,
    side_legend,
)
from penstock_bench.pictures import INK, log_axis
from penstock_bench.switch.drawing import Run, panels, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_SHARE = 0.3
_SWEPT = {
    "factor": ("burstiness", "times the stable load"),
    "slots": ("parallelism", "slots of the step"),
}
"""What is swept over: a title, and what stands at the axis."""


def peaks(runs: Sequence[Run]) -> Figure:
    """By what arrives, for each side: the worst second's p99, averaged over queries."""
    cases: dict[str, list[Run]] = {}
    for run in runs:
        cases.setdefault(case(run), []).append(run)
    sides = ordered({run["side"] for run in runs}, COMPARED)
    figure, axes = panels("Simulated: peak of p99, the mean over queries", 1)
    axis, width = axes[0, 0], 0.86 / len(sides)
    handles: dict[str, Any] = {}
    drawn = []
    for place, side in enumerate(sides):
        means = [
            float(np.mean([r["p99_peak_ms"] for r in some if r["side"] == side] or [np.nan]))
            for some in cases.values()
        ]
        at = np.arange(len(cases)) + (place - (len(sides) - 1) / 2) * width
        handles[side] = axis.bar(at, means, 0.92 * width, color=COLOURS[side])
        drawn += [mean for mean in means if mean == mean]
    log_axis(axis, "y", min(drawn), max(drawn))
    axis.set_xticks(range(len(cases)), [name.replace(", ", "\n") for name in cases])
    axis.set_xlim(-0.6, len(cases) - 0.4)
    axis.set_ylabel("peak of p99, ms")
    axis.grid(axis="x", visible=False)
    side_legend(figure, handles)
    return figure


def sweeps(groups: Mapping[str, Sequence[Run]]) -> Figure:
    """By burstiness and by parallelism: boxes of the p99 of a burst's seconds, two sides each."""
    figure, axes = panels("Simulated: p99 in the seconds of a burst", 1, len(groups), sharex=False)
    handles: dict[str, Any] = {}
    drawn: list[float] = []
    for axis, (over, runs) in zip(axes[0], groups.items(), strict=True):
        sides = list(dict.fromkeys(run["side"] for run in runs))
        steps = list(dict.fromkeys(run[over] for run in runs))
        width = 0.8 / len(sides)
        for run in runs:
            shift = (sides.index(run["side"]) - (len(sides) - 1) / 2) * width
            handle = _box(axis, steps.index(run[over]) + shift, 0.85 * width, run)
            handles[run["side"]] = handle
            drawn += run["p99_box_ms"]
        axis.set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
        what, unit = _SWEPT[over]
        axis.set_xlabel(unit)
        title(axis, f"{runs[0]['query']}, {what}")
        axis.grid(axis="x", visible=False)
    for axis in axes[0]:
        log_axis(axis, "y", min(drawn), max(drawn))
    axes[0, 0].set_ylabel("p99 of a second, ms")
    side_legend(figure, handles)
    return figure


def _box(axis: Axes, at: float, width: float, run: Run) -> Any:
    """Of its five figures: the least, quartiles, the most."""
    least, low, middle, high, most = run["p99_box_ms"]
    colour = COLOURS[run["side"]]
    axis.plot([at, at], [least, most], color=colour, lw=1.2)
    drawn = axis.bar(at, high - low, width, bottom=low, color=colour, alpha=0.45, edgecolor=colour)
    axis.plot([at - width / 2, at + width / 2], [middle, middle], color=INK, lw=1.4)
    return drawn


def trade_off(what: str, runs: Sequence[Run], costs: Mapping[str, Mapping[str, float]]) -> Figure:
    """Latency in the burst, and what a day costs by how much of it is a burst."""
    figure, axes = panels(f"{what}: latency and money", 1, 2, sharex=False)
    latency, money = axes[0]
    handles: dict[str, Any] = {}
    drawn: list[float] = []
    for run in runs:
        seconds, p99 = joined(run["by_second"]["p99_ms"])
        at_s, to_s = run["at_s"], run["at_s"] + run["seconds"]
        inside = (seconds >= at_s - 5) & (seconds <= to_s + 5)
        latency.plot(seconds[inside] - at_s, p99[inside], **line_of(run["side"]))
        drawn += p99[inside].tolist()
    log_axis(latency, "y", min(drawn), max(drawn))
    latency.axvspan(0, runs[0]["seconds"], color=INK, alpha=0.06, lw=0)
    latency.set(xlabel="seconds of the burst", ylabel="p99, ms")
    title(latency, f"{runs[0]['query']}, {case(runs[0])}")
    shares = np.linspace(0, _MOST_SHARE, 31)
    for side in ordered(costs, COMPARED):
        spent = [day(costs[side], share) for share in shares.tolist()]
        (handles[side],) = money.plot(100 * shares, spent, **line_of(side))
    money.axvline(100 * BURST_SHARE, color=INK, lw=0.8, ls=(0, (4, 3)))
    money.set_ylim(bottom=0)
    money.set(xlabel="% of the day that is a burst (dashed: the goal's)", ylabel="dollars a day")
    title(money, "money, the mean over queries")
    side_legend(figure, handles)
    return figure
