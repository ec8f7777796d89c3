"""`penstock bench live`: Penstock live beside its peers, and the papers' experiments at milliseconds.

It has parts, each with a file of its own in `parts`. All are run, or those that `--part` names; a report
that is there already keeps what it has of the others.
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
    """One part: how to run it, and what its figures should be."""

    run: Callable[[Show, bool], PartResult]
    """Takes a function that progress lines go to, and whether to be quick."""
    ratios: Callable[[dict[str, Any]], dict[str, float]]
    """The figures that goals are set for, of what it gave; without those that were not measured."""
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
    """Run some parts, or all: that takes about half an hour, six minutes when quick."""
    if unknown := [name for name in part if name not in PARTS]:
        raise SettingError(
            f"bench live has no part {', '.join(unknown)}", hint=f"choose from: {', '.join(PARTS)}"
        )
    found: dict[str, Result] = {}
    failed: dict[str, str] = {}
    for name in part or PARTS:
        show(f"part {name}")
        try:
            found[name] = PARTS[name].run(show, quick).to_plain(quick)
        except Exception as trouble:  # what other parts gave is not lost for it
            failed[name] = f"{type(trouble).__name__}: {trouble}".splitlines()[0]
            show(f"part {name} failed: {failed[name]}")
    return report(found, failed)


def report(found: Mapping[str, Result], failed: Mapping[str, str] | None = None) -> Report:
    """What the parts give together, and which of them failed, and why."""
    parts = {name: found[name] for name in PARTS if name in found}
    ratios: dict[str, float] = {}
    for name, results in parts.items():
        ratios |= PARTS[name].ratios(results)
    return Report("live", {"parts": list(parts), "failed": dict(failed or {})}, parts, ratios)


def merged(earlier: Result, newer: Report) -> Report:
    """A report with what an earlier one has of parts that were not run again."""
    return report({**earlier["results"], **newer.results}, newer.settings["failed"])
