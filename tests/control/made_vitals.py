"""Vitals for tests of policies, and the effect of treatments on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision, Policy, Treatment, is_new
from penstock.model import SLA, HostId, StepId

STEP = StepId("sum")
BOUNDS = Bounds(SLA(1000, 1000), margin=0.2)


def vitals_of(
    rates: Sequence[float],
    hosts: int = 2,
    service_rate: float = 1_000.0,
    latency_ms: float = 50.0,
    now_ms: float = 0.0,
) -> Vitals:
    made = Vitals.even(STEP, rates, hosts, service_rate, latency_ms)
    return replace(made, now_ms=now_ms)


def named(vitals: Vitals) -> Vitals:
    """The vitals with final names for new hosts."""
    used = iter(f"sum/{n}" for n in range(100) if f"sum/{n}" not in vitals.hosts)
    return replace(
        vitals, hosts=tuple(HostId(next(used)) if is_new(h) else h for h in vitals.hosts)
    )


def counts(vitals: Vitals) -> list[int]:
    slots: list[int] = np.bincount(vitals.owner, minlength=len(vitals.hosts)).tolist()
    return slots


def over(
    policy: Policy, vitals: Vitals, until_ms: float, every_ms: float = 100.0
) -> list[Decision]:
    """Decisions of a policy at regular times after that of the vitals."""
    times = np.arange(vitals.now_ms, until_ms + 1, every_ms)
    return [policy.decide(replace(vitals, now_ms=float(now)), BOUNDS) for now in times]


def done(decisions: Sequence[Decision]) -> list[Treatment]:
    return [treatment for decision in decisions for treatment in decision.treatments]
