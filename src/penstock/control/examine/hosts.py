"""Numbers for hosts, to index arrays by, and the service rates of hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.control.examine.vitals import Floats, Ints, Work
from penstock.model import HostId


class HostNumbers:
    """Assigns a number to each host. When a host is forgotten, another may get its number.

    >>> numbers = HostNumbers()
    >>> numbers.of([HostId("sum/0"), HostId("sum/1")]).tolist()
    [0, 1, -1]
    >>> numbers.forget(HostId("sum/0")), numbers.of([HostId("sum/2")]).tolist(), numbers.many
    (0, [0, -1], 2)
    """

    def __init__(self) -> None:
        self.many = 0
        """Upper limit of the numbers: all are below it."""
        self._numbers: dict[HostId, int] = {}
        self._free: list[int] = []
        self._asked: tuple[HostId, ...] = ()
        self._answer: Ints = np.array([-1])

    def of(self, hosts: Sequence[HostId]) -> Ints:
        """The numbers of these hosts, followed by -1, so that owner -1 maps to number -1."""
        asked = tuple(hosts)
        if asked != self._asked:
            self._answer = np.array([*map(self._number, asked), -1])
            self._asked = asked
        return self._answer

    def forget(self, host: HostId) -> int | None:
        """Forget a host. Returns its number, or None if it had none."""
        number = self._numbers.pop(host, None)
        if number is not None:
            self._free.append(number)
            self._asked, self._answer = (), np.array([-1])
        return number

    def _number(self, host: HostId) -> int:
        if host not in self._numbers:
            if not self._free:
                self._free.append(self.many)
                self.many += 1
            self._numbers[host] = self._free.pop()
        return self._numbers[host]


class ServiceRates:
    """Service rates in records per second of useful time, smoothed: a new rate has a weight of `decay`.

    >>> service, host = ServiceRates(decay=1 / 8), HostId("sum/0")
    >>> for completed in (100, 180):
    ...     service.note([host], np.array([0]), {host: Work(completed, useful_ms=100.0)})
    >>> service.of([host]).tolist()
    [1100.0]
    """

    def __init__(self, decay: float) -> None:
        self.missing: tuple[HostId, ...] = ()
        """Hosts that own slots and were missing in the last call of `note`."""
        self._decay = decay
        self._rates: dict[HostId, float] = {}
        self._cpu: dict[HostId, float] = {}
        """Newest measured CPU load of each host."""
        self._useful: dict[HostId, float] = {}
        """Milliseconds of useful time without a completed record. They count for the next records."""

    def note(self, hosts: Sequence[HostId], owner: Ints, work: Mapping[HostId, Work]) -> None:
        """Add the work of hosts since the last call. `owner` is the index into `hosts` for each slot."""
        absent = []
        for n, host in enumerate(hosts):
            done = work.get(host)
            if done is None:
                absent.append(n)
                continue
            if done.cpu is not None:
                self._cpu[host] = done.cpu
            if done.useful_ms > 0:
                self._take(host, done)
        self.missing = tuple(hosts[n] for n in absent if np.any(owner == n))

    def _take(self, host: HostId, work: Work) -> None:
        old = self._rates.get(host)
        useful = work.useful_ms + self._useful.pop(host, 0.0)
        if work.completed > 0:
            rate = 1000.0 * work.completed / useful
            self._rates[host] = rate if old is None else old + self._decay * (rate - old)
        elif old is not None:
            # A new host is different: it may spend its first time on something else.
            self._useful[host] = useful

    def of(self, hosts: Sequence[HostId]) -> Floats:
        """Service rates of these hosts; nan for a host that has not worked yet."""
        rates = self._rates
        return np.array([rates.get(host, math.nan) for host in hosts])

    def cpu(self, hosts: Sequence[HostId]) -> Floats | None:
        """CPU loads of these hosts; nan for one that is not measured. None if none is."""
        loads = self._cpu
        return np.array([loads.get(host, math.nan) for host in hosts]) if loads else None

    def forget(self, host: HostId) -> None:
        self._rates.pop(host, None)
        self._cpu.pop(host, None)
        self._useful.pop(host, None)
        self.missing = tuple(other for other in self.missing if other != host)
