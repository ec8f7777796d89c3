"""Results of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.control.examine.vitals import Floats
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.sim.ledger import Series
from penstock.wire.report import Usage


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of one step over a run, by the true latencies of its records."""

    step: str
    success_by_slot: Floats
    """Share of windows in which each slot kept the SLA."""
    hosts: float
    """Mean number of hosts over time."""
    treatments: dict[str, int]
    """Number of treatments of each kind."""
    arrived: int
    """Number of records that arrived."""
    completed: float
    """Number of records that completed. The others wait at the end."""
    series: Series
    journal: tuple[Entry, ...] = field(repr=False, default=())
    decisions: int = 0
    """Number of evaluations of the step."""
    decide_us: float = 0.0
    """Mean time to examine and decide, in microseconds on this machine."""
    decide_worst_us: float = 0.0
    """Longest time to examine and decide, in microseconds on this machine."""
    money: Money = field(default_factory=Money)
    """Cost of hosts and burst workers over the whole run."""
    used: Usage | None = None
    """Usage of burst workers; None if the step has none."""
    worker_rows: int = 0
    """Number of records that went to burst workers."""

    @property
    def success(self) -> float:
        """The success rate: the mean over slots."""
        return float(self.success_by_slot.mean())

    def figures(self) -> dict[str, Any]:
        """The results as JSON values, rounded, without series and journal."""
        figures = {
            "step": self.step,
            "success": round(self.success, 6),
            "success_of_worst_slot": round(float(self.success_by_slot.min()), 6),
            "hosts": round(self.hosts, 4),
            "treatments": self.treatments,
            "arrived": self.arrived,
            "completed": round(self.completed),
            "decisions": self.decisions,
            "decide_us": round(self.decide_us, 1),
            "decide_worst_us": round(self.decide_worst_us, 1),
            "money": self.money.facts(),
        }
        if self.used is not None:
            figures["functions"] = {
                "most": int(self.series.workers.max(initial=0)),
                "rows": self.worker_rows,
                "invocations": self.used.invocations,
                "seconds": round(self.used.seconds, 3),
                "cold_starts": self.used.cold_starts,
            }
        return figures


@dataclass(frozen=True, eq=False)
class FlowOutcome:
    """Results of several steps with one end-to-end bound over a run."""

    steps: dict[str, Outcome]
    """Results of each step, measured against its part of the bound at the end of the run."""
    success_by_slot: Floats
    """End-to-end success rate, from arrival at the first step to completion at the last, by its slots."""
    shares: tuple[tuple[float, dict[str, float]], ...]
    """Changes of the steps' shares: the time in milliseconds, and the shares from then on."""

    @property
    def success(self) -> float:
        return float(self.success_by_slot.mean())

    @property
    def hosts(self) -> float:
        return sum(outcome.hosts for outcome in self.steps.values())

    def figures(self) -> dict[str, Any]:
        """The results as JSON values, rounded, for the whole flow and by step."""
        return {
            "success": round(self.success, 6),
            "hosts": round(self.hosts, 4),
            "shares": self.shares[-1][1],
            "steps": {name: outcome.figures() for name, outcome in self.steps.items()},
        }
