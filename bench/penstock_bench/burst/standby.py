"""Hosts that stand by: they are up, own nothing, and get slots, with their state, in the burst.

When the burst has come is told by the switch, in a dry run: when it would give slots to other hosts,
all hosts get as many. That it is over shows in the rows that arrive.
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
"""Epochs in a row that would have kept the first hosts no busier than that, until the burst is over."""


@dataclass(frozen=True)
class Taken:
    """When slots were given to those that stood by, and when they were taken back; of 1970."""

    from_ms: float
    to_ms: float


class StandBy:
    """Watches a query beside it, from `begin` until `end`. Made when it has had an epoch."""

    def __init__(self, query: ps.FlowQuery, step: str, scenario: LiveBurst) -> None:
        self._query, self._step, self._scenario = query, step, scenario
        self._hosts = [HostId(f"{step}/{number}") for number in range(scenario.most_hosts)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standby", daemon=True)
        self._from_ms = self._to_ms = 0.0
        self._error: BaseException | None = None

    def begin(self, from_ms: float) -> None:
        """The burst comes at this time, of 1970; what was told before is no reason for anything."""
        self._burst_ms = from_ms
        self._thread.start()

    def end(self, now_ms: float) -> Taken:
        """Stop watching; tells when they had slots."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._from_ms:
            raise PenstockError("who stood by for the burst was never called")
        return Taken(self._from_ms, self._to_ms or now_ms)

    def stand_by(self) -> None:
        """The first hosts get all slots."""
        self._place(self._hosts[: self._scenario.hosts])

    def _watch(self) -> None:
        try:
            while not self._from_ms and not self._stop.wait(_POLL_S):
                told = asked(self._query.journal, self._step, self._burst_ms)
                if told is not None:
                    self._place(self._hosts)
                    self._from_ms = told.time_ms
            while not self._to_ms and not self._stop.wait(_POLL_S):
                epochs = of_step(self._query.progress[-_IN_A_ROW - 1 :], self._step)
                if over(epochs, self._from_ms, self._scenario):
                    self.stand_by()
                    self._to_ms = epochs[-1].started_ms + epochs[-1].sink_ms
        except BaseException as failed:
            self._error = failed

    def _place(self, hosts: Sequence[HostId]) -> None:
        """As many slots for each of these."""
        routes = RouteTable.even(list(hosts), SLOTS)
        for number, host in enumerate(hosts):
            self._query.move(self._step, routes.slots_of(number).tolist(), host)


def asked(journal: Sequence[Entry], step: str, from_ms: float) -> Entry | None:
    """The first decision from a moment on by which slots of a step should go to other hosts."""
    told = (e for e in journal if e.event == "decided" and e.step == step and e.time_ms >= from_ms)
    return next((entry for entry in told if _relieves(entry)), None)


def _relieves(entry: Entry) -> bool:
    return any(one["kind"] in ("scale_out", "balance") for one in entry.facts["treatments"])


def over(epochs: Sequence[EpochProgress], from_ms: float, scenario: LiveBurst) -> bool:
    """Whether the first hosts could take what arrives: the last epochs tell, the first of them when
    the next one began."""
    if len(epochs) <= _IN_A_ROW or epochs[0].started_ms < from_ms:
        return False
    most = _FITS * scenario.hosts * scenario.host_rate / 1000
    return all(
        sum(host.rows for host in epoch.hosts) < most * (epoch.started_ms - before.started_ms)
        for before, epoch in pairwise(epochs)
    )
