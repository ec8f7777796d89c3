"""Time to examine a step and decide, for 10,000 slots on 1,000 hosts, in each branch of the switch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Floats, Ints, Work
from penstock.control.policies.switch import Switch
from penstock.control.treat.decision import Bounds
from penstock.model import SLA, HostId, StepId

SLOTS, HOSTS = 10_000, 1_000
_SERVICE_RATE = 1_000.0
_DELTA_MS = 100.0
_WARM = 310
"""Looks that do not count: windows and the 30 s memory of peaks fill, and kernels are compiled."""
_LAG = 6
"""Time slots by which late hosts are behind: enough to raise the alert."""


@dataclass(frozen=True)
class Branch:
    """A state of the step, described by the arrivals of its hosts relative to their service rates."""

    name: str
    most: float
    """Arrivals divided by service rate, for most hosts."""
    busy: float
    """Arrivals divided by service rate, for hosts that are behind."""
    behind: float
    """Share of hosts that are behind; at least one host if not 0."""


BRANCHES = (
    Branch("good", 0.2, 0.0, 0.0),
    Branch("severe, balance", 0.1, 0.9, 0.001),
    Branch("severe, scale out", 0.75, 0.9, 0.001),
    Branch("many severe", 0.75, 0.9, 0.5),
)


@dataclass(frozen=True)
class Decided:
    """Timings of the looks in one branch."""

    branch: str
    looks: int
    p50_ms: float
    p99_ms: float
    """99th percentile of examining and deciding, in milliseconds."""
    decide_p99_ms: float
    """99th percentile of deciding alone, in milliseconds."""
    treatments: dict[str, int]
    """Treatments by kind, in the last look that decided any."""


def measure(
    looks: int = 200, slots: int = SLOTS, hosts: int = HOSTS
) -> tuple[float, list[dict[str, Any]]]:
    """The slowest branch's median in milliseconds, and the timings of every branch.

    The median is the figure to compare: on a busy machine the 99th percentile depends on the machine.
    """
    branches, medians = [], []
    for branch in BRANCHES:
        measured = list(_looks(branch, looks, slots, hosts))
        took_ms = [look.examine_ms + look.decide_ms for look in measured]
        p50, p99 = np.percentile(took_ms, [50, 99])
        alone = np.percentile([look.decide_ms for look in measured], 99)
        kinds = next((look.kinds for look in reversed(measured) if look.kinds), {})
        decided = Decided(branch.name, looks, float(p50), float(p99), float(alone), kinds)
        branches.append(asdict(decided))
        medians.append(float(p50))
    return max(medians), branches


@dataclass(frozen=True)
class _Look:
    examine_ms: float
    decide_ms: float
    kinds: dict[str, int]
    """Number of decided treatments, by kind."""


def _looks(branch: Branch, looks: int, slots: int, hosts: int) -> Iterator[_Look]:
    """Examine the step and decide, again and again, without applying the decisions."""
    step = StepId("step")
    names = [HostId(f"{step}/{n}") for n in range(hosts)]
    owner = np.arange(slots) * hosts // slots
    arriving, behind = _arrivals(branch, owner, hosts)
    examiner = Examiner(step, slots, 1000.0, _DELTA_MS)
    policy, bounds = Switch(), Bounds(SLA(1000, 1000), at_most=2 * hosts)
    done = np.bincount(owner, arriving, hosts)
    work = {
        name: Work(round(records), records * 1000 / _SERVICE_RATE)
        for name, records in zip(names, done.tolist(), strict=True)
    }
    for m in range(1, _WARM + looks + 1):
        completed = arriving * np.maximum(0, m - _LAG * behind)
        began = perf_counter()
        examiner.sample(m, arriving * m, completed, owner, names, work)
        vitals = examiner.vitals(m * _DELTA_MS, names, owner)
        examined = perf_counter()
        decision = policy.decide(vitals, bounds)
        ended = perf_counter()
        if m > _WARM:
            kinds = dict(Counter(str(treatment.kind) for treatment in decision.treatments))
            yield _Look((examined - began) * 1000, (ended - examined) * 1000, kinds)


def _arrivals(branch: Branch, owner: Ints, hosts: int) -> tuple[Floats, Ints]:
    """For each slot: records that arrive per time slot, somewhat uneven, and whether its host is late."""
    random = np.random.default_rng(1)
    weights = random.uniform(0.5, 1.5, len(owner))
    weights /= np.bincount(owner, weights, hosts)[owner]
    load = np.full(hosts, branch.most) * random.uniform(0.95, 1.0, hosts)
    late = math.ceil(branch.behind * hosts)
    load[:late] = branch.busy
    arriving = load[owner] * weights * (_SERVICE_RATE * _DELTA_MS / 1000)
    return arriving, (owner < late).astype(np.int64)
