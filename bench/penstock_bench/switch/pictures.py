"""The pictures of `penstock bench switch`.

Numbers in file names are those of the matching figures in StreamSwitch's evaluation, or AutoFlow's.
Pictures of parts that the report lacks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock_bench.charts import (
    Bound,
    Boxes,
    Drawable,
    Line,
    Panel,
    Picture,
    Pictures,
    Shade,
    Text,
)
from penstock_bench.report import Result, by, having, mean
from penstock_bench.style import BLUE, GREEN, INK, ORANGE, PINK, QUIET, RED, SERIES, SKY
from penstock_bench.switch.sweeps import SWITCH

_POLICIES = {
    "switch": (BLUE, "o"),
    "switch, unit": (SKY, "*"),
    "streamswitch": (INK, "v"),
    "drs": (ORANGE, "^"),
    "drs_lb": (RED, "s"),
    "ds2": (PINK, "D"),
    "autoflow": (GREEN, "P"),
    "static": (QUIET, "x"),
}
"""Colour and marker of each kind of policy in all pictures."""
_PAPER = (8.40, 0.9628)
"""Hosts and success of StreamSwitch with a margin of 0.2, as published."""
_LOWEST = 0.6
"""Lowest success that is shown, so that higher values can be distinguished."""
_NOTHING_MS = 1e-2
_DOTS = {"marker": "o"}

Runs = list[Result]


def pictures(report: Result) -> Pictures:
    """All pictures of a report."""
    parts = report["results"]
    groups = parts.get("simulated", {}).get("groups", {})
    live = [run for part in parts.values() for run in part.get("runs", ())]
    loads = [
        load
        for part in parts.values()
        if "projections" in part
        for load in part["projections"]["loads"]
    ]
    by_group: dict[str, dict[str, Callable[[Runs], Picture]]] = {
        "exchange": {"5-success-vs-hosts": _success_vs_hosts},
        "parameters": {
            "10-parameters": _parameters,
            "11-parameters-treatments": _parameters_treatments,
        },
        "kinds": {"12-kinds": _kinds, "13-kinds-used": _kinds_used},
        "waves": {"14-waves": _waves},
        "delays": {"15-delays": _delays},
        "flow": {"16-splits": _splits},
        "hotspots": {
            "autoflow-5-hotspots": partial(
                _uneven, "A hotspot, with and without balancing", ("hosts_kept", "share")
            )
        },
        "spikes": {
            "autoflow-6-spikes": partial(
                _uneven, "A spike on a third of the slots, from second 30 on", ("length_s",)
            )
        },
        "moving": {
            "autoflow-7-moving": partial(
                _uneven, "A hotspot that moves on every 40 s, three hosts", ("share",)
            )
        },
    }
    drawn: Pictures = {
        f"switch-{name}": partial(picture, runs)
        for group, runs in groups.items()
        for name, picture in by_group[group].items()
    }
    judged = having(groups.get("exchange", ()), latency_ms=1000, window_ms=1000)
    if judged:
        drawn["switch-5-boxes"] = partial(_success_by_slot, judged)
    if switch := having(judged, policy=SWITCH):
        drawn["switch-5-slots"] = partial(_slots_compared, judged)
        drawn["switch-6-over-time"] = partial(_over_a_day, switch[0])
    judged_live = [run for run in live if run["policy"] is not None and not run["max_over_mean"]]
    for (name,), some in by(judged_live, "name").items():
        drawn[f"switch-live-{name.replace(', ', '-')}"] = partial(_live, some)
    if uneven := [run for run in live if run["max_over_mean"]]:
        drawn["switch-live-hotspots"] = partial(_live_hotspots, uneven)
    if loads:
        drawn["switch-projections"] = partial(_projections, loads)
    return drawn


def _kind(policy: str) -> str:
    """
    >>> _kind("switch(0.2)"), _kind("switch(0.2, unit)"), _kind("ds2")
    ('switch', 'switch, unit', 'ds2')
    """
    name = policy.partition("(")[0]
    return f"{name}, unit" if "unit" in policy else name


def _lowest(values: Iterable[float]) -> float:
    """Start of an axis of success."""
    return min(0.95, min(values) - 0.01)


# -- a day at the exchange


def _success_vs_hosts(runs: Runs) -> Picture:
    """A panel for each SLA, a line for each kind of policy."""
    lowest = max(_LOWEST, min(run["success"] for run in runs) - 0.02)
    panels = []
    for (latency_ms, window_ms), some in by(runs, "latency_ms", "window_ms").items():
        marks: list[Drawable] = []
        for name in dict.fromkeys(_kind(run["policy"]) for run in some):
            points = sorted(
                (run["hosts"], run["success"]) for run in some if _kind(run["policy"]) == name
            )
            colour, marker = _POLICIES[name]
            how = {"marker": marker, "ms": 10 if name == "switch, unit" else 5}
            hosts, success = zip(*points, strict=True)
            marks.append(Line(hosts, success, name, colour, how=how))
        if (latency_ms, window_ms) == (1000, 1000):
            how = {"marker": "o", "ls": "", "mfc": "none"}
            marks.append(Line(_PAPER[:1], _PAPER[1:], "StreamSwitch, as published", how=how))
        panels.append(
            Panel(
                marks,
                x="hosts on average",
                y="success",
                title=f"{latency_ms / 1000:g} s over {window_ms / 1000:g} s",
                percent=True,
                y_from=lowest,
                y_to=1.005,
            )
        )
    title = "A day at the exchange: windows that keep the SLA, by hosts used"
    return Picture(title, panels, columns=len(panels), share_y=True)


def _success_by_slot(runs: Runs) -> Picture:
    """Box plots of the success of each run's slots, ordered by hosts used."""
    some = sorted((run for run in runs if "by_slot" in run), key=lambda run: float(run["hosts"]))
    colours = [_POLICIES[_kind(run["policy"])][0] for run in some]
    panel = Panel(
        [Boxes([run["by_slot"] for run in some], colours)],
        y="success of a slot",
        names=[f"{run['policy']}\n{run['hosts']:.1f}" for run in some],
        turned=True,
        percent=True,
        y_from=max(_LOWEST, min(min(run["by_slot"]) for run in some) - 0.02),
        y_to=1.005,
    )
    return Picture("Success of the 64 slots, by hosts used, SLA 1 s over 1 s", [panel])


def _slots_compared(runs: Runs) -> Picture:
    """Success of every slot under the switch, and under other policies with about as many hosts."""
    by_slot = [run for run in runs if "by_slot" in run]
    (switch, *_) = having(by_slot, policy=SWITCH)
    order = np.argsort(switch["by_slot"])
    marks = []
    for name in ("switch", "static", "drs_lb", "drs"):
        others = [run for run in by_slot if _kind(run["policy"]) == name]
        if others:
            run = min(others, key=lambda other: abs(other["hosts"] - switch["hosts"]))
            run = switch if name == "switch" else run
            colour, marker = _POLICIES[name]
            success = np.array(run["by_slot"])[order].tolist()
            label = f"{run['policy']}: {run['hosts']:.2f} hosts, {run['success']:.2%}"
            how = {"marker": marker, "ls": ""}
            marks.append(Line(range(len(success)), success, label, colour, how=how))
    x = "slots, ordered by their success under the switch"
    panel = Panel(marks, x=x, y="success of a slot", percent=True)
    return Picture("Success of each slot, with about as many hosts", [panel])


def _latencies(
    series: Result, places: Sequence[float], bound_ms: float, **how: Any
) -> list[Drawable]:
    """The 99th percentile and the mean over time, and the SLA's bound."""
    return [
        Line(places, series["p99_ms"], "p99", ORANGE, how=how),
        Line(places, series["mean_ms"], "mean", BLUE, how=how),
        Bound(bound_ms),
        Text("the SLA's bound", (places[0], bound_ms)),
    ]


def _over_a_day(run: Result) -> Picture:
    """One run over the day: arrivals, hosts, balances and latencies."""
    series = run["timeline"]
    minutes = ((np.arange(len(series["rate"])) + 0.5) * series["every_s"] / 60).tolist()
    balanced = (np.array(series["balanced_s"]) / 60).tolist()
    hosts = np.interp(balanced, minutes, np.array(series["hosts"], float)).tolist()
    circles = {"marker": "o", "ls": "", "mfc": "none", "ms": 4}
    panels = [
        Panel([Line(minutes, series["rate"], how={"lw": 1})], y="arrivals per second", log="y"),
        Panel(
            [
                Line(minutes, series["hosts"], colour=BLUE, steps=True, how={"lw": 1.2}),
                Line(balanced, hosts, "balanced", RED, how=circles),
            ],
            y="hosts",
            own_legend=True,
        ),
        Panel(
            _latencies(series, minutes, run["latency_ms"], lw=1),
            x="minutes",
            y="latency, ms:\nthe worst second",
            log="y",
            own_legend=True,
        ),
    ]
    return Picture(f"{run['policy']} over a day at the exchange", panels)


# -- the alert l and the time slot delta


def _along(runs: Runs, of: str) -> dict[float, Runs]:
    """Runs by the parameter `of`, with the other one of the two at 100 ms."""
    other = "delta_ms" if of == "alert_ms" else "alert_ms"
    some = having(runs, **{other: 100.0})
    return {value: same for (value,), same in sorted(by(some, of).items())}


def _over_ms(marks: Sequence[Drawable], places: Iterable[float], of: str, **more: Any) -> Panel:
    return Panel(marks, x=f"{of}, ms", log="x", ticks=list(places), **more)


_PARAMETERS = {"alert_ms": "l", "delta_ms": "δ"}


def _parameters(runs: Runs) -> Picture:
    """Success and hosts, by the alert l and by the time slot delta."""
    measures: dict[str, dict[str, Any]] = {
        "success": {
            "y": "success",
            "percent": True,
            "y_from": _lowest(run["success"] for run in runs),
            "y_to": 1.005,
        },
        "hosts": {"y": "hosts on average", "y_from": 0},
    }
    panels = []
    for measure, more in measures.items():
        for of, sign in _PARAMETERS.items():
            lines = _along(runs, of)
            values = [mean(some, measure) for some in lines.values()]
            line = Line(list(lines), values, colour=BLUE, how=_DOTS)
            panels.append(_over_ms([line], lines, sign, **more))
    title = "The alert l and the time slot δ: success and hosts"
    return Picture(title, panels, columns=2, share_x="col", share_y="row")


def _parameters_treatments(runs: Runs) -> Picture:
    """Number of treatments of each kind, by the alert l and by the time slot delta."""
    kinds = {"scale_out": "scale out", "scale_in": "scale in", "balance": "balance"}
    panels = []
    for of, sign in _PARAMETERS.items():
        lines = _along(runs, of)
        marks = []
        for (kind, name), colour in zip(kinds.items(), SERIES, strict=False):
            each = [
                sum(run["treatments"][kind] for run in some) / len(some) for some in lines.values()
            ]
            marks.append(Line(list(lines), each, name, colour, how=_DOTS))
        panels.append(_over_ms(marks, lines, sign, y="treatments per run"))
    title = "Treatments in 30 minutes, by the alert l and the time slot δ"
    return Picture(title, panels, columns=2, share_x=False)


# -- kinds of hosts, waves, delays, splits


def _by_kind(runs: Runs, measure: str) -> list[Drawable]:
    """A line for each speed of the other kind of hosts, over the share of hosts of that kind."""
    marks: list[Drawable] = []
    for ((alpha,), some), colour in zip(by(runs, "alpha").items(), SERIES, strict=False):
        places = by(some, "beta")
        values = [mean(same, measure) for same in places.values()]
        name = f"others {alpha:g} times as fast"
        marks.append(Line([beta for (beta,) in places], values, name, colour, how=_DOTS))
    return marks


_SUPPLIED = "hosts of the other kind supplied (β)"


def _kinds(runs: Runs) -> Picture:
    lowest = _lowest(run["success"] for run in runs)
    panels = [
        Panel(
            *(_by_kind(runs, "success"), _SUPPLIED, "success"),
            percent=True,
            y_from=lowest,
            y_to=1.005,
        ),
        Panel(_by_kind(runs, "hosts"), _SUPPLIED, "hosts on average"),
    ]
    return Picture("Hosts of two kinds", panels, columns=2)


def _kinds_used(runs: Runs) -> Picture:
    """Share of the other kind among hosts in use and hosts supplied (dashed), and number of treatments."""
    supplied = Line([0.2, 0.8], [0.2, 0.8], how={"lw": 1, "ls": (0, (4, 3))})
    used = [*_by_kind(runs, "other_share"), supplied]
    panels = [
        Panel(used, _SUPPLIED, "hosts of the other kind in use", percent=True),
        Panel(_by_kind(runs, "events"), _SUPPLIED, "treatments"),
    ]
    return Picture("Hosts of two kinds: which are in use, and treatments", panels, columns=2)


def _waves(runs: Runs) -> Picture:
    """Box plots over seeds, for higher and shorter waves."""
    places = {
        f"{amplitude // 1000:g} k\n{period_s:g} s": some
        for (amplitude, period_s), some in by(runs, "amplitude", "period_s").items()
    }
    return _switching("Higher and shorter waves", places, "amplitude per second, and period")


def _delays(runs: Runs) -> Picture:
    """Box plots over seeds, for longer switching delays on the highest wave that ran."""
    highest = max(run["amplitude"] for run in runs)
    chosen = having(runs, amplitude=highest)
    places = {f"{delay_ms / 1000:g}": some for (delay_ms,), some in by(chosen, "delay_ms").items()}
    title = f"Longer switching delays, on waves of {highest // 1000:g} k"
    return _switching(title, places, "added delay, s")


def _boxes(
    places: Mapping[str, Runs], value: Callable[[Result], float], colour: str, **more: Any
) -> Panel:
    groups = [[value(run) for run in some] for some in places.values()]
    if more.get("percent"):
        more |= {"y_from": _lowest(value for some in groups for value in some), "y_to": 1.005}
    return Panel([Boxes(groups, [colour] * len(groups))], names=list(places), **more)


def _switching(title: str, places: Mapping[str, Runs], along: str) -> Picture:
    panels = [
        _boxes(places, lambda run: run["success"], BLUE, y="success", percent=True),
        _boxes(places, lambda run: run["hosts"], ORANGE, y="hosts on average"),
        _boxes(places, lambda run: run["events"], GREEN, x=along, y="treatments"),
        _boxes(
            *(places, lambda run: run["switching_s"] / max(1, run["events"]), RED),
            x=along,
            y="switching, s per treatment",
        ),
    ]
    return Picture(title, panels, columns=2, share_x=False)


def _splits(runs: Runs) -> Picture:
    """Box plots over seeds of the success of both steps, and end to end."""
    places = {
        "moving" if split is None else f"{2 * split:g} s, {2 - 2 * split:g} s": some
        for (split,), some in by(runs, "split").items()
    }
    along = "split of the bound: step split, step count"
    measures: dict[str, Callable[[Result], float]] = {
        "step split": lambda run: run["steps"]["split"]["success"],
        "step count": lambda run: run["steps"]["count"]["success"],
        "end to end": lambda run: run["success"],
    }
    panels = [
        _boxes(places, value, colour, x=along, y="success", title=name, percent=True)
        for (name, value), colour in zip(measures.items(), SERIES, strict=False)
    ]
    return Picture("An end-to-end bound of 2 s, split between two steps", panels)


# -- AutoFlow's figures, simulated


def _uneven(title: str, facts: tuple[str, ...], runs: Runs) -> Picture:
    """A column for each case: latency above, load of the busiest host below."""
    above, below = [], []
    for case, some in by(runs, *facts).items():
        latency, busiest = list[Drawable](), list[Drawable]()
        for run in some:
            kind, means = _kind(run["policy"]), run["timeline"]["mean_ms"]
            # One policy has two windows: the longer one is dotted.
            how = {"ls": ":" if run["policy"].startswith("autoflow(10s") else "-", "lw": 1.2}
            name = "no balancing" if kind == "static" else run["policy"]
            colour = _POLICIES[kind][0]
            latency.append(Line(range(len(means)), means, name, colour, how=how))
            loads = np.max(run["loads"], axis=0).tolist()
            busiest.append(Line(range(len(loads)), loads, name, colour, how=how))
        what = ", ".join(_case(*pair) for pair in zip(facts, case, strict=True))
        above.append(
            Panel(
                [*latency, Bound(some[0]["latency_ms"])],
                y="mean latency, ms\n(dashed: the bound)",
                title=what,
                log="y",
            )
        )
        label = "busiest host, records/s\n(dashed: its capacity)"
        below.append(Panel([*busiest, Bound(1000)], x="seconds", y=label, y_from=0))
    return Picture(title, [*above, *below], columns=len(above), share_y="row")


def _case(fact: str, value: float) -> str:
    """
    >>> _case("share", 0.5), _case("hosts_kept", 3), _case("length_s", 20)
    ('50 % hot', '3 hosts', '20 s')
    """
    if fact == "share":
        return f"{100 * value:.0f} % hot"
    return f"{value} hosts" if fact == "hosts_kept" else f"{value} s"


# -- live


def _live(runs: Runs) -> Picture:
    """Arrivals, hosts and latency by second: a column for each seed."""
    rates, hosts, latencies = [], [], []
    for run in runs:
        series, settings = run["by_second"], run["settings"]
        seconds = (np.arange(len(series["rate"])) + 0.5).tolist()
        unjudged = Shade(0, settings["warm_up_s"])
        at_best = f"; {run['possible']:.1%} is possible" if run.get("possible") else ""
        title = f"{run['success']:.1%} kept{at_best}" if len(runs) > 1 else ""
        arrivals = [Line(seconds, series["rate"]), unjudged]
        rates.append(Panel(arrivals, y="arrivals per second", title=title, y_from=0))
        count = Line(seconds, series["hosts"], colour=BLUE, steps=True)
        hosts.append(Panel([count, unjudged], y="hosts", y_from=0))
        latencies.append(
            Panel(
                [*_latencies(series, seconds, settings["sla"]["latency_ms"]), unjudged],
                x="seconds (grey: warm-up, not counted)",
                y="arrival to sink, ms",
                log="y",
                own_legend=run is runs[0],
            )
        )
    mean_hosts = mean(runs, "hosts")
    title = f"Live: {runs[0]['name']}, {runs[0]['policy']}: success {mean(runs, 'success'):.2%}"
    if len(runs) > 1:
        title += f" over {len(runs)} seeds"
    return Picture(
        f"{title} with {mean_hosts:.1f} hosts",
        [*rates, *hosts, *latencies],
        columns=len(runs),
        share_y="row",
    )


def _live_hotspots(runs: Runs) -> Picture:
    """Load of the busiest host over the mean: a dot for each period of each hotspot."""
    names = list(dict.fromkeys(run["name"] for run in runs))
    marks: list[Drawable] = []
    for run in runs:
        kind, ratios = _kind(run["policy"]), run["max_over_mean"]
        colour, marker = _POLICIES[kind]
        at = names.index(run["name"]) + (-0.08 if kind == "switch" else 0.08)
        how = {"marker": marker, "ls": "", "ms": 8}
        marks.append(Line([at] * len(ratios), ratios, run["policy"], colour, how=how))
    panel = Panel(
        [*marks, Bound(1.15, "goal")],
        y="busiest host over the mean",
        names=list(names),
        x_from=-0.5,
        x_to=len(names) - 0.5,
        y_from=1.0,
    )
    return Picture("Live: the busiest host over the mean, once a hotspot has moved", [panel])


def _projections(loads: Runs) -> Picture:
    """Projected and measured latency of steady loads: a panel for each engine."""
    lines = {"measured": "measured_ms", "M/M/1": "mm1_ms", "epochs": "epochs_ms"}
    panels = []
    for (engine,), some in by(loads, "engine").items():
        places = [load["utilisation"] for load in some]
        marks = []
        for (name, of), colour in zip(lines.items(), (INK, *SERIES), strict=False):
            # Without a cost per epoch the projection of epochs is close to zero: it is left out.
            values = [load[of] if load[of] > _NOTHING_MS else None for load in some]
            marks.append(Line(places, values, name, colour, how=_DOTS))
        title = "live" if engine == "live" else f"simulated, {engine}"
        panels.append(Panel(marks, "utilisation of a host", "latency, ms", title, log="y"))
    title = "Projected and measured latency of steady loads"
    return Picture(title, panels, columns=len(panels))
