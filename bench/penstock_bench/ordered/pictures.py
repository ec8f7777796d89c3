"""The pictures of `penstock bench ordered`.

Numbers in file names are those of the figures in the evaluation of the ordered multicore runtime of
Prasaad, Ramalingam and Rajan that show the same. Lines and bars are medians of the rounds, bands and
whiskers go from the least to the most. A group that the report does not have leaves out its pictures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock_bench.charts import (
    Drawable,
    Line,
    Panel,
    Picture,
    Pictures,
    bar_groups,
    medians,
)
from penstock_bench.ordered.sweeps import QUEUES, REORDERS, SCHEDULES
from penstock_bench.ordered.trials import best
from penstock_bench.report import Result, by, having
from penstock_bench.style import BLUE, GREEN, GREY, ORANGE, PINK, RED

_SIDES: dict[Any, tuple[str, str, str]] = {
    "ct": ("CT", BLUE, "o"),
    "lp": ("LP", ORANGE, "s"),
    "et": ("ET", GREEN, "^"),
    "qst": ("QST", PINK, "D"),
    "hybrid": ("hybrid queue", BLUE, "o"),
    "partitioned": ("partitioned queue", RED, "s"),
    "nonblocking": ("non-blocking", BLUE, "o"),
    "lock": ("lock-based", RED, "s"),
    "none": ("without order", GREY, "X"),
    1: ("one worker", GREY, "o"),
    2: ("two workers", BLUE, "s"),
}
"""Name, colour and marker of each side in all pictures."""

Told = Sequence[Result]
Value = Callable[[Result], list[float]]
"""What is drawn of a trial, one for each round."""


def pictures(report: Result) -> Pictures:
    """All groups that the report has."""
    groups: dict[str, dict[str, Callable[[Told], Picture]]] = {
        "queries": {
            "8-throughput": _throughput,
            "8-latency": _latency,
            "11-queues": _queues,
            "14-reorderings": _reorderings,
        },
        "hosts": {"8-hosts": _hosts},
        "cores": {"cores": _cores},
        "skew": {"9-skew": _skew},
        "cost": {"10-latency-by-cost": _latency_by_cost},
        "light": {"12-light": partial(_two_orders, "A light stateless operator, by reordering")},
        "selectivity": {
            "13-selectivity": partial(
                _two_orders, "Fifty outputs for each input, then a keyed operator, by reordering"
            )
        },
    }
    told = report["results"]
    return {
        f"ordered-{name}": partial(picture, told[group])
        for group, made in groups.items()
        for name, picture in made.items()
        if told.get(group)
    }


def _thousands(one: Result) -> list[float]:
    return [rate / 1000 for rate in one["records_per_s"]]


def _latency_ms(one: Result) -> list[float]:
    return list(one["latency_ms"])


def _speedup(alone: Result) -> Value:
    """Throughput over the median with one worker."""
    base = statistics.median(alone["records_per_s"])
    return lambda one: [rate / base for rate in one["records_per_s"]]


def _worker_us(one: Result) -> list[float]:
    """Worker time that goes by for each record at the entrance, waiting for others included."""
    return [1e6 * one["workers"] / rate for rate in one["records_per_s"]]


def _curve(told: Told, side: Any, over: str, value: Value, name: str = "", **how: Any) -> Line:
    """A side's line over a fact."""
    called, colour, marker = _SIDES[side]
    points = {one[over]: value(one) for one in sorted(told, key=lambda one: float(one[over]))}
    return medians(points, name or called, colour, marker=marker, **how)


def _over_workers(told: Told, marks: Sequence[Drawable], **more: Any) -> Panel:
    """A panel over numbers of workers: what is linear in them looks so."""
    numbers = sorted({one["workers"] for one in told})
    return Panel(marks, x="workers", ticks=numbers, x_from=0, x_to=numbers[-1] + 0.5, **more)


def _bars(told: Told, fact: str, sides: Sequence[Any], value: Value, **more: Any) -> Panel:
    """For each query a bar for each side."""
    queries = [query for (query,) in by(told, "query")]
    groups = {
        _SIDES[side][0]: (
            _SIDES[side][1],
            [value(best(having(told, query=query, **{fact: side}))) for query in queries],
        )
        for side in sides
    }
    return Panel(bar_groups(groups), names=[f"Q{query}" for query in queries], **more)


# -- the five queries


def _schedules(title: str, told: Told, value: Value, **more: Any) -> Picture:
    panels = []
    for (query,), some in by(having(told, queue="hybrid", reorder="nonblocking"), "query").items():
        marks = [
            _curve(having(some, schedule=schedule), schedule, "workers", value)
            for schedule in SCHEDULES
        ]
        panels.append(_over_workers(some, marks, title=f"Q{query}", **more))
    return Picture(title, panels, columns=min(3, len(panels)), share_x=False)


def _throughput(told: Told) -> Picture:
    title = "Throughput by schedule, over workers"
    return _schedules(title, told, _thousands, y="thousand records/s", y_from=0)


def _latency(told: Told) -> Picture:
    title = "Latency by schedule, over workers"
    return _schedules(title, told, _latency_ms, y="ms, first operator to exit", log="y")


def _queues(told: Told) -> Picture:
    """Hybrid against partitioned: throughput at its peak, and the latency there."""
    some = having(told, schedule="ct", reorder="nonblocking")
    panels = [
        _bars(some, "queue", QUEUES, _thousands, y="thousand records/s"),
        _bars(some, "queue", QUEUES, _latency_ms, y="latency, ms", log="y"),
    ]
    return Picture("Queues of keyed operators: the queries at their peak", panels, columns=2)


def _reorderings(told: Told) -> Picture:
    """Non-blocking against lock-based, and against no order at all: throughput at its peak."""
    some, sides = having(told, schedule="ct", queue="hybrid"), ("nonblocking", "lock", "none")
    panel = _bars(some, "reorder", sides, _thousands, y="thousand records/s")
    return Picture("Reorderings: the queries at their peak", [panel])


def _hosts(told: Told) -> Picture:
    """The real queries in one host, by schedule."""
    panels = [
        _bars(
            *(having(told, workers=number), "schedule", SCHEDULES, _thousands),
            y="thousand rows/s",
            title=f"{number} workers",
        )
        for number in sorted({one["workers"] for one in told})
    ]
    return Picture("The queries in one host, by schedule", panels, columns=len(panels))


def _cores(told: Told) -> Picture:
    """The real queries in one host with one worker and with two, nothing slept."""
    panel = _bars(told, "workers", (1, 2), _thousands, y="thousand rows/s")
    return Picture("The queries in one host, on one core and on two", [panel])


# -- single operators


def _skew(told: Told) -> Picture:
    """Speedup over workers without and with skew, and over skew with the most workers."""
    most = max(one["workers"] for one in told)
    (alone, *_) = having(told, workers=1, queue="hybrid")
    value = _speedup(alone)
    ends = sorted({one["sigma"] for one in having(told, workers=1)}, reverse=True)
    sigmas = sorted({one["sigma"] for one in told})
    over_workers, over_sigma = list[Drawable](), list[Drawable]()
    for queue in QUEUES:
        for sigma, dashes in zip(ends, ("-", (0, (4, 2))), strict=False):
            some, name = having(told, queue=queue, sigma=sigma), f"{_SIDES[queue][0]}, σ {sigma:g}"
            over_workers.append(_curve(some, queue, "workers", value, name, ls=dashes))
        at_most = _curve(having(told, queue=queue, workers=most), queue, "sigma", value)
        over_sigma.append(replace(at_most, name=""))
    panels = [
        _over_workers(told, over_workers, y="speedup", title="over workers", y_from=0),
        Panel(
            over_sigma,
            x="σ: the smaller, the more skew",
            title=f"over σ, {most} workers",
            log="x",
            ticks=sigmas,
            y_from=0,
        ),
    ]
    title = "Gaussian skew: speedup over one worker"
    return Picture(title, panels, columns=2, share_x=False, share_y=True)


def _latency_by_cost(told: Told) -> Picture:
    """Hybrid against partitioned."""
    costs = sorted({one["cost_us"] for one in told})
    marks = [_curve(having(told, queue=queue), queue, "cost_us", _latency_ms) for queue in QUEUES]
    itself = Line(costs, [us / 1e3 for us in costs], "the cost itself", GREY, how={"ls": ":"})
    panel = Panel([*marks, itself], x="cost of a record, µs", y="mean latency, ms", log="xy")
    return Picture(f"Latency over cost of a record, {told[0]['workers']} workers", [panel])


def _two_orders(title: str, told: Told) -> Picture:
    """Non-blocking against lock-based."""
    (alone,) = having(told, workers=1, reorder="nonblocking")
    values = {
        "speedup over one worker": _speedup(alone),
        "worker time for a record, µs": _worker_us,
    }
    panels = [
        _over_workers(
            told,
            [_curve(having(told, reorder=kind), kind, "workers", value) for kind in REORDERS],
            y=label,
            y_from=0,
        )
        for label, value in values.items()
    ]
    return Picture(title, panels, columns=2)
