"""Computes the treatments that bring slots to their wanted owners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.control.examine.vitals import Ints, Vitals
from penstock.control.treat.decision import Kind, Treatment, is_new
from penstock.model import HostId


def moves(
    vitals: Vitals, hosts: Sequence[HostId], owner: Ints, reason: str
) -> tuple[Treatment, ...]:
    """Treatments that move slots to their wanted owners.

    `hosts` are the hosts afterwards, and `owner` is the index into them for each slot. Present hosts that are
    not among them leave. Hosts are added or removed, not both. The first treatment that gives slots to a new
    host is its scale-out. The last one that takes slots from a leaving host is its scale-in, even if the host
    has no slots. All others are balances.

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
    """The moves of leaving hosts, with a scale-in as the last one of each.

    A host without slots gets `heir` as the target, since a scale-in must name one.
    """
    treatments: list[Treatment] = []
    for host, moved in leaves.items():
        slots, target = (moved[-1].slots, moved[-1].target) if moved else ((), heir)
        treatments += [*moved[:-1], Treatment("scale_in", slots, host, target, reason)]
    return treatments
