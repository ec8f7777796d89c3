"""What the pictures of `penstock bench ordered` have in common: colours, lines with bands, bars."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench.ordered.trials import Tell, best, of
from penstock_bench.pictures import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

COLOURS: dict[Any, str] = {
    "ct": "#0072B2",
    "lp": "#E69F00",
    "et": "#009E73",
    "qst": "#CC79A7",
    "hybrid": "#0072B2",
    "partitioned": "#D55E00",
    "nonblocking": "#0072B2",
    "lock": "#D55E00",
    "none": "#999999",
    1: "#999999",
    2: "#0072B2",
}
"""One for each side in all pictures; colour-blind people can tell them apart."""
MARKERS = dict(zip(COLOURS, "os^DososXos", strict=True))
NAMES: dict[Any, str] = {
    "ct": "CT",
    "lp": "LP",
    "et": "ET",
    "qst": "QST",
    "hybrid": "hybrid queue",
    "partitioned": "partitioned queue",
    "nonblocking": "non-blocking",
    "lock": "lock-based",
    "none": "without order",
    1: "one worker",
    2: "two workers",
}

Value = Callable[[Tell], list[float]]
"""What is drawn of a trial, one for each round."""


def figure(name: str, scale: float = 1.0) -> Value:
    """
    >>> figure("records_per_s", 1e-3)({"records_per_s": [2000.0]})
    [2.0]
    """
    return lambda one: [value * scale for value in one[name]]


def speedup(alone: Tell) -> Value:
    """Throughput over the median with one worker."""
    base = statistics.median(alone["records_per_s"])
    return lambda one: [rate / base for rate in one["records_per_s"]]


def worker_us(one: Tell) -> list[float]:
    """Worker time that goes by for each record at the entrance, waiting for others included."""
    return [1e6 * one["workers"] / rate for rate in one["records_per_s"]]


def curve(
    axes: Axes, side: str, told: Sequence[Tell], over: str, value: Value, **how: Any
) -> Line2D:
    """A line through the medians over a fact, with a band from the least to the most."""
    points = sorted(((one[over], value(one)) for one in told), key=lambda point: float(point[0]))
    at = [x for x, _ in points]
    axes.fill_between(
        at,
        [min(values) for _, values in points],
        [max(values) for _, values in points],
        color=COLOURS[side],
        alpha=0.2,
        lw=0,
    )
    style: dict[str, Any] = {"color": COLOURS[side], "marker": MARKERS[side], **how}
    (line,) = axes.plot(at, [statistics.median(values) for _, values in points], **style)
    return line


def bars(
    axes: Axes, told: Sequence[Tell], fact: str, sides: Sequence[Any], value: Value
) -> dict[str, Any]:
    """For each query a bar for each side, with whiskers; gives a handle for each side."""
    queries = list(dict.fromkeys(one["query"] for one in told))
    width = 0.8 / len(sides)
    handles: dict[str, Any] = {}
    for place, side in enumerate(sides):
        chosen = [value(best(of(told, query=query, **{fact: side}))) for query in queries]
        middles = [statistics.median(values) for values in chosen]
        spread = [
            [middle - min(values) for middle, values in zip(middles, chosen, strict=True)],
            [max(values) - middle for middle, values in zip(middles, chosen, strict=True)],
        ]
        at = [number + (place - (len(sides) - 1) / 2) * width for number in range(len(queries))]
        handles[NAMES[side]] = axes.bar(
            *(at, middles, 0.92 * width),
            color=COLOURS[side],
            yerr=spread,
            error_kw={"ecolor": INK, "lw": 1},
        )
    axes.set_xticks(range(len(queries)), [f"Q{query}" for query in queries])
    axes.grid(axis="x", visible=False)
    return handles


def by_workers(axes: Axes, told: Sequence[Tell]) -> None:
    """An axis of numbers of workers: what is linear in them looks so."""
    numbers = sorted({one["workers"] for one in told})
    axes.set_xlim(0, numbers[-1] + 0.5)
    axes.set_xticks(numbers, [str(number) for number in numbers])


def named(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Handles by the words of a legend."""
    return {NAMES.get(side, side): line for side, line in lines.items()}
