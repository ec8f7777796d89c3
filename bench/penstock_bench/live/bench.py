"""`penstock bench live`: Penstock's live mode compared with its peers, and the papers' experiments in live
mode.

Each part has a file of its own in `parts`. By default all parts are run, else those named by `--part`; an
existing report keeps its results of the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError
from penstock_bench.live.parts import (
    burst,
    hotspots,
    latency,
    migration,
    ordered,
    sla,
    switch,
    transactional,
)
from penstock_bench.report import Goal, PartResult, Report, Result, Show


@dataclass(frozen=True)
class Part:
    """One part of the benchmark."""

    run: Callable[[Show, bool], PartResult]
    """Runs the part. Takes a function for progress lines, and whether to be quick."""
    ratios: Callable[[dict[str, Any]], dict[str, float]]
    """Computes the metrics that have goals from the part's results, leaving out those that were not
    measured."""
    goals: Mapping[str, Goal]


PARTS = {
    "latency": Part(latency.run, latency.ratios, latency.GOALS),
    "migration": Part(migration.run, migration.ratios, migration.GOALS),
    "transactional": Part(transactional.run, transactional.ratios, transactional.GOALS),
    "sla": Part(sla.run, sla.ratios, sla.GOALS),
    "switch": Part(switch.run, switch.ratios, switch.GOALS),
    "hotspots": Part(hotspots.run, hotspots.ratios, hotspots.GOALS),
    "burst": Part(burst.run, burst.ratios, burst.GOALS),
    "ordered": Part(ordered.run, ordered.ratios, ordered.GOALS),
}
GOALS = {name: goal for part in PARTS.values() for name, goal in part.goals.items()}


def run(show: Show, quick: bool = False, part: Sequence[str] = ()) -> Report:
    """Run some parts, or all, which takes about half an hour, or six minutes when quick."""
    if unknown := [name for name in part if name not in PARTS]:
        raise SettingError(
            f"bench live has no part {', '.join(unknown)}", hint=f"use one of: {', '.join(PARTS)}"
        )
    results: dict[str, Result] = {}
    failed: dict[str, str] = {}
    for name in part or PARTS:
        show(f"part {name}")
        try:
            results[name] = PARTS[name].run(show, quick).to_plain(quick)
        except Exception as error:  # keep the results of the other parts
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            show(f"part {name} failed: {failed[name]}")
    return report(results, failed)


def report(results: Mapping[str, Result], failed: Mapping[str, str] | None = None) -> Report:
    """A report of these parts' results, and of the reasons why others failed."""
    parts = {name: results[name] for name in PARTS if name in results}
    ratios: dict[str, float] = {}
    for name, result in parts.items():
        ratios |= PARTS[name].ratios(result)
    return Report("live", {"parts": list(parts), "failed": dict(failed or {})}, parts, ratios)


def merged(earlier: Result, newer: Report) -> Report:
    """A report that adds the results of an earlier one for parts that were not run again."""
    return report({**earlier["results"], **newer.results}, newer.settings["failed"])
