"""The pictures of `penstock bench burst`, drawn from its report.

Numbers in file names are those of the figures in Sponge's evaluation that show the same. A part that
the report does not have leaves out its pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures
from penstock_bench.burst import plots_sums as burst_plots_sums
from penstock_bench.burst import plots_time as burst_plots_time
from penstock_bench.burst.plots_style import BREAKDOWN, COMPARED
from penstock_bench.switch.drawing import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawings = dict[str, Callable[[], "Figure"]]
_TRADED = ("new_hosts_30s", "penstock", "overprovisioned")
_EXAMPLE = ("q7", "q5", "q8", "q4", "q6", "q1")
"""Of which query latency stands beside money: the first of these that was run."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all that the report tells into PNG files in this folder, and say which.

    The folder is made if it is not there. Pictures of an earlier report are replaced.
    """
    results = pictures.results_of(report, "burst")
    drawings = _simulated(results["simulated"], results["costs"].get("simulated", {}))
    if sweeps := {over: runs for over, runs in results["sweeps"].items() if runs}:
        drawings["burst-14-sweeps.png"] = partial(burst_plots_sums.sweeps, sweeps)
    drawings |= _over_time("Live", "live-", results["live"])
    drawings |= _traded("Live", "live-", results["live"], results["costs"].get("live", {}))
    return pictures.save(drawings, folder)


def _simulated(runs: list[Run], costs: dict[str, dict[str, float]]) -> Drawings:
    if not runs:
        return {}
    shown = [run for run in runs if "by_second" in run]
    found = _over_time("Simulated", "", shown)
    compared = [run for run in runs if run["side"] in COMPARED]
    found["burst-12-peaks.png"] = partial(burst_plots_sums.peaks, compared)
    parts = [run for run in shown if run["side"] in BREAKDOWN and run["query"] not in ("q1", "q7")]
    if parts:
        found["burst-13-breakdown.png"] = partial(burst_plots_time.breakdown, parts)
    return found | _traded("Simulated", "", shown, costs)


def _over_time(what: str, prefix: str, runs: Sequence[Run]) -> Drawings:
    shown = [run for run in runs if run["side"] in COMPARED]
    if not shown:
        return {}
    return {
        f"burst-10-{prefix}latency.png": partial(burst_plots_time.latency, what, shown),
        f"burst-11-{prefix}loads.png": partial(burst_plots_time.loads, what, shown),
    }


def _traded(
    what: str, prefix: str, runs: Sequence[Run], costs: dict[str, dict[str, float]]
) -> Drawings:
    """Latency and money of one query."""
    for query in _EXAMPLE:
        some = [run for run in runs if run["query"] == query and run["side"] in _TRADED]
        if some and costs:
            drawing = partial(burst_plots_sums.trade_off, what, some, costs)
            return {f"burst-15-{prefix}trade-off.png": drawing}
    return {}
