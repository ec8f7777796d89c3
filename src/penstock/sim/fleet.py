"""The hosts of one simulated step, and treatments, which take time.

A treatment gives slots a new home. A slot moves when its home is up: at once, or, for a new host, when it has
started. The hosts that give or get slots then pause together. A treatment is done when every slot is at its
home and every pause is over. A host that is scaled in leaves when it owns no more slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.events import StepPlacement
from penstock.control.examine.vitals import Floats, Work
from penstock.control.treat.decision import Treatment, is_new
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.sim.plane import Plane

Array = npt.NDArray[Any]


class SimFleet:
    """Hosts of a step and the slots they own. `hosts` are those that are up; arrays follow their order.

    >>> plane = Plane(start_host_ms=1000, switch_ms=300)
    >>> fleet = SimFleet(StepId("sum"), 4, 1, plane, np.random.default_rng(1))
    >>> out = Treatment("scale_out", (2, 3), HostId("sum/0"), HostId("new/1"), "")
    >>> [str(treatment) for treatment in fleet.begin([out], now_ms=0)]
    ['scale out: slots 2-3 from sum/0 to sum/1']
    >>> fleet.settle(900), fleet.owner.tolist()
    (False, [0, 0, 0, 0])
    >>> fleet.settle(1000), fleet.owner.tolist(), fleet.paused_ms.tolist()
    (False, [0, 0, 1, 1], [1300.0, 1300.0])
    >>> fleet.settle(1300), fleet.hosts
    (True, ('sum/0', 'sum/1'))
    """

    hosts: tuple[HostId, ...]
    owner: Array
    """Index into `hosts` of each slot's owner."""
    service_rate: Floats
    """Service rate of each host in records per second."""
    paused_ms: Floats
    """Time until which each host pauses, in milliseconds."""
    worked: Floats
    """Records that each host has processed and not reported. `work` subtracts the whole ones."""
    treating: bool
    """Whether treatments are under way."""

    def __init__(
        self,
        step: StepId,
        slots: int,
        hosts: int,
        plane: Plane,
        random: np.random.Generator,
        service_rate: float | None = None,
    ) -> None:
        self._step, self._plane, self._random = step, plane, random
        self._ordinary = plane.service_rate if service_rate is None else service_rate
        self._started = 0
        self._speed: dict[HostId, float] = {}
        self._starting: dict[HostId, float] = {}
        """Time at which each starting host will be up, in milliseconds."""
        self._leaving: set[HostId] = set()
        self.hosts = tuple(self._new() for _ in range(hosts))
        self.owner = np.arange(slots, dtype=np.int64) * hosts // slots
        self.service_rate = np.array([self._speed[host] for host in self.hosts])
        self.paused_ms, self.worked = np.zeros(hosts), np.zeros(hosts)
        self._home = self._names()
        self.treating = False
        self._until = 0.0
        self._untouched = False
        """Whether no slot has moved since the treatments began."""

    @property
    def waits(self) -> bool:
        """Whether the treatments under way only wait for new hosts, so that others can replace them."""
        return self.treating and self._untouched and bool(self._starting)

    @property
    def placement(self) -> StepPlacement:
        """Hosts that are up and the slots they own. While hosts pause, at least one slot is pending."""
        pending = 0
        if self.treating:
            pending = max(1, sum(a != b for a, b in zip(self._home, self._names(), strict=True)))
        return StepPlacement(self.hosts, self.owner, pending, len(self._starting))

    @property
    def size(self) -> int:
        """Number of hosts that are paid for, including those that start or leave."""
        return len(self.hosts) + len(self._starting)

    def work(self, silent: Collection[HostId] = ()) -> dict[HostId, Work]:
        """Work of each host since the last call, without `silent` hosts, which do not answer."""
        whole = np.floor(self.worked)
        if silent:
            whole[[host in silent for host in self.hosts]] = 0.0
        self.worked -= whole
        records, rates = whole.astype(np.int64).tolist(), self.service_rate.tolist()
        report = dict(zip(self.hosts, map(_work, records, rates), strict=True))
        if not silent:
            return report
        return {host: work for host, work in report.items() if host not in silent}

    def begin(self, treatments: Sequence[Treatment], now_ms: float) -> tuple[Treatment, ...]:
        """Start the wanted hosts and give slots their new homes. `settle` does the rest.

        Treatments that only wait for new hosts are replaced, and their hosts are used. Returns the
        treatments with the final names of the new hosts.
        """
        if self.treating and not self.waits:
            raise ProtocolError(
                "treatments began while others are under way", hint="wait until settle returns True"
            )
        self._home = self._names()
        self._leaving.clear()
        coming, self._starting = self._starting, {}
        names: dict[HostId, HostId] = {}
        named = []
        for treatment in treatments:
            source, target = (
                names.get(host, host) for host in (treatment.source, treatment.target)
            )
            if source == target:
                raise ProtocolError(
                    f"{treatment}: source and target are the same",
                    hint="a policy must name two different hosts",
                )
            if is_new(target):
                target = next(iter(coming), None) or self._new()
                up_ms = coming.pop(target, now_ms + self._plane.start_host_ms)
                names[treatment.target], self._starting[target] = target, up_ms
            for slot in treatment.slots:
                if self._home[slot] != source:
                    raise ProtocolError(
                        f"{treatment}: the owner of slot {slot} is {self._home[slot]}",
                        hint="a policy must move slots from their owner",
                    )
                self._home[slot] = target
            if treatment.kind == "scale_in":
                self._leaving.add(source)
            named.append(replace(treatment, source=source, target=target))
        self.treating, self._until, self._untouched = True, now_ms, True
        return tuple(named)

    def settle(self, now_ms: float) -> bool:
        """Start hosts and move slots that are due by now. Returns True once, when all treatments are done."""
        if not self.treating:
            return False
        up = [host for host, at in self._starting.items() if at <= now_ms]
        if up:
            self._change((*self.hosts, *up))
            for host in up:
                del self._starting[host]
        self._move(now_ms)
        owning = {self.hosts[n] for n in np.unique(self.owner)}
        gone = {host for host in self._leaving if host not in owning}
        if now_ms < self._until:
            return False
        if gone:
            self._change(tuple(host for host in self.hosts if host not in gone))
            self._leaving -= gone
        self.treating = bool(self._starting)
        return not self.treating

    def _names(self) -> list[HostId]:
        return [self.hosts[n] for n in self.owner.tolist()]

    def _move(self, now_ms: float) -> None:
        index = {host: n for n, host in enumerate(self.hosts)}
        home = np.array([index.get(host, -1) for host in self._home])
        moving = np.flatnonzero((home != self.owner) & (home >= 0))
        if not len(moving):
            return
        self._untouched = False
        plane, hosts = self._plane, len(self.hosts)
        lost, gained = (np.bincount(of[moving], minlength=hosts) for of in (self.owner, home))
        each_ms = plane.move_slot_ms if plane.take_slot_ms is None else plane.take_slot_ms
        pause = plane.switch_ms + lost * plane.move_slot_ms + gained * each_ms
        until = np.where(lost + gained > 0, now_ms + pause, 0.0)
        self.paused_ms = np.maximum(self.paused_ms, until)
        self._until = max(self._until, float(until.max()))
        self.owner = self.owner.copy()
        self.owner[moving] = home[moving]

    def _change(self, hosts: tuple[HostId, ...]) -> None:
        """Replace the list of hosts. Hosts in both lists keep their slots and figures."""
        before = {host: n for n, host in enumerate(self.hosts)}
        after = {host: n for n, host in enumerate(hosts)}
        place = np.array([after.get(host, -1) for host in self.hosts])
        self.owner = place[self.owner]
        self.paused_ms, self.worked = (
            np.array([values[before[host]] if host in before else 0.0 for host in hosts])
            for values in (self.paused_ms, self.worked)
        )
        self.service_rate = np.array([self._speed[host] for host in hosts])
        self.hosts = hosts

    def _new(self) -> HostId:
        host = HostId(f"{self._step}/{self._started}")
        self._started += 1
        other = self._random.random() < self._plane.beta
        self._speed[host] = self._ordinary * (self._plane.alpha if other else 1.0)
        return host


@lru_cache(maxsize=10_000)
def _work(records: int, service_rate: float) -> Work:
    """The work of a host. Cached, since every host reports it in every sample, with few distinct numbers."""
    return Work(records, records * 1000.0 / service_rate)
