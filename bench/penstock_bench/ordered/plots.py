"""The pictures of `penstock bench ordered`, drawn from its report.

Numbers in file names are those of the figures in the evaluation of the ordered multicore runtime of
Prasaad, Ramalingam and Rajan that show the same. Lines and bars are medians of the rounds, bands and
whiskers go from the least to the most. A group that the report does not have leaves out its pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures
from penstock_bench.ordered import plots_operators as ordered_plots_operators
from penstock_bench.ordered import plots_queries as ordered_plots_queries
from penstock_bench.ordered.trials import Tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUPS: dict[str, dict[str, Callable[[list[Tell]], Figure]]] = {
    "queries": {
        "ordered-8-throughput.png": ordered_plots_queries.throughput,
        "ordered-8-latency.png": ordered_plots_queries.latency,
        "ordered-11-queues.png": ordered_plots_queries.queues,
        "ordered-14-reorderings.png": ordered_plots_queries.reorderings,
    },
    "hosts": {"ordered-8-hosts.png": ordered_plots_queries.hosts},
    "cores": {"ordered-cores.png": ordered_plots_queries.cores},
    "skew": {"ordered-9-skew.png": ordered_plots_operators.skew},
    "cost": {"ordered-10-latency-by-cost.png": ordered_plots_operators.latency_by_cost},
    "light": {"ordered-12-light.png": ordered_plots_operators.light},
    "selectivity": {"ordered-13-selectivity.png": ordered_plots_operators.selectivity},
}
"""By group of trials: its pictures, by file name."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all that the report tells into PNG files in this folder, and say which.

    The folder is made if it is not there. Pictures of an earlier report are replaced.
    """
    results = pictures.results_of(report, "ordered")
    return pictures.save(
        {
            name: partial(drawing, results[group])
            for group, drawings in _GROUPS.items()
            for name, drawing in drawings.items()
            if results.get(group)
        },
        folder,
    )
