"""What is remembered of the hosts of a step from one observation to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.control.diagnose.load import Flags
from penstock.control.examine.vitals import Floats, Ints
from penstock.model import HostId
from penstock.offload.policy.shares import rate_per_core
from penstock.offload.policy.simpson import integral

_MEMORY_MS = 60_000.0
"""What was stable counts for about so long."""
_MOST_POINTS = 33
"""A longer stretch is integrated piece by piece."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The hosts of a step at one moment. Arrays are over hosts."""

    time_ms: float
    hosts: tuple[HostId, ...]
    rate: Floats
    """Records a second that arrive for each, also those that burst workers carry."""
    throughput: Floats
    """Records a second that can be taken of them, by the host and by functions."""
    capacity: Floats
    """Records a second that the host takes when it is busy all the time."""
    load: Floats
    """What the host really gets over its capacity: the share of time that it is busy, if below 1."""


class Stable:
    """Rates and loads of hosts while these were stable: the records that equation 2 goes by.

    >>> stable, hosts = Stable(), [HostId("sum/0"), HostId("sum/1")]
    >>> seen = np.array([600.0, 300.0]), np.array([0.5, 0.25])
    >>> stable.note(0.0, hosts, *seen, np.array([True, False]))
    >>> stable.per_core(hosts, otherwise=np.array([1000.0, 1000.0])).tolist()
    [1200.0, 1000.0]
    """

    def __init__(self) -> None:
        self._seen: dict[HostId, _Mean] = {}
        """host -> mean rate, mean load."""
        self._total: _Mean | None = None

    @property
    def rate(self) -> float:
        """Of the whole step, while all its hosts were stable; 0 before that was ever so."""
        return 0.0 if self._total is None else self._total.values[0]

    def note(
        self, now_ms: float, hosts: Sequence[HostId], rate: Floats, load: Floats, stable: Flags
    ) -> None:
        """Take in what is stable now. A host that does nothing says nothing."""
        for n in np.flatnonzero(stable & (load > 0)).tolist():
            figures, known = (float(rate[n]), float(load[n])), self._seen.get(hosts[n])
            self._seen[hosts[n]] = (
                known.with_new(now_ms, figures) if known else _Mean(now_ms, figures)
            )
        if stable.all():
            whole, total = (float(rate.sum()),), self._total
            self._total = total.with_new(now_ms, whole) if total else _Mean(now_ms, whole)
        for gone in self._seen.keys() - set(hosts):
            del self._seen[gone]

    def per_core(self, hosts: Sequence[HostId], otherwise: Floats) -> Floats:
        """Per host: records a second of useful time; `otherwise` where it was never stable."""
        known = [
            rate_per_core(*self._seen[host].values) if host in self._seen else spare
            for host, spare in zip(hosts, otherwise.tolist(), strict=True)
        ]
        return np.array(known)


class Backlog:
    """Records that wait at each host, since more arrived than was taken: the left of equation 1.

    Integrated over the observations since the load went up; where it has gone down to nothing, it is
    forgotten, since no host works ahead.

    >>> backlog, hosts = Backlog(), (HostId("sum/0"),)
    >>> for second, rate in enumerate([500.0, 2000.0, 2000.0]):
    ...     held = backlog.note(
    ...         Observation(1000.0 * second, hosts, *np.array([[rate], [1000.0], [1000.0], [1.0]]))
    ...     )
    >>> 1000.0 < held.item() < 2000.0
    True
    """

    def __init__(self) -> None:
        self._hosts: tuple[HostId, ...] = ()
        self._carried: Floats = np.zeros(0)
        self._times: list[float] = []
        self._beyond: list[Floats] = []

    def forget(self) -> None:
        """Slots have changed hands, at a boundary where nothing waits."""
        self._hosts = ()

    def note(self, seen: Observation, most: Floats | None = None) -> Floats:
        """Take in an observation; what waits at each of its hosts now: at most so much, if known."""
        if seen.hosts != self._hosts:
            self._hosts, self._times, self._beyond = seen.hosts, [], []
            self._carried = np.zeros(len(seen.hosts))
        self._times.append(seen.time_ms / 1000.0)
        beyond = seen.rate - seen.throughput
        idle = (self._carried == 0) & ~np.any(self._beyond, axis=0) if self._beyond else True
        self._beyond.append(np.where(idle, np.maximum(beyond, 0.0), beyond))
        held = self._carried + integral(self._times, self._beyond)
        limit = np.full(len(held), np.inf) if most is None else most
        anew = (held <= 0) | (held > limit)
        if anew.any():
            held = np.clip(held, 0.0, limit)
            self._carried = np.where(anew, held, self._carried)
            last = np.where(held <= 0, np.maximum(beyond, 0.0), self._beyond[-1])
            self._beyond = [np.where(anew, 0.0, before) for before in self._beyond[:-1]] + [last]
        if len(self._times) >= _MOST_POINTS or not held.any():
            self._carried = held
            self._times, self._beyond = self._times[-1:], self._beyond[-1:]
        return held


class Runs:
    """How many observations in a row something was so, of each host.

    >>> runs, hosts = Runs(), [HostId("a"), HostId("b")]
    >>> [runs.note(hosts, np.array(so)).tolist() for so in ([True, True], [True, False])]
    [[1, 1], [2, 0]]
    """

    def __init__(self) -> None:
        self._long: dict[HostId, int] = {}

    def note(self, hosts: Sequence[HostId], so: Flags) -> Ints:
        old = self._long
        self._long = {
            host: old.get(host, 0) + 1 for host, is_so in zip(hosts, so, strict=True) if is_so
        }
        return np.array([self._long.get(host, 0) for host in hosts])

    def restart(self) -> None:
        """Something was done about it: it must be so as often again."""
        self._long = {}


@dataclass(frozen=True)
class _Mean:
    """Means over about the time that is remembered; at first, over all there was."""

    time_ms: float
    values: tuple[float, ...]
    count: int = 1

    def with_new(self, now_ms: float, values: tuple[float, ...]) -> _Mean:
        fading = 1.0 - math.exp(-max(now_ms - self.time_ms, 0.0) / _MEMORY_MS)
        weight = max(fading, 1.0 / (self.count + 1))
        means = (old + weight * (new - old) for old, new in zip(self.values, values, strict=True))
        return _Mean(now_ms, tuple(means), self.count + 1)
