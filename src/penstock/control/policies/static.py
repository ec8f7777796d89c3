"""A fixed number of hosts, as one would provision by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.diagnose.outlook import hosts_text
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.policies.moves import moves
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError


@dataclass(frozen=True)
class Static:
    """Scales a step to a fixed number of hosts and then leaves it alone, without balancing.

    A host without slots, such as a new one, gets half of the arrivals of the most loaded host. If there are
    too many hosts, the two least loaded ones are merged.

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
                f"static has {self.hosts} hosts", hint="use 1 or more, such as static(4)"
            )

    def __str__(self) -> str:
        return f"static({self.hosts})"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        decision = observed(vitals, bounds)
        present, slots = len(vitals.hosts), len(vitals.owner)
        wanted = min(max(self.hosts, bounds.at_least), bounds.at_most, slots)
        reasons = []
        if wanted != self.hosts:
            limits = f"{bounds.at_least} to {bounds.at_most} hosts are allowed for {slots} slots"
            reasons.append(f"{self} is limited to {wanted}: {limits}")
        treatments = self._treatments(vitals, wanted)
        if treatments:
            reasons.insert(
                0, f"{wanted} hosts should own slots; the step has {hosts_text(present)}"
            )
        return (
            replace(decision, treatments=treatments, reasons=tuple(reasons))
            if reasons
            else decision
        )

    def _treatments(self, vitals: Vitals, wanted: int) -> tuple[Treatment, ...]:
        present = len(vitals.hosts)
        owns = np.bincount(vitals.owner, minlength=present) > 0
        if present == wanted and owns.all():
            return ()
        # Slots without arrivals count a little, so that they are distributed too.
        weight = vitals.rate + max(float(vitals.rate.mean()), 1.0) * 1e-6
        reason = f"{wanted} hosts should own slots"
        if present <= wanted:
            names = vitals.hosts + tuple(new_host(n + 1) for n in range(wanted - present))
            idle = [*np.flatnonzero(~owns).tolist(), *range(present, wanted)]
            return moves(vitals, names, _halved(vitals.owner, weight, idle, wanted), reason)
        owner, stay = _united(vitals.owner, weight, present, wanted)
        return moves(vitals, [vitals.hosts[n] for n in stay], owner, reason)


def _halved(owner: Ints, weight: Floats, idle: list[int], hosts: int) -> Ints:
    """The owner of each slot after each idle host got half of the most loaded host's slots, in turn."""
    owner = owner.astype(np.int64)
    for target in idle:
        load = np.bincount(owner, weight, hosts)
        can_give = np.bincount(owner, minlength=hosts) > 1
        slots = np.flatnonzero(owner == np.where(can_give, load, -1.0).argmax())
        kept = moved = 0.0
        for slot in slots[np.argsort(-weight[slots], kind="stable")].tolist():
            if kept <= moved:
                kept += weight[slot]
            else:
                moved += weight[slot]
                owner[slot] = target
    return owner


def _united(owner: Ints, weight: Floats, hosts: int, wanted: int) -> tuple[Ints, list[int]]:
    """The owner of each slot, as an index into the remaining hosts, and these hosts.

    The two least loaded hosts are merged until only `wanted` remain.
    """
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
