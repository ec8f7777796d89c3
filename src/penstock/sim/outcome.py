"""What comes out of a simulated run."""

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
    """One step over a run, by what its records really took."""

    step: str
    success_by_slot: Floats
    """The share of windows in which each slot kept the SLA."""
    hosts: float
    """On average, over time."""
    treatments: dict[str, int]
    """How many of each kind were done."""
    arrived: int
    completed: float
    """Records in all; what arrived and did not complete waits at the end."""
    series: Series
    journal: tuple[Entry, ...] = field(repr=False, default=())
    decisions: int = 0
    """How often the policy was asked."""
    decide_us: float = 0.0
    """Microseconds that examining and deciding took on average, by the clock of this machine."""
    decide_worst_us: float = 0.0
    money: Money = field(default_factory=Money)
    """What hosts and burst workers cost, over the whole run."""
    used: Usage | None = None
    """What burst workers did; None where there are none."""
    worker_rows: int = 0
    """Records that went to burst workers."""

    @property
    def success(self) -> float:
        """The success rate: the mean over slots."""
        return float(self.success_by_slot.mean())

    def figures(self) -> dict[str, Any]:
        """What was reached and what it took, rounded; without series and journal."""
        told = {
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
            told["functions"] = {
                "most": int(self.series.workers.max(initial=0)),
                "rows": self.worker_rows,
                "invocations": self.used.invocations,
                "seconds": round(self.used.seconds, 3),
                "cold_starts": self.used.cold_starts,
            }
        return told


@dataclass(frozen=True, eq=False)
class FlowOutcome:
    """Several steps with one end-to-end bound over a run."""

    steps: dict[str, Outcome]
    """Each against its part of the bound, as it stood at the end."""
    success_by_slot: Floats
    """From the arrival at the first step to the completion at the last; by the slots of that one."""
    shares: tuple[tuple[float, dict[str, float]], ...]
    """The time in milliseconds from which on each step had which part of the bound."""

    @property
    def success(self) -> float:
        return float(self.success_by_slot.mean())

    @property
    def hosts(self) -> float:
        return sum(outcome.hosts for outcome in self.steps.values())

    def figures(self) -> dict[str, Any]:
        """What was reached, rounded, as a whole and by step."""
        return {
            "success": round(self.success, 6),
            "hosts": round(self.hosts, 4),
            "shares": self.shares[-1][1],
            "steps": {name: outcome.figures() for name, outcome in self.steps.items()},
        }
