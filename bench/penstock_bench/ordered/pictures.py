"""The pictures of `penstock bench ordered`.

Numbers in file names are those of the matching figures in the evaluation of the ordered multicore runtime
by Prasaad, Ramalingam and Rajan. Lines and bars are medians of the rounds; bands and whiskers show the
range. Pictures of groups that the report lacks are left out.
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

Trials = Sequence[Result]
Value = Callable[[Result], list[float]]
"""A function from a trial to the values to draw, one for each round."""


def pictures(report: Result) -> Pictures:
    """The pictures of all groups that the report has."""
    groups: dict[str, dict[str, Callable[[Trials], Picture]]] = {
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
    results = report["results"]
    return {
        f"ordered-{name}": partial(picture, results[group])
        for group, made in groups.items()
        for name, picture in made.items()
        if results.get(group)
    }


def _thousands(trial: Result) -> list[float]:
    return [rate / 1000 for rate in trial["records_per_s"]]


def _latency_ms(trial: Result) -> list[float]:
    return list(trial["latency_ms"])


def _speedup(alone: Result) -> Value:
    """Throughput divided by the median throughput of `alone`, a trial with one worker."""
    base = statistics.median(alone["records_per_s"])
    return lambda trial: [rate / base for rate in trial["records_per_s"]]


def _worker_us(trial: Result) -> list[float]:
    """Microseconds of worker time per input record, including the time that workers wait."""
    return [1e6 * trial["workers"] / rate for rate in trial["records_per_s"]]


def _curve(trials: Trials, side: Any, over: str, value: Value, name: str = "", **how: Any) -> Line:
    """A side's line over the fact `over`."""
    title, colour, marker = _SIDES[side]
    points = {
        trial[over]: value(trial) for trial in sorted(trials, key=lambda trial: float(trial[over]))
    }
    return medians(points, name or title, colour, marker=marker, **how)


def _over_workers(trials: Trials, marks: Sequence[Drawable], **more: Any) -> Panel:
    """A panel over numbers of workers, on a linear axis from 0."""
    numbers = sorted({trial["workers"] for trial in trials})
    return Panel(marks, x="workers", ticks=numbers, x_from=0, x_to=numbers[-1] + 0.5, **more)


def _bars(trials: Trials, fact: str, sides: Sequence[Any], value: Value, **more: Any) -> Panel:
    """A bar for each query and side."""
    queries = [query for (query,) in by(trials, "query")]
    groups = {
        _SIDES[side][0]: (
            _SIDES[side][1],
            [value(best(having(trials, query=query, **{fact: side}))) for query in queries],
        )
        for side in sides
    }
    return Panel(bar_groups(groups), names=[f"Q{query}" for query in queries], **more)


# -- the five queries


def _schedules(title: str, trials: Trials, value: Value, **more: Any) -> Picture:
    panels = []
    for (query,), some in by(
        having(trials, queue="hybrid", reorder="nonblocking"), "query"
    ).items():
        marks = [
            _curve(having(some, schedule=schedule), schedule, "workers", value)
            for schedule in SCHEDULES
        ]
        panels.append(_over_workers(some, marks, title=f"Q{query}", **more))
    return Picture(title, panels, columns=min(3, len(panels)), share_x=False)


def _throughput(trials: Trials) -> Picture:
    title = "Throughput by schedule, over workers"
    return _schedules(title, trials, _thousands, y="thousand records/s", y_from=0)


def _latency(trials: Trials) -> Picture:
    title = "Latency by schedule, over workers"
    return _schedules(title, trials, _latency_ms, y="ms, first operator to exit", log="y")


def _queues(trials: Trials) -> Picture:
    """Peak throughput with hybrid and partitioned queues, and the latency there."""
    some = having(trials, schedule="ct", reorder="nonblocking")
    panels = [
        _bars(some, "queue", QUEUES, _thousands, y="thousand records/s"),
        _bars(some, "queue", QUEUES, _latency_ms, y="latency, ms", log="y"),
    ]
    return Picture("Queues of keyed operators: the queries at their peak", panels, columns=2)


def _reorderings(trials: Trials) -> Picture:
    """Peak throughput with non-blocking reordering, with lock-based reordering, and without order."""
    some, sides = having(trials, schedule="ct", queue="hybrid"), ("nonblocking", "lock", "none")
    panel = _bars(some, "reorder", sides, _thousands, y="thousand records/s")
    return Picture("Reorderings: the queries at their peak", [panel])


def _hosts(trials: Trials) -> Picture:
    """Throughput of the real queries on one host, by schedule."""
    panels = [
        _bars(
            *(having(trials, workers=number), "schedule", SCHEDULES, _thousands),
            y="thousand rows/s",
            title=f"{number} workers",
        )
        for number in sorted({trial["workers"] for trial in trials})
    ]
    return Picture("The queries on one host, by schedule", panels, columns=len(panels))


def _cores(trials: Trials) -> Picture:
    """Throughput of the real queries on one host with one worker and with two, without sleeps."""
    panel = _bars(trials, "workers", (1, 2), _thousands, y="thousand rows/s")
    return Picture("The queries on one host, on one core and on two", [panel])


# -- single operators


def _skew(trials: Trials) -> Picture:
    """Speedup over workers without and with skew, and over skew with the most workers."""
    most = max(trial["workers"] for trial in trials)
    (alone, *_) = having(trials, workers=1, queue="hybrid")
    value = _speedup(alone)
    ends = sorted({trial["sigma"] for trial in having(trials, workers=1)}, reverse=True)
    sigmas = sorted({trial["sigma"] for trial in trials})
    over_workers, over_sigma = list[Drawable](), list[Drawable]()
    for queue in QUEUES:
        for sigma, dashes in zip(ends, ("-", (0, (4, 2))), strict=False):
            some, name = (
                having(trials, queue=queue, sigma=sigma),
                f"{_SIDES[queue][0]}, σ {sigma:g}",
            )
            over_workers.append(_curve(some, queue, "workers", value, name, ls=dashes))
        at_most = _curve(having(trials, queue=queue, workers=most), queue, "sigma", value)
        over_sigma.append(replace(at_most, name=""))
    panels = [
        _over_workers(trials, over_workers, y="speedup", title="over workers", y_from=0),
        Panel(
            over_sigma,
            x="σ (smaller: more skew)",
            title=f"over σ, {most} workers",
            log="x",
            ticks=sigmas,
            y_from=0,
        ),
    ]
    title = "Gaussian skew: speedup over one worker"
    return Picture(title, panels, columns=2, share_x=False, share_y=True)


def _latency_by_cost(trials: Trials) -> Picture:
    """Latency over the cost of a record, with hybrid and partitioned queues."""
    costs = sorted({trial["cost_us"] for trial in trials})
    marks = [_curve(having(trials, queue=queue), queue, "cost_us", _latency_ms) for queue in QUEUES]
    itself = Line(costs, [us / 1e3 for us in costs], "the cost itself", GREY, how={"ls": ":"})
    panel = Panel([*marks, itself], x="cost per record, µs", y="mean latency, ms", log="xy")
    return Picture(f"Latency over cost per record, {trials[0]['workers']} workers", [panel])


def _two_orders(title: str, trials: Trials) -> Picture:
    """Speedup and worker time with non-blocking and lock-based reordering."""
    (alone,) = having(trials, workers=1, reorder="nonblocking")
    values = {
        "speedup over one worker": _speedup(alone),
        "worker time per record, µs": _worker_us,
    }
    panels = [
        _over_workers(
            trials,
            [_curve(having(trials, reorder=kind), kind, "workers", value) for kind in REORDERS],
            y=label,
            y_from=0,
        )
        for label, value in values.items()
    ]
    return Picture(title, panels, columns=2)
