"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import SettingError
from penstock_bench.burst import bench as burst
from penstock_bench.burst import pictures as burst_pictures
from penstock_bench.chaos import bench as chaos
from penstock_bench.chaos import pictures as chaos_pictures
from penstock_bench.charts import Pictures
from penstock_bench.live import bench as live
from penstock_bench.live import pictures as live_pictures
from penstock_bench.load import bench as load
from penstock_bench.load import pictures as load_pictures
from penstock_bench.migration import bench as migration
from penstock_bench.migration import pictures as migration_pictures
from penstock_bench.nexmark import bench as nexmark
from penstock_bench.nexmark import pictures as nexmark_pictures
from penstock_bench.ordered import bench as ordered
from penstock_bench.ordered import pictures as ordered_pictures
from penstock_bench.peers import bench as peers
from penstock_bench.peers import pictures as peers_pictures
from penstock_bench.pipeline import bench as pipeline
from penstock_bench.report import Goal, Report, Result
from penstock_bench.soak import bench as soak
from penstock_bench.soak import pictures as soak_pictures
from penstock_bench.start import bench as start
from penstock_bench.switch import bench as switch
from penstock_bench.switch import pictures as switch_pictures


@dataclass(frozen=True)
class Bench:
    """One benchmark: how to run it, its goals and its charts."""

    run: Callable[..., Report]
    """Runs it. Takes a function for progress lines, whether to be quick, and its options by name."""
    goals: Mapping[str, Goal]
    pictures: Callable[[Result], Pictures] | None = None
    """Makes charts from the JSON of a report."""
    options: tuple[str, ...] = ()
    """Command-line options that only some benchmarks have: seconds, minutes, seed, part, cluster,
    trace."""
    merged: Callable[[Result, Report], Report] | None = None
    """Merges the JSON of an earlier report with a new report of some parts."""

    def must_take(self, name: str, options: Iterable[str]) -> None:
        """Raise `SettingError` for options that the benchmark `name` does not have."""
        if others := [f"--{option}" for option in options if option not in self.options]:
            own = ", ".join(f"--{option}" for option in self.options)
            raise SettingError(
                f"bench {name} has no option {', '.join(others)}",
                hint=f"options of this benchmark: {own or 'none'}",
            )


BENCHES = {
    "pipeline": Bench(pipeline.run, pipeline.GOALS, options=("trace",)),
    "migration": Bench(migration.run, migration.GOALS, migration_pictures.pictures, ("part",)),
    "nexmark": Bench(nexmark.run, nexmark.GOALS, nexmark_pictures.pictures),
    "switch": Bench(switch.run, switch.GOALS, switch_pictures.pictures, ("part",), switch.merged),
    "ordered": Bench(
        ordered.run, ordered.GOALS, ordered_pictures.pictures, ("part",), ordered.merged
    ),
    "burst": Bench(burst.run, burst.GOALS, burst_pictures.pictures, ("part",), burst.merged),
    "chaos": Bench(chaos.run, chaos.GOALS, chaos_pictures.pictures, ("seconds", "seed", "cluster")),
    "live": Bench(live.run, live.GOALS, live_pictures.pictures, ("part",), live.merged),
    "peers": Bench(peers.run, peers.GOALS, peers_pictures.pictures, ("part",), peers.merged),
    "load": Bench(load.run, load.GOALS, load_pictures.pictures),
    "start": Bench(start.run, start.GOALS),
    "soak": Bench(soak.run, soak.GOALS, soak_pictures.pictures, ("minutes",)),
}


def find(name: str) -> Bench:
    """The benchmark of this name.

    >>> find("nosuch")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: there is no benchmark 'nosuch'. What to do: use one of: pipeline, ...
    """
    if name not in BENCHES:
        raise SettingError(
            f"there is no benchmark {name!r}", hint=f"use one of: {', '.join(BENCHES)}"
        )
    return BENCHES[name]
