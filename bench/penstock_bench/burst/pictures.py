"""The pictures of `penstock bench burst`.

Numbers in file names are those of the matching figures in Sponge's evaluation. Pictures of parts that
the report lacks are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock_bench.burst.params import QUERIES
from penstock_bench.burst.sides import BURST_SHARE, LIVE, TITLES, Side, day
from penstock_bench.charts import (
    Bound,
    Boxes,
    Line,
    Panel,
    Picture,
    Pictures,
    Shade,
    bar_groups,
)
from penstock_bench.report import Result, by, having
from penstock_bench.style import BLUE, GREEN, ORANGE, PINK, QUIET, RED, SAND, SKY

_COLOURS: dict[Side, str] = {
    "no_scaling": QUIET,
    "new_hosts_30s": ORANGE,
    "new_hosts": SAND,
    "hosts_beforehand": PINK,
    "functions_migrating": RED,
    "routers": PINK,
    "routers_transients": ORANGE,
    "no_warm": SKY,
    "penstock": BLUE,
    "overprovisioned": GREEN,
}
"""Colour of each side in all pictures. Sides in the same picture differ in colour."""
_LEGEND = [TITLES[side] for side in _COLOURS]
_PARTS: tuple[Side, ...] = (
    *("functions_migrating", "routers", "routers_transients", "no_warm", "penstock"),
)
"""Sides of the breakdown: each adds one mechanism, up to Penstock."""
_TRADED = ("new_hosts_30s", "penstock", "overprovisioned")
_EXAMPLE = ("q7", "q5", "q8", "q4", "q6", "q1")
"""Queries by preference for the trade-off picture: the first one that ran is shown."""
_SWEPT = {
    "factor": ("burstiness", "times the stable load"),
    "slots": ("parallelism", "slots of the step"),
}
"""Parameter of a sweep -> title and axis label."""
_BEFORE_S = 10
"""Seconds before the burst that pictures show."""
_MOST_SHARE = 0.3

Runs = Sequence[Result]
Costs = Mapping[str, Mapping[str, float]]


def pictures(report: Result) -> Pictures:
    """All pictures of a report."""
    parts_of = report["results"]
    in_theory, in_fact = parts_of.get("simulated", {}), parts_of.get("live", {})
    simulated, live = in_theory.get("grid", []), in_fact.get("runs", [])
    shown = [run for run in simulated if "by_second" in run]
    drawn = _over_time("Simulated", "", shown)
    if simulated:
        drawn["burst-12-peaks"] = partial(_peaks, [run for run in simulated if run["side"] in LIVE])
    parts = [run for run in shown if run["side"] in _PARTS and run["query"] not in ("q1", "q7")]
    if parts:
        title = "Simulated: p99 as mechanisms are added"
        drawn["burst-13-breakdown"] = partial(_latencies, title, parts, _PARTS)
    drawn |= _traded("Simulated", "", shown, in_theory.get("costs", {}))
    if sweeps := {over: runs for over, runs in in_theory.get("sweeps", {}).items() if runs}:
        drawn["burst-14-sweeps"] = partial(_sweeps, sweeps)
    drawn |= _over_time("Live", "live-", live)
    unpaced = [
        run
        for name, part in parts_of.items()
        if name.startswith("live-unpaced")
        for run in part["runs"]
        if run.get("settings", {}).get("seed", 1) == 1  # a line for each side
    ]
    if unpaced:
        title = "Live, without set rates and with combining: p99 by second of delivery"
        drawn["burst-live-unpaced"] = partial(_latencies, title, unpaced, LIVE)
    return drawn | _traded("Live", "live-", live, in_fact.get("costs", {}))


def _over_time(what: str, prefix: str, runs: Runs) -> Pictures:
    shown = [run for run in runs if run["side"] in LIVE]
    if not shown:
        return {}
    title = f"{what}: p99 by second of delivery"
    return {
        f"burst-10-{prefix}latency": partial(_latencies, title, shown, LIVE),
        f"burst-11-{prefix}loads": partial(_loads, f"{what}: the busiest host's load", shown),
    }


def _traded(what: str, prefix: str, runs: Runs, costs: Costs) -> Pictures:
    """The picture of latency and cost of one query, if there are runs for it."""
    for query in _EXAMPLE if costs else ():
        some = [run for run in having(runs, query=query) if run["side"] in _TRADED]
        if some:
            return {f"burst-15-{prefix}trade-off": partial(_trade_off, what, some, costs)}
    return {}


def _case(run: Result) -> str:
    """Label of a run's load.

    >>> _case({"shape": "burst", "factor": 5.0, "seconds": 60})
    '5x, 60 s'
    >>> _case({"shape": "sine", "factor": 5.0, "seconds": 60})
    'sine'
    """
    if run["shape"] != "burst":
        return str(run["shape"])
    return f"{run['factor']:g}x, {run['seconds']:g} s"


def _ordered(names: Iterable[Any], like: Iterable[Any]) -> list[Any]:
    """Sort names in the order of `like`.

    >>> _ordered({"q7", "q1"}, QUERIES)
    ['q1', 'q7']
    """
    present = set(names)
    return [name for name in like if name in present]


def _line(side: Side, places: Sequence[float], values: Sequence[float | None]) -> Line:
    """A side's line; Penstock's is thicker."""
    how = {"lw": 2.2 if side == "penstock" else 1.3}
    return Line(places, values, TITLES[side], _COLOURS[side], how=how)


def _p99(run: Result, from_s: float, to_s: float = np.inf, zero_s: float = 0) -> Line:
    """A run's p99 line without gaps: points are in the middle of each second that delivered rows."""
    p99 = {
        second + 0.5: ms for second, ms in enumerate(run["by_second"]["p99_ms"]) if ms is not None
    }
    shown = {second - zero_s: ms for second, ms in p99.items() if from_s <= second <= to_s}
    return _line(run["side"], list(shown), list(shown.values()))


# -- over time, a panel for each query


def _by_query(title: str, runs: Runs, sides: Sequence[Side], of: str, **more: Any) -> Picture:
    """A panel for each query. The time shown after the burst is as long as the burst."""
    queries = by(runs, "query")
    last_s = max(
        min(run["at_s"] + 2 * run["seconds"] + 5, len(run["by_second"]["p99_ms"])) for run in runs
    )
    panels = []
    for name in _ordered((query for (query,) in queries), QUERIES):
        some = queries[name,]
        at_s, from_s = some[0]["at_s"], max(0, some[0]["at_s"] - _BEFORE_S)
        lines = [
            _p99(run, from_s)
            if of == "p99_ms"
            else _line(run["side"], range(len(run["by_second"][of])), run["by_second"][of])
            for run in sorted(some, key=lambda run: sides.index(run["side"]))
        ]
        bounds = [Bound(bound) for bound in ((0.6, 0.8) if of == "load" else ())]
        panels.append(
            Panel(
                [*lines, *bounds, Shade(at_s, at_s + some[0]["seconds"])],
                x="seconds (grey: the burst)",
                title=name,
                x_from=from_s,
                x_to=last_s,
                **more,
            )
        )
    return Picture(
        title, panels, columns=len(panels) if len(panels) <= 3 else 2, share_y=True, legend=_LEGEND
    )


def _latencies(title: str, runs: Runs, sides: Sequence[Side]) -> Picture:
    """p99 latency by second of delivery, a panel for each query."""
    return _by_query(title, runs, sides, "p99_ms", y="p99, ms", log="y")


def _loads(title: str, runs: Runs) -> Picture:
    """Load of the busiest host by second, a panel for each query."""
    label = "load (dashed: 60 and 80 %)"
    return _by_query(title, runs, LIVE, "load", y=label, percent=True, y_from=0, y_to=1.05)


# -- sums


def _peaks(runs: Runs) -> Picture:
    """Bars of the peak p99 by load and side, averaged over queries."""
    cases: dict[str, list[Result]] = {}
    for run in runs:
        cases.setdefault(_case(run), []).append(run)
    groups = {
        TITLES[side]: (
            _COLOURS[side],
            [
                [float(np.mean([r["p99_peak_ms"] for r in having(some, side=side)] or [np.nan]))]
                for some in cases.values()
            ],
        )
        for side in _ordered({run["side"] for run in runs}, LIVE)
    }
    panel = Panel(
        bar_groups(groups, whiskers=False),
        y="peak of p99, ms",
        log="y",
        names=[name.replace(", ", "\n") for name in cases],
        x_from=-0.6,
        x_to=len(cases) - 0.4,
    )
    return Picture("Simulated: peak of p99, mean over queries", [panel], legend=_LEGEND)


def _sweeps(groups: Mapping[str, Runs]) -> Picture:
    """Box plots of the p99 in the seconds of a burst, by burstiness and by parallelism."""
    panels = []
    for over, runs in groups.items():
        steps = list(dict.fromkeys(run[over] for run in runs))
        sides = by(runs, "side")
        width, boxes = 0.8 / len(sides), []
        for number, ((side,), some) in enumerate(sides.items()):
            shift = (number - (len(sides) - 1) / 2) * width
            # The quartiles of these five figures (minimum, quartiles, maximum) are the same quartiles.
            boxes.append(
                Boxes(
                    [run["p99_box_ms"] for run in some],
                    [_COLOURS[side]] * len(some),
                    [steps.index(run[over]) + shift for run in some],
                    0.85 * width,
                    TITLES[side],
                )
            )
        what, unit = _SWEPT[over]
        panels.append(
            Panel(
                boxes,
                x=unit,
                y="p99 of a second, ms",
                title=f"{runs[0]['query']}, {what}",
                log="y",
                names=[f"{step:g}" for step in steps],
            )
        )
    title = "Simulated: p99 in the seconds of a burst"
    return Picture(title, panels, columns=len(panels), share_x=False, share_y=True, legend=_LEGEND)


def _trade_off(what: str, runs: Runs, costs: Costs) -> Picture:
    """Latency in the burst, and the cost of a day by the share of it that is a burst."""
    at_s, seconds = runs[0]["at_s"], runs[0]["seconds"]
    lines = [_p99(run, at_s - 5, at_s + seconds + 5, zero_s=at_s) for run in runs]
    shares = np.linspace(0, _MOST_SHARE, 31).tolist()
    money = [
        _line(side, [100 * share for share in shares], [day(costs[side], s) for s in shares])
        for side in _ordered(costs, LIVE)
    ]
    panels = [
        Panel(
            [*lines, Shade(0, seconds)],
            x="seconds of the burst",
            y="p99, ms",
            title=f"{runs[0]['query']}, {_case(runs[0])}",
            log="y",
        ),
        Panel(
            [*money, Bound(100 * BURST_SHARE, upright=True)],
            x="% of the day that is a burst (dashed: share of the goal)",
            y="dollars per day",
            title="cost, mean over queries",
            y_from=0,
        ),
    ]
    return Picture(f"{what}: latency and cost", panels, columns=2, share_x=False, legend=_LEGEND)
