"""Help in the middle of an epoch: a host whose slots will move learns which of their new hosts are ready.

A new host also helps other owners of its step: which of them works longest was not known when the epoch
was read.

Slots change owners between epochs. A large epoch would keep its rows on the hosts that it began with, while
new ones stand idle. So the owner hands them pieces of its work instead (see `host.sharing`). Nothing depends
on it: an order that is lost or comes too late costs time only.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np

from penstock.control.treat.lending import widened
from penstock.driver.fleet import Fleet
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError
from penstock.faults import InjectedFault, point
from penstock.model import HostId
from penstock.plan.epoch import EpochPlan

_EVERY_S = 0.1
"""Seconds between two looks for hosts that are ready."""


class Helping:
    """Tells hosts who can help them while an epoch runs, in a thread of its own."""

    def __init__(self, relocation: Relocation, fleet: Fleet, wanted: bool) -> None:
        """Unless help is `wanted`, this does nothing."""
        self._relocation, self._fleet, self._wanted = relocation, fleet, wanted
        self._plan: EpochPlan | None = None
        self._told: set[tuple[HostId, HostId]] = set()
        self._changed, self._stopped = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def begin(self, plan: EpochPlan) -> None:
        """Begin with a run of an epoch."""
        if not self._wanted:
            return
        with self._changed:
            self._plan, self._told = plan, set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="helping", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def end(self) -> None:
        """End the run: no more orders leave."""
        with self._changed:
            self._plan = None

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._plan, self._stopped = None, True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._plan is not None)
                if self._stopped:
                    return
                plan = self._plan
            assert plan is not None
            with suppress(InjectedFault):
                self._tell(plan)
            with self._changed:
                self._changed.wait_for(lambda p=plan: self._plan is not p, _EVERY_S)  # type: ignore[misc]

    def _tell(self, plan: EpochPlan) -> None:
        """Tell each host about helpers that are new to it."""
        for host, helpers in self._helpers(plan).items():
            new = [helper for helper in helpers if (host, helper) not in self._told]
            if not new or self._plan is not plan:
                continue
            point("driver.help", epoch=plan.epoch, run=plan.run)
            with suppress(PenstockError):  # the epoch will show whether the host is lost
                self._fleet.help(host, new, plan.epoch, plan.run)
                self._told |= {(host, helper) for helper in new}

    def _helpers(self, plan: EpochPlan) -> dict[HostId, list[HostId]]:
        """Host -> its helpers, those that it knows included. Newcomers help further hosts of their step."""
        found = dict(self._relocation.helpers(plan.epoch))
        able = set().union(*found.values())
        for host, helper in sorted(pair for pair in self._told if pair[1] in able):
            found[host] = list(dict.fromkeys([*found.get(host, ()), helper]))
        for step in plan.steps:
            routes = step.routes
            owners = [routes.hosts[number] for number in np.unique(routes.owner)]
            for host, more in widened(found, owners).items():
                found[host] = [*found.get(host, ()), *more]
        return found
