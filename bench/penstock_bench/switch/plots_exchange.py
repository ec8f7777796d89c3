"""Pictures of a day at the exchange: success and hosts by policy, and one run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_bench.pictures import INK, QUIET, beside, log_axis
from penstock_bench.switch.drawing import (
    COLOURS,
    MARKERS,
    Run,
    boxes,
    by,
    kind,
    legend,
    panels,
    percent,
    title,
)
from penstock_bench.switch.sweeps import SWITCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = (8.40, 0.9628)
"""Hosts and success of StreamSwitch with a margin of 0.2, as published."""
_LOWEST = 0.6
"""What is below it is left out, so that the rest can be told apart."""


def success_vs_hosts(runs: list[Run]) -> Figure:
    """A panel for each SLA, a line for each kind of policy."""
    slas = by(runs, "latency_ms", "window_ms")
    figure, axes = panels(
        "A day at the exchange: windows that keep the SLA, by hosts used",
        *(1, len(slas)),
        sharey=True,
    )
    handles: dict[str, Any] = {}
    for axis, ((latency_ms, window_ms), some) in zip(axes.flat, slas.items(), strict=True):
        title(axis, f"{latency_ms / 1000:g} s over {window_ms / 1000:g} s")
        kinds: dict[str, list[Run]] = {}
        for run in some:
            kinds.setdefault(kind(run["policy"]), []).append(run)
        for name, line in kinds.items():
            points = sorted((run["hosts"], run["success"]) for run in line)
            (handles[name],) = axis.plot(
                *zip(*points, strict=True),
                color=COLOURS[name],
                marker=MARKERS[name],
                ms=10 if name == "switch, unit" else 5,
            )
        if (latency_ms, window_ms) == (1000, 1000):
            (handles["StreamSwitch, as published"],) = axis.plot(
                *_PAPER, "o", mfc="none", color=INK
            )
        axis.set_xlabel("hosts on average")
    lowest = min(run["success"] for run in runs)
    axes[0, 0].set_ylim(max(_LOWEST, lowest - 0.02), 1.005)
    axes[0, 0].set_ylabel("success")
    percent(axes[0, 0])
    legend(figure, handles)
    return figure


def success_by_slot(runs: list[Run]) -> Figure:
    """A box for each run over its slots; by hosts used."""
    some = sorted((run for run in runs if "by_slot" in run), key=lambda run: float(run["hosts"]))
    figure, axes = panels("Success of the 64 slots, by hosts used, SLA 1 s over 1 s", 1)
    axis = axes[0, 0]
    labels = [f"{run['policy']}\n{run['hosts']:.1f}" for run in some]
    boxes(axis, [run["by_slot"] for run in some], labels, QUIET)
    for box, run in zip(axis.patches, some, strict=True):
        box.set(facecolor=COLOURS[kind(run["policy"])], alpha=0.6)
    axis.tick_params(axis="x", labelrotation=90, labelsize=7)
    axis.set_ylim(max(_LOWEST, min(min(run["by_slot"]) for run in some) - 0.02), 1.005)
    axis.set_ylabel("success of a slot")
    percent(axis)
    return figure


def slots_compared(runs: list[Run]) -> Figure:
    """Every slot under the switch, and under the run of other kinds that has the nearest hosts."""
    told = [run for run in runs if "by_slot" in run]
    switch = next(run for run in told if run["policy"] == SWITCH)
    figure, axes = panels("Success of each slot, with about as many hosts", 1)
    axis = axes[0, 0]
    order = np.argsort(switch["by_slot"])
    for name in ("switch", "static", "drs_lb", "drs"):
        others = [run for run in told if kind(run["policy"]) == name]
        if others:
            run = min(others, key=lambda one: abs(one["hosts"] - switch["hosts"]))
            run = switch if name == "switch" else run
            axis.plot(
                np.array(run["by_slot"])[order],
                MARKERS[name],
                color=COLOURS[name],
                label=f"{run['policy']}: {run['hosts']:.2f} hosts, {run['success']:.2%}",
            )
    axis.set_xlabel("slots, in the order of their success under the switch")
    axis.set_ylabel("success of a slot")
    percent(axis)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def over_time(run: Run) -> Figure:
    """Arrivals, hosts and balances, latencies: one run, over the day."""
    told = run["timeline"]
    figure, axes = panels(f"{run['policy']} over a day at the exchange", 3)
    minutes = (np.arange(len(told["rate"])) + 0.5) * told["every_s"] / 60
    rate, hosts, latency = axes[:, 0]
    rate.plot(minutes, _values(told["rate"]), color=INK, lw=1)
    rate.set_ylabel("arrivals a second")
    rates = [value for value in told["rate"] if value]
    log_axis(rate, "y", min(rates), max(rates))
    hosts.step(minutes, _values(told["hosts"]), where="mid", color=COLOURS["switch"], lw=1.2)
    balanced = np.array(told["balanced_s"]) / 60
    at = np.interp(balanced, minutes, _values(told["hosts"]))
    hosts.plot(balanced, at, "o", mfc="none", ms=4, color=COLOURS["drs_lb"], label="balanced")
    hosts.set_ylabel("hosts")
    hosts.legend(loc="upper right")
    for of, colour in (("p99_ms", COLOURS["drs"]), ("mean_ms", COLOURS["switch"])):
        latency.plot(minutes, _values(told[of]), color=colour, lw=1, label=of.removesuffix("_ms"))
    latency.axhline(run["latency_ms"], color=INK, lw=1, ls=(0, (4, 3)))
    beside(latency, "the SLA's bound", (minutes[0], run["latency_ms"]), (4, 3))
    drawn = [value for of in ("mean_ms", "p99_ms") for value in told[of] if value]
    log_axis(latency, "y", min(drawn), max(drawn))
    latency.set_ylabel("latency, ms:\nthe worst second")
    latency.set_xlabel("minutes")
    latency.legend(loc="upper right")
    return figure


def _values(series: list[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in series])
