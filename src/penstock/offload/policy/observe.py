"""What is remembered of the hosts of a step from one observation to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.control.diagnose.load import Flags, service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.examine.calm import Calm
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds
from penstock.model import HostId

_MEMORY_MS = 60_000.0
"""Time for which stable figures count, about."""
_UNEVEN = 2.0
"""Ratio of two neighbouring intervals from which on a parabola through both says nothing."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The hosts of a step at one moment. Arrays are over hosts."""

    time_ms: float
    hosts: tuple[HostId, ...]
    rate: Floats
    """Records a second that arrive for each, also those that burst workers carry."""
    throughput: Floats
    """Records a second that can be taken of them, by the host and by burst workers."""
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
        self._seen: dict[HostId, _Average] = {}
        """host -> rate, load."""
        self._total = _Average()

    @property
    def rate(self) -> float:
        """Rate of the whole step while all its hosts were stable; 0 before that was ever so."""
        return self._total.values[0] if self._total.values else 0.0

    def note(
        self, now_ms: float, hosts: Sequence[HostId], rate: Floats, load: Floats, stable: Flags
    ) -> None:
        """Take in what is stable now. A host that does nothing says nothing."""
        for n in np.flatnonzero(stable & (load > 0)).tolist():
            known = self._seen.get(hosts[n], _Average())
            self._seen[hosts[n]] = known.with_new(now_ms, float(rate[n]), float(load[n]))
        if stable.all():
            self._total = self._total.with_new(now_ms, float(rate.sum()))
        for gone in self._seen.keys() - set(hosts):
            del self._seen[gone]

    def per_core(self, hosts: Sequence[HostId], otherwise: Floats) -> Floats:
        """Equation 2, per host: records a second of useful time; `otherwise` where it was never
        stable."""
        known = otherwise.tolist()
        for n, host in enumerate(hosts):
            if host in self._seen:
                rate, load = self._seen[host].values
                known[n] = rate / load
        return np.array(known)


@dataclass(frozen=True)
class _Average:
    """Means over about the time that is remembered; at first, over all there was."""

    time_ms: float = 0.0
    values: tuple[float, ...] = ()
    count: int = 0

    def with_new(self, now_ms: float, *values: float) -> _Average:
        fading = 1.0 - math.exp(-max(now_ms - self.time_ms, 0.0) / _MEMORY_MS)
        weight = max(fading, 1.0 / (self.count + 1))
        pairs = zip(self.values or values, values, strict=True)
        means = tuple(old + weight * (new - old) for old, new in pairs)
        return _Average(now_ms, means, self.count + 1)


Point = tuple[float, Floats]
"""A time in seconds, and what was observed of each host at it."""


class Backlog:
    """Records that wait at each host, since more arrived than was taken: the left of equation 1.

    Integrated by Simpson's rule over the observations since the load went up. Where it has gone down
    to nothing it stays there, since no host works ahead.

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
        self._held: Floats = np.zeros(0)
        self._before: Floats = self._held
        """What waited at the first of the points."""
        self._points: list[Point] = []
        """Records a second beyond the throughput: what the next parabola goes through."""

    def forget(self) -> None:
        """Slots have changed hands, at a boundary where nothing waits."""
        self._hosts = ()

    def note(self, seen: Observation, most: Floats | None = None) -> Floats:
        """Take in an observation. Returns what waits at each of its hosts now, no more than `most`."""
        if seen.hosts != self._hosts:
            self._hosts, self._points = seen.hosts, []
            self._held = self._before = np.zeros(len(seen.hosts))
        now_s, beyond = seen.time_ms / 1000.0, seen.rate - seen.throughput
        self._points.append((now_s, _real(beyond, self._held)))
        held = self._before + integral(self._points)
        self._held = np.clip(held, 0.0, np.inf if most is None else most)
        if len(self._points) == 3 or not self._held.any() or (self._held != held).any():
            self._before, self._points = self._held, [(now_s, _real(beyond, self._held))]
        return self._held


def _real(beyond: Floats, held: Floats) -> Floats:
    """Where nothing waits, less than a host could take changes nothing."""
    return np.where(held > 0, beyond, np.maximum(beyond, 0.0))


def integral(points: Sequence[Point]) -> Floats:
    """The integral over up to three points, by Simpson's rule: a parabola goes through all three.

    Two points are joined by a line; so are neighbours if one interval is more than twice as long as
    the other, since a parabola through what lies close together says nothing of what is far from it.

    >>> parabola = [(at, np.array([at**2])) for at in (0.0, 1.0, 3.0)]
    >>> integral(parabola).round(9).tolist()
    [9.0]
    """
    total: Floats = np.zeros_like(points[0][1])
    for (begin, earlier), (end, later) in pairwise(points):
        total = total + (end - begin) * (earlier + later) / 2
    if len(points) < 3:
        return total
    (first, one), (second, two), (third, three) = points
    left, right, both = second - first, third - second, third - first
    if max(left, right) > _UNEVEN * min(left, right):
        return total
    weights = 2 - right / left, both**2 / (left * right), 2 - left / right
    return both / 6 * (weights[0] * one + weights[1] * two + weights[2] * three)


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


class BurstCalm:
    """Arrivals without noise, so that a steady load looks steady, and a burst is seen as it begins.

    Within a burst the mean that noise is told by begins anew with each real change: what was before
    it would only make it lag behind.
    """

    def __init__(self) -> None:
        self._calm = Calm()
        self._since_ms = -np.inf

    def of(self, vitals: Vitals, window_ms: float, burst: bool) -> Vitals:
        """These vitals with calm rates; `burst` says whether burst workers help now."""
        calm = self._calm.of(vitals, window_ms / 1000.0)
        changed = bool(np.any(np.isclose(calm.host_rate, vitals.host_rate, rtol=1e-9)))
        if burst and changed and vitals.now_ms - self._since_ms > 2 * window_ms:
            self._calm, self._since_ms = Calm(), vitals.now_ms
        return calm


def bound_part(vitals: Vitals, bounds: Bounds) -> float:
    """The load at which a host would just keep the bound, by the projection that fits the engine.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [1.0], hosts=1, service_rate=9e3, epoch_cost_ms=200.0)
    >>> round(bound_part(vitals, Bounds(SLA(1000, 1000))), 3)
    0.7
    """
    projection, served = fitting(vitals), service_rates(vitals)
    if served is None:
        return 1.0
    idle_ms = projection.latency_ms(np.zeros(len(served)), served, bounds, vitals.cost_ms)
    return 1.0 - float(idle_ms.max()) / projection.bound_ms(bounds)


def plausible(seen: Observation, vitals: Vitals, deadline_ms: float) -> Floats:
    """Per host: the most that can wait, by Little's law and generously.

    An integral goes astray where a capacity is not as it is taken to be: latency tells.
    """
    most = seen.rate * 2 * (vitals.latency_ms + deadline_ms) / 1000.0
    return np.where(np.isnan(most), np.inf, most)
