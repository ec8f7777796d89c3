"""Standby hosts: they are up, own no slots, and get slots with their state in the burst.

The switch detects the burst in a dry run: as soon as it would move slots to other hosts, slots are
spread evenly over all hosts. The number of arriving rows shows when the burst is over.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import penstock as ps
from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress
from penstock.errors import PenstockError
from penstock.model import HostId
from penstock.plan.epoch import RouteTable
from penstock_bench.burst.scenarios import SLOTS, LiveBurst
from penstock_bench.switch.outcome import of_step

_POLL_S = 0.05
_IN_A_ROW, _FITS = 2, 0.8
"""The burst is over after `_IN_A_ROW` epochs that would have kept the first hosts at most `_FITS` busy."""


@dataclass(frozen=True)
class Taken:
    """The time in which standby hosts owned slots, in milliseconds of Unix time."""

    from_ms: float
    to_ms: float


class StandBy:
    """Watches a query from a thread, between `begin` and `end`. The query must have run an epoch."""

    def __init__(self, query: ps.FlowQuery, step: str, scenario: LiveBurst) -> None:
        self._query, self._step, self._scenario = query, step, scenario
        self._hosts = [HostId(f"{step}/{number}") for number in range(scenario.most_hosts)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standby", daemon=True)
        self._from_ms = self._to_ms = 0.0
        self._error: BaseException | None = None

    def begin(self, from_ms: float) -> None:
        """Start watching. The burst starts at `from_ms` (Unix time); decisions before it are ignored."""
        self._burst_ms = from_ms
        self._thread.start()

    def end(self, now_ms: float) -> Taken:
        """Stop watching; return the time in which standby hosts owned slots."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._from_ms:
            raise PenstockError("the switch never detected the burst: standby hosts got no slots")
        return Taken(self._from_ms, self._to_ms or now_ms)

    def stand_by(self) -> None:
        """Move all slots to the first hosts."""
        self._place(self._hosts[: self._scenario.hosts])

    def _watch(self) -> None:
        try:
            while not self._from_ms and not self._stop.wait(_POLL_S):
                decision = first_relief(self._query.journal, self._step, self._burst_ms)
                if decision is not None:
                    self._place(self._hosts)
                    self._from_ms = decision.time_ms
            while not self._to_ms and not self._stop.wait(_POLL_S):
                epochs = of_step(self._query.progress[-_IN_A_ROW - 1 :], self._step)
                if over(epochs, self._from_ms, self._scenario):
                    self.stand_by()
                    self._to_ms = epochs[-1].started_ms + epochs[-1].sink_ms
        except BaseException as failed:
            self._error = failed

    def _place(self, hosts: Sequence[HostId]) -> None:
        """Spread all slots evenly over `hosts`."""
        routes = RouteTable.even(list(hosts), SLOTS)
        for number, host in enumerate(hosts):
            self._query.move(self._step, routes.slots_of(number).tolist(), host)


def first_relief(journal: Sequence[Entry], step: str, from_ms: float) -> Entry | None:
    """The first decision since `from_ms` to move slots of a step to other hosts."""
    decisions = (
        e for e in journal if e.event == "decided" and e.step == step and e.time_ms >= from_ms
    )
    return next((entry for entry in decisions if _relieves(entry)), None)


def _relieves(entry: Entry) -> bool:
    return any(
        treatment["kind"] in ("scale_out", "balance") for treatment in entry.facts["treatments"]
    )


def over(epochs: Sequence[EpochProgress], from_ms: float, scenario: LiveBurst) -> bool:
    """Whether the first hosts could process the rows of the last epochs.

    Each epoch's rows are those that arrived since the start of the epoch before it.
    """
    if len(epochs) <= _IN_A_ROW or epochs[0].started_ms < from_ms:
        return False
    most = _FITS * scenario.hosts * scenario.host_rate / 1000
    return all(
        sum(host.rows for host in epoch.hosts) < most * (epoch.started_ms - before.started_ms)
        for before, epoch in pairwise(epochs)
    )
