"""Pictures of runs over time: hotspots and spikes that are simulated, and all that is live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_bench.pictures import INK, beside, log_axis, plain
from penstock_bench.switch.drawing import (
    COLOURS,
    MARKERS,
    SERIES,
    Run,
    by,
    kind,
    legend,
    panels,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTHING_MS = 1e-2
_BOUND: dict[str, Any] = {"color": INK, "lw": 1, "ls": (0, (4, 3))}


# -- AutoFlow's figures, simulated


def hotspots(runs: list[Run]) -> Figure:
    """A hotspot that stays."""
    return _uneven("A hotspot, with and without balancing", runs, "hosts_kept", "share")


def spikes(runs: list[Run]) -> Figure:
    """A hotspot of some seconds."""
    return _uneven("A spike on a third of the slots, from second 30 on", runs, "length_s")


def moving(runs: list[Run]) -> Figure:
    """A hotspot that goes round."""
    return _uneven("A hotspot that moves on every 40 s, three hosts", runs, "share")


def _uneven(what: str, runs: list[Run], *names: str) -> Figure:
    """A column for each case: latency above, what the busiest host gets below."""
    cases = by(runs, *names)
    figure, axes = panels(what, 2, len(cases), sharey="row")
    handles: dict[str, Any] = {}
    for (case, some), (latency, busiest) in zip(cases.items(), axes.T, strict=True):
        title(latency, ", ".join(_case(*pair) for pair in zip(names, case, strict=True)))
        for run in some:
            colour = COLOURS[kind(run["policy"])]
            # Two windows of one policy: the longer one is dotted.
            style = ":" if run["policy"].startswith("autoflow(10s") else "-"
            name = "hosts and slots stay" if kind(run["policy"]) == "static" else run["policy"]
            (handles[name],) = latency.plot(
                _values(run["timeline"]["mean_ms"]), style, color=colour, lw=1.2
            )
            busiest.plot(np.max(run["loads"], axis=0), style, color=colour, lw=1.2)
        busiest.set_xlabel("seconds")
        latency.axhline(some[0]["latency_ms"], **_BOUND)
        busiest.axhline(1000, **_BOUND)
    means = [value for run in runs for value in run["timeline"]["mean_ms"] if value]
    log_axis(axes[0, 0], "y", min(means), max(means))
    axes[0, 0].set_ylabel("mean latency, ms\n(dashed: the bound)")
    axes[1, 0].set_ylabel("busiest host, records/s\n(dashed: what it can take)")
    axes[1, 0].set_ylim(bottom=0)
    legend(figure, handles)
    return figure


def _case(name: str, value: float) -> str:
    """
    >>> _case("share", 0.5), _case("hosts_kept", 3), _case("length_s", 20)
    ('50 % hot', '3 hosts', '20 s')
    """
    if name == "share":
        return f"{100 * value:.0f} % hot"
    return f"{value} hosts" if name == "hosts_kept" else f"{value} s"


# -- live


def live(run: Run) -> Figure:
    """Arrivals and hosts, and latency, by the second."""
    told = run["by_second"]
    what = f"Live: {run['name']}, {run['policy']}: success {run['success']:.2%}"
    figure, axes = panels(f"{what} with {run['hosts']:.1f} hosts", 3)
    rate, hosts, latency = axes[:, 0]
    seconds = np.arange(len(told["rate"])) + 0.5
    rate.plot(seconds, _values(told["rate"]), color=INK)
    rate.set_ylabel("arrivals a second")
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter(plain())
    hosts.step(seconds, _values(told["hosts"]), where="mid", color=COLOURS["switch"])
    hosts.set_ylabel("hosts")
    hosts.set_ylim(bottom=0)
    _latency(latency, run, seconds)
    for axis in axes[:, 0]:
        axis.axvspan(0, run["settings"]["warm_up_s"], color=INK, alpha=0.06, lw=0)
    latency.set_xlabel("seconds (grey: not judged)")
    return figure


def _latency(axis: Axes, run: Run, seconds: Any) -> None:
    told, bound_ms = run["by_second"], run["settings"]["sla"]["latency_ms"]
    for of, colour in (("p99_ms", COLOURS["drs"]), ("mean_ms", COLOURS["switch"])):
        axis.plot(seconds, _values(told[of]), color=colour, label=of.removesuffix("_ms"))
    axis.axhline(bound_ms, **_BOUND)
    beside(axis, "the SLA's bound", (0, bound_ms), (4, 3))
    drawn = [value for of in ("mean_ms", "p99_ms") for value in told[of] if value is not None]
    log_axis(axis, "y", min(drawn), max(*drawn, bound_ms))
    axis.set_ylabel("arrival to sink, ms")
    axis.legend(loc="upper right")


def live_hotspots(runs: list[Run]) -> Figure:
    """A dot for each place of each hotspot."""
    names = list(dict.fromkeys(run["name"] for run in runs))
    figure, axes = panels("Live: the busiest host over the mean, once a hotspot has moved", 1)
    axis = axes[0, 0]
    handles: dict[str, Any] = {}
    for run in runs:
        which = kind(run["policy"])
        at = names.index(run["name"]) + (-0.08 if which == "switch" else 0.08)
        ratios = run["max_over_mean"]
        (handles[run["policy"]],) = axis.plot(
            *([at] * len(ratios), ratios), MARKERS[which], color=COLOURS[which], ms=8
        )
    handles["goal"] = axis.axhline(1.15, **_BOUND)
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylim(bottom=1.0)
    axis.set_ylabel("busiest host over the mean")
    axis.grid(axis="x", visible=False)
    legend(figure, handles)
    return figure


# -- projections


def projections(loads: list[Run]) -> Figure:
    """What was projected of steady loads, and what was measured: a panel for each engine."""
    engines = by(loads, "engine")
    figure, axes = panels("Projected and measured latency of steady loads", 1, len(engines))
    handles: dict[str, Any] = {}
    lines = {"measured": "measured_ms", "M/M/1": "mm1_ms", "epochs": "epochs_ms"}
    for axis, ((engine,), some) in zip(axes[0], engines.items(), strict=True):
        title(axis, "live" if engine == "live" else f"simulated, {engine}")
        places = [load["utilisation"] for load in some]
        for (name, of), colour in zip(lines.items(), (INK, *SERIES), strict=False):
            # Without a cost of epochs their projection says next to nothing, and has no place here.
            values = [load[of] if load[of] > _NOTHING_MS else np.nan for load in some]
            (handles[name],) = axis.plot(places, values, "o-", color=colour)
        shown = [load[of] for load in some for of in lines.values() if load[of] > _NOTHING_MS]
        log_axis(axis, "y", min(shown), max(shown))
        axis.set_xlabel("utilisation of a host")
    axes[0, 0].set_ylabel("latency, ms")
    legend(figure, handles)
    return figure


def _values(series: list[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in series])
