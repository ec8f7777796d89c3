"""Treatments in the making: moves are tried one after another, and in the end told as one."""

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

Found = tuple[tuple[Treatment, ...], list[str]]
"""Treatments, and sentences why."""


class Draft:
    """A step with some moves done, and which of its hosts still need something done.

    A slot may be moved more than once on the way. What comes out is where it ends.
    """

    def __init__(self, diagnosis: Diagnosis, load: Load) -> None:
        self.load = load
        self.sources: list[int] = []
        """Hosts that slots were moved from, in this order."""
        self._before = load
        self._floor = diagnosis.floor
        self._to_cure = diagnosis.late.copy()

    def worst(self) -> int | None:
        """The severe host that is worst off. None: there is none that has not been given up."""
        slack = np.where(self._to_cure, self.load.slack, np.inf)
        host = int(slack.argmin())
        return host if slack[host] < self._floor else None

    @property
    def severe(self) -> int:
        """How many hosts are severe, without those that have been given up."""
        return int(np.count_nonzero(self._to_cure & (self.load.slack < self._floor)))

    def give_up(self, host: int) -> None:
        """Nothing can be done for a host."""
        self._to_cure[host] = False

    def move(self, move: Move, grown: Load | None = None) -> None:
        """Do a move; `grown` is the load with the new host that is its target.

        The target is as late as its source until it shows otherwise: it must keep the bound.
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
        """One for each pair of hosts between which slots change, by who needed it first.

        The first one to a new host is a scale-out, any other a balance. `reason` is asked for each
        pair.
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


def without_one(vitals: Vitals, found: Diagnosis, prudent: Load, moves: list[Move]) -> Found:
    """One host gives all its slots to others; with the last of them it goes."""
    if not moves:
        return (), []
    source = moves[0].source
    treatments = tuple(
        Treatment(
            "scale_in" if move is moves[-1] else "balance",
            tuple(sorted(move.slots.tolist())),
            vitals.hosts[source],
            vitals.hosts[move.target],
            words.taken_over(vitals, found, move.target, move.slack),
        )
        for move in moves
    )
    return treatments, [words.dispensable(vitals, found, prudent, source)]
