"""Benchmarks in parts: each can be run alone, and a report keeps its results of the other parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError
from penstock_bench.report import Goal, PartResult, Report, Result, Show


@dataclass(frozen=True)
class Part:
    """One part of a benchmark."""

    run: Callable[[Show, bool], PartResult]
    """Runs the part. Takes a function for progress lines, and whether to be quick."""
    ratios: Callable[[dict[str, Any]], dict[str, float]]
    """Computes the metrics that have goals from the part's results, leaving out those that were not
    measured."""
    goals: Mapping[str, Goal]


@dataclass(frozen=True)
class Parts:
    """A benchmark that consists of parts."""

    bench: str
    by_name: Mapping[str, Part]

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals of all parts."""
        return {name: goal for part in self.by_name.values() for name, goal in part.goals.items()}

    def run(self, show: Show, quick: bool = False, part: Sequence[str] = ()) -> Report:
        """Run some parts, or all. A part that fails is named in the report, and the others go on."""
        if unknown := [name for name in part if name not in self.by_name]:
            raise SettingError(
                f"bench {self.bench} has no part {', '.join(unknown)}",
                hint=f"use one of: {', '.join(self.by_name)}",
            )
        results: dict[str, Result] = {}
        failed: dict[str, str] = {}
        for name in part or self.by_name:
            show(f"part {name}")
            try:
                results[name] = self.by_name[name].run(show, quick).to_plain(quick)
            except Exception as error:  # keep the results of the other parts
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                show(f"part {name} failed: {failed[name]}")
        return self.report(results, failed)

    def report(
        self, results: Mapping[str, Result], failed: Mapping[str, str] | None = None
    ) -> Report:
        """A report of these parts' results, and of the reasons why others failed."""
        parts = {name: results[name] for name in self.by_name if name in results}
        ratios: dict[str, float] = {}
        for name, result in parts.items():
            ratios |= self.by_name[name].ratios(result)
        settings = {"parts": list(parts), "failed": dict(failed or {})}
        return Report(self.bench, settings, parts, ratios)

    def merged(self, earlier: Result, newer: Report) -> Report:
        """A report that adds the results of an earlier one for parts that were not run again."""
        return self.report({**earlier["results"], **newer.results}, newer.settings["failed"])
