"""The pictures of `penstock bench switch`, drawn from its report.

Numbers in file names are those of the figures in StreamSwitch's evaluation, or AutoFlow's, that show
the same. A part that the report does not have leaves out its pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures
from penstock_bench.switch import plots_exchange as switch_plots_exchange
from penstock_bench.switch import plots_live as switch_plots_live
from penstock_bench.switch import plots_sweeps as switch_plots_sweeps
from penstock_bench.switch.drawing import Run
from penstock_bench.switch.sweeps import SWITCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawings = dict[str, Callable[[], "Figure"]]

_GROUPS: dict[str, dict[str, Callable[[list[Run]], Figure]]] = {
    "exchange": {"switch-5-success-vs-hosts.png": switch_plots_exchange.success_vs_hosts},
    "parameters": {
        "switch-10-parameters.png": switch_plots_sweeps.parameters,
        "switch-11-parameters-treatments.png": switch_plots_sweeps.parameters_treatments,
    },
    "kinds": {
        "switch-12-kinds.png": switch_plots_sweeps.kinds,
        "switch-13-kinds-used.png": switch_plots_sweeps.kinds_used,
    },
    "waves": {"switch-14-waves.png": switch_plots_sweeps.waves},
    "delays": {"switch-15-delays.png": switch_plots_sweeps.delays},
    "flow": {"switch-16-splits.png": switch_plots_sweeps.splits},
    "hotspots": {"switch-autoflow-5-hotspots.png": switch_plots_live.hotspots},
    "spikes": {"switch-autoflow-6-spikes.png": switch_plots_live.spikes},
    "moving": {"switch-autoflow-7-moving.png": switch_plots_live.moving},
}
"""By group of simulated runs: its pictures, by file name."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all that the report tells into PNG files in this folder, and say which.

    The folder is made if it is not there. Pictures of an earlier report are replaced.
    """
    results = pictures.results_of(report, "switch")
    return pictures.save(
        {
            **_simulated(results["simulated"]),
            **_live(results["live"]),
            **_projected(results["projections"]["loads"]),
        },
        folder,
    )


def _simulated(groups: dict[str, list[Run]]) -> Drawings:
    found: Drawings = {}
    for group, runs in groups.items():
        for name, drawing in _GROUPS[group].items():
            found[name] = partial(drawing, runs)
    judged = [run for run in groups.get("exchange", ()) if _is_first_sla(run)]
    if judged:
        found["switch-5-boxes.png"] = partial(switch_plots_exchange.success_by_slot, judged)
    switch = [run for run in judged if run["policy"] == SWITCH]
    if switch:
        found["switch-5-slots.png"] = partial(switch_plots_exchange.slots_compared, judged)
        found["switch-6-over-time.png"] = partial(switch_plots_exchange.over_time, switch[0])
    return found


def _is_first_sla(run: Run) -> bool:
    return (run["latency_ms"], run["window_ms"]) == (1000, 1000)


def _live(runs: list[Run]) -> Drawings:
    found: Drawings = {}
    for run in runs:
        if run["policy"] is not None and not run["max_over_mean"]:
            found[f"switch-live-{run['name']}.png"] = partial(switch_plots_live.live, run)
    uneven = [run for run in runs if run["max_over_mean"]]
    if uneven:
        found["switch-live-hotspots.png"] = partial(switch_plots_live.live_hotspots, uneven)
    return found


def _projected(loads: list[Run]) -> Drawings:
    if not loads:
        return {}
    return {"switch-projections.png": partial(switch_plots_live.projections, loads)}
