"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock_bench.burst import bench as burst
from penstock_bench.burst import plots as burst_plots
from penstock_bench.goals import Goal
from penstock_bench.migration import bench as migration
from penstock_bench.migration import plots as migration_plots
from penstock_bench.nexmark import bench as nexmark
from penstock_bench.nexmark import plots as nexmark_plots
from penstock_bench.ordered import bench as ordered
from penstock_bench.ordered import plots as ordered_plots
from penstock_bench.pipeline import bench as pipeline
from penstock_bench.report import Report, Show
from penstock_bench.switch import bench as switch
from penstock_bench.switch import plots as switch_plots


@dataclass(frozen=True)
class Bench:
    """One benchmark: how to run it, and what its figures should be."""

    run: Callable[[Show, bool], Report]
    """Takes a function that progress lines go to, and whether to be quick."""
    goals: Mapping[str, Goal]
    draw: Callable[[dict[str, Any], Path], list[Path]] | None = None
    """Draws pictures of a report, given as its JSON, into a folder."""


BENCHES = {
    "pipeline": Bench(pipeline.run, pipeline.GOALS),
    "migration": Bench(migration.run, migration.GOALS, migration_plots.draw),
    "nexmark": Bench(nexmark.run, nexmark.GOALS, nexmark_plots.draw),
    "switch": Bench(switch.run, switch.GOALS, switch_plots.draw),
    "ordered": Bench(ordered.run, ordered.GOALS, ordered_plots.draw),
    "burst": Bench(burst.run, burst.GOALS, burst_plots.draw),
}


def find(name: str) -> Bench:
    """The benchmark of that name.

    >>> find("nosuch")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: there is no benchmark 'nosuch'. What to do: choose from: pipeline, ...
    """
    if name not in BENCHES:
        raise SettingError(
            f"there is no benchmark {name!r}", hint=f"choose from: {', '.join(BENCHES)}"
        )
    return BENCHES[name]
