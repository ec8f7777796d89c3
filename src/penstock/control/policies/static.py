"""A set number of hosts, whatever comes: what one would provision by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.policies.moves import moves
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError


@dataclass(frozen=True)
class Static:
    """Brings a step to so many hosts and leaves it alone then: no balancing.

    A new host, and one that owns nothing, gets half of what arrives for the most loaded one. Of too
    many hosts the two least loaded become one.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [4.0, 3.0, 2.0, 1.0], hosts=1, service_rate=20.0)
    >>> for treatment in Static(2).decide(vitals, Bounds(SLA(1000, 1000))).treatments:
    ...     print(treatment)
    scale out: slots 1-2 from sum/0 to new/1
    """

    hosts: int

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise SettingError(
                f"static({self.hosts}) has no hosts", hint="use 1 or more, as in static(4)"
            )

    def __str__(self) -> str:
        return f"static({self.hosts})"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        found = observed(vitals, bounds)
        present, slots = len(vitals.hosts), len(vitals.owner)
        wanted = min(max(self.hosts, bounds.at_least), bounds.at_most, slots)
        reasons = []
        if wanted != self.hosts:
            limits = f"{bounds.at_least} to {bounds.at_most} hosts are allowed for {slots} slots"
            reasons.append(f"{self} is held to {wanted}: {limits}")
        treatments = self._treatments(vitals, wanted)
        if treatments:
            reasons.insert(0, f"{wanted} hosts are wanted that each own slots; there are {present}")
        return replace(found, treatments=treatments, reasons=tuple(reasons)) if reasons else found

    def _treatments(self, vitals: Vitals, wanted: int) -> tuple[Treatment, ...]:
        present = len(vitals.hosts)
        owns = np.bincount(vitals.owner, minlength=present) > 0
        if present == wanted and owns.all():
            return ()
        # Slots without arrivals count a little, so that they are shared out too.
        weight = vitals.rate + max(float(vitals.rate.mean()), 1.0) * 1e-6
        reason = f"{wanted} hosts are wanted"
        if present <= wanted:
            names = vitals.hosts + tuple(new_host(n + 1) for n in range(wanted - present))
            idle = [*np.flatnonzero(~owns).tolist(), *range(present, wanted)]
            return moves(vitals, names, _halved(vitals.owner, weight, idle, wanted), reason)
        owner, stay = _united(vitals.owner, weight, present, wanted)
        return moves(vitals, [vitals.hosts[n] for n in stay], owner, reason)


def _halved(owner: Ints, weight: Floats, idle: list[int], hosts: int) -> Ints:
    """Slot -> host with half of the most loaded host's slots given to each idle one in turn."""
    owner = owner.astype(np.int64)
    for target in idle:
        load = np.bincount(owner, weight, hosts)
        can_give = np.bincount(owner, minlength=hosts) > 1
        slots = np.flatnonzero(owner == np.where(can_give, load, -1.0).argmax())
        kept = given = 0.0
        for slot in slots[np.argsort(-weight[slots], kind="stable")].tolist():
            if kept <= given:
                kept += weight[slot]
            else:
                given += weight[slot]
                owner[slot] = target
    return owner


def _united(owner: Ints, weight: Floats, hosts: int, wanted: int) -> tuple[Ints, list[int]]:
    """Slot -> place among the hosts that stay, and those: the two least loaded are made one."""
    loads = np.bincount(owner, weight, hosts).tolist()
    staying = [(load, host) for host, load in enumerate(loads)]
    heapify(staying)
    heirs: list[tuple[int, int]] = []
    while len(staying) > wanted:
        load, leaving = heappop(staying)
        others, heir = staying[0]
        heapreplace(staying, (load + others, heir))
        heirs.append((leaving, heir))
    stay = sorted(host for _, host in staying)
    place = np.zeros(hosts, dtype=np.int64)
    place[stay] = np.arange(len(stay))
    for leaving, heir in reversed(heirs):
        place[leaving] = place[heir]
    return place[owner], stay
