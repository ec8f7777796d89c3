"""Pictures of single operators: under skew, by cost, light ones, and those with many outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures
from penstock_bench.ordered.drawing import (
    NAMES,
    by_workers,
    curve,
    figure,
    named,
    speedup,
    worker_us,
)
from penstock_bench.ordered.sweeps import QUEUES, REORDERS
from penstock_bench.ordered.trials import Tell, of
from penstock_bench.switch.drawing import legend, panels, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def skew(told: Sequence[Tell]) -> Figure:
    """Speedup over workers without and with skew, and over skew with the most workers."""
    drawn, axes = panels("Gaussian skew: speedup over one worker", 1, 2, sharex=False, sharey=True)
    most = max(one["workers"] for one in told)
    (alone, *_) = of(told, workers=1, queue="hybrid")
    value = speedup(alone)
    over_workers, over_sigma = axes[0]
    lines: dict[str, Any] = {}
    ends = sorted({one["sigma"] for one in of(told, workers=1)}, reverse=True)
    for queue in QUEUES:
        for sigma, dashes in zip(ends, ("-", (0, (4, 2))), strict=False):
            side = of(told, queue=queue, sigma=sigma)
            name = f"{NAMES[queue]}, σ {sigma:g}"
            lines[name] = curve(over_workers, queue, side, "workers", value, ls=dashes)
        curve(over_sigma, queue, of(told, queue=queue, workers=most), "sigma", value)
    title(over_workers, "over workers")
    over_workers.set(xlabel="workers", ylabel="speedup")
    over_workers.set_ylim(bottom=0)
    by_workers(over_workers, told)
    title(over_sigma, f"over σ, {most} workers")
    sigmas = sorted({one["sigma"] for one in told})
    pictures.log_axis(over_sigma, "x", sigmas[0], sigmas[-1])
    over_sigma.set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas])
    over_sigma.set_xlabel("σ: the smaller, the more skew")
    legend(drawn, lines)
    return drawn


def latency_by_cost(told: Sequence[Tell]) -> Figure:
    """Hybrid against partitioned."""
    drawn, axes = panels(f"Latency over cost of a record, {told[0]['workers']} workers", 1)
    lines: dict[str, Any] = {}
    for queue in QUEUES:
        side = of(told, queue=queue)
        lines[queue] = curve(axes[0, 0], queue, side, "cost_us", figure("latency_ms"))
    costs = sorted({one["cost_us"] for one in told})
    (own,) = axes[0, 0].plot(costs, [us / 1e3 for us in costs], color="#999999", ls=":")
    values = [us / 1e3 for us in costs] + [value for one in told for value in one["latency_ms"]]
    pictures.log_axis(axes[0, 0], "x", costs[0], costs[-1])
    pictures.log_axis(axes[0, 0], "y", min(values), max(values))
    axes[0, 0].set(xlabel="cost of a record, µs", ylabel="mean latency, ms")
    legend(drawn, named(lines) | {"the cost itself": own})
    return drawn


def light(told: Sequence[Tell]) -> Figure:
    """Non-blocking against lock-based."""
    return _reorderings("A light stateless operator, by reordering", told)


def selectivity(told: Sequence[Tell]) -> Figure:
    """Non-blocking against lock-based."""
    return _reorderings("Fifty outputs for each input, then a keyed operator, by reordering", told)


def _reorderings(heading: str, told: Sequence[Tell]) -> Figure:
    drawn, axes = panels(heading, 1, 2)
    (alone,) = of(told, workers=1, reorder="nonblocking")
    lines: dict[str, Any] = {}
    for reorder in REORDERS:
        side = of(told, reorder=reorder)
        lines[reorder] = curve(axes[0, 0], reorder, side, "workers", speedup(alone))
        curve(axes[0, 1], reorder, side, "workers", worker_us)
    axes[0, 0].set(xlabel="workers", ylabel="speedup over one worker")
    axes[0, 1].set(xlabel="workers", ylabel="worker time for a record, µs")
    for axis in axes[0]:
        by_workers(axis, told)
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(pictures.plain())
    legend(drawn, named(lines))
    return drawn
