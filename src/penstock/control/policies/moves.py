"""From where slots should be to the treatments that bring them there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.control.examine.vitals import Ints, Vitals
from penstock.control.treat.decision import Kind, Treatment, is_new
from penstock.model import HostId


def moves(
    vitals: Vitals, hosts: Sequence[HostId], owner: Ints, reason: str
) -> tuple[Treatment, ...]:
    """What brings the slots from where they are to `owner`, places in `hosts`; others leave.

    Hosts come or leave, not both. Every source is a host that is there already. The first treatment
    that gives slots to a new host is its scale-out, the last one that takes slots from a leaving
    host its scale-in, also where that one has none to give; all others balance.

    >>> from penstock.model import StepId
    >>> vitals = Vitals.even(StepId("sum"), [1.0] * 4, hosts=2, service_rate=9.0)
    >>> a, b = vitals.hosts
    >>> for treatment in moves(vitals, [a], np.zeros(4, dtype=np.int64), "quiet"):
    ...     print(treatment)
    scale in: slots 2-3 from sum/1 to sum/0
    """
    pairs = vitals.owner.astype(np.int64) * len(hosts) + owner
    order = np.argsort(pairs, kind="stable")
    starts = np.flatnonzero(np.diff(pairs[order], prepend=-1))
    staying = set(hosts)
    started: set[HostId] = set()
    stays: list[Treatment] = []
    leaves: dict[HostId, list[Treatment]] = {
        host: [] for host in vitals.hosts if host not in staying
    }
    for slots in np.split(order, starts[1:]):
        source, target = vitals.hosts[int(vitals.owner[slots[0]])], hosts[int(owner[slots[0]])]
        if source == target:
            continue
        kind: Kind = "scale_out" if is_new(target) and target not in started else "balance"
        started.add(target)
        moved = Treatment(kind, tuple(slots.tolist()), source, target, reason)
        (stays if source in staying else leaves[source]).append(moved)
    return (*stays, *_farewells(leaves, hosts[0], reason))


def _farewells(leaves: dict[HostId, list[Treatment]], heir: HostId, reason: str) -> list[Treatment]:
    """The last move from each leaving host takes the host away. One that owns nothing has an heir
    all the same, since a scale-in names one."""
    found: list[Treatment] = []
    for host, moved in leaves.items():
        slots, target = (moved[-1].slots, moved[-1].target) if moved else ((), heir)
        found += [*moved[:-1], Treatment("scale_in", slots, host, target, reason)]
    return found
