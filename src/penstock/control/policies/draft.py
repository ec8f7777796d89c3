"""Draft of a decision: collects moves one after another and turns them into treatments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.control.diagnose.diagnosis import Diagnosis
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.strategies import Move
from penstock.control.examine.vitals import Vitals
from penstock.control.policies import reasons as words
from penstock.control.treat.decision import Kind, Treatment, new_host
from penstock.model import HostId

Proposal = tuple[tuple[Treatment, ...], list[str]]
"""Treatments, and sentences that explain them."""


class Draft:
    """A step's load after some moves, and its hosts that are still severe.

    A slot may move more than once in a draft. The treatments only contain its last owner.
    """

    def __init__(self, diagnosis: Diagnosis, load: Load) -> None:
        self.load = load
        self.sources: list[int] = []
        """Hosts that slots were moved from, in this order."""
        self._before = load
        self._floor = diagnosis.floor
        self._to_cure = diagnosis.late.copy()

    def worst(self) -> int | None:
        """The worst severe host; None if there is none, apart from those given up."""
        slack = np.where(self._to_cure, self.load.slack, np.inf)
        host = int(slack.argmin())
        return host if slack[host] < self._floor else None

    @property
    def severe(self) -> int:
        """Number of severe hosts, without those given up."""
        return int(np.count_nonzero(self._to_cure & (self.load.slack < self._floor)))

    def give_up(self, host: int) -> None:
        """Ignore a severe host from now on, because no move helps it."""
        self._to_cure[host] = False

    def move(self, move: Move, grown: Load | None = None) -> None:
        """Apply a move. `grown` is the load with a new host, if that is the target.

        If the source was late, the target counts as late too, so it must keep the bound.
        """
        if grown is not None:
            self.load = grown
            self._to_cure = np.append(self._to_cure, False)
        self.load = self.load.moved(move.slots, move.source, move.target)
        self._to_cure[move.target] |= self._to_cure[move.source]
        if move.source not in self.sources:
            self.sources.append(move.source)

    def treatments(
        self, vitals: Vitals, reason: Callable[[int, int], str]
    ) -> tuple[Treatment, ...]:
        """One treatment for each pair of hosts between which slots move, in the order of their sources.

        The first treatment to a new host is a scale-out, any other a balance. `reason` gives the reason for
        a pair of source and target.
        """
        present = len(vitals.hosts)
        owner = self._before.owner
        changed = np.flatnonzero(owner != self.load.owner)
        order = {host: place for place, host in enumerate(self.sources)}
        groups: dict[tuple[int, int], list[int]] = {}
        pairs = zip(owner[changed].tolist(), self.load.owner[changed].tolist(), strict=True)
        for slot, pair in zip(changed.tolist(), pairs, strict=True):
            groups.setdefault(pair, []).append(slot)
        names: dict[int, HostId] = {}
        treatments = []
        for source, target in sorted(groups, key=lambda pair: (order[pair[0]], pair[1])):
            kind: Kind = "balance"
            if target >= present and target not in names:
                kind, names[target] = "scale_out", new_host(len(names) + 1)
            name = names[target] if target >= present else vitals.hosts[target]
            slots = tuple(groups[source, target])
            treatments.append(
                Treatment(kind, slots, vitals.hosts[source], name, reason(source, target))
            )
        return tuple(treatments)


def without_one(vitals: Vitals, diagnosis: Diagnosis, prudent: Load, moves: list[Move]) -> Proposal:
    """Treatments that move all slots of one host to others. The last one removes the host."""
    if not moves:
        return (), []
    source = moves[0].source
    treatments = tuple(
        Treatment(
            "scale_in" if move is moves[-1] else "balance",
            tuple(sorted(move.slots.tolist())),
            vitals.hosts[source],
            vitals.hosts[move.target],
            words.taken_over(vitals, diagnosis, move.target, move.slack),
        )
        for move in moves
    )
    return treatments, [words.dispensable(vitals, diagnosis, prudent, source)]
