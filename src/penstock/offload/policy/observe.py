"""Memory of a step's hosts from one observation to the next: stable rates, backlogs, repeated states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from penstock.control.diagnose.load import Flags, service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.examine.calm import Calm
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds
from penstock.model import HostId

_MEMORY_MS = 60_000.0
"""Time constant of averages of stable figures, in milliseconds."""
_LEAST_CPU = 0.2
"""CPU load below which it says little: a process spends some on heartbeats, whatever its records cost."""
_EXPLAINED = 0.8
"""Share of the working time that CPU has to explain. A host that is busy all the time with less of it waits
while it works. By CPU it would never be above the load at which burst workers come (80 %)."""
_UNEVEN = 2.0
"""Ratio of two neighbouring intervals above which no parabola is fitted through both."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The hosts of a step at one moment. Arrays are over hosts."""

    time_ms: float
    hosts: tuple[HostId, ...]
    rate: Floats
    """Records per second that arrive for each host, including those that go to burst workers."""
    throughput: Floats
    """Records per second that the host and burst workers together can process of these."""
    capacity: Floats
    """Records per second that the host processes when it is always busy."""
    load: Floats
    """Rate that the host really gets, over its capacity: the fraction of time it is busy, if below 1."""
    by_cpu: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether a host's measured CPU load was taken for equation 2."""


def load_of(vitals: Vitals, working: Floats) -> tuple[Floats, Flags]:
    """Load of each host for equation 2, and whether it is its measured CPU load.

    Measured CPU counts, also what a process spends on the network and on memory. Working time counts where
    CPU is not measured, is little, or does not explain the working time: where hosts wait for state or locks,
    or for cores that others use, CPU is not what limits them.

    >>> from dataclasses import replace
    >>> from penstock.model import StepId
    >>> vitals = Vitals.even(StepId("sum"), [1.0] * 4, hosts=4, service_rate=9.0)
    >>> measured = replace(vitals, cpu=np.array([0.7, 0.45, 0.3, np.nan]))
    >>> [part.tolist() for part in load_of(measured, np.full(4, 0.5))]
    [[0.7, 0.45, 0.5, 0.5], [True, True, False, False]]
    """
    if vitals.cpu is None:
        return working, np.zeros(len(working), np.bool_)
    by_cpu = vitals.cpu >= np.maximum(_EXPLAINED * working, _LEAST_CPU)  # false for nan
    return np.where(by_cpu, np.minimum(vitals.cpu, 1.0), working), by_cpu


class Stable:
    """Rates and loads of hosts while these were stable, for equation 2.

    >>> stable, hosts = Stable(), [HostId("sum/0"), HostId("sum/1")]
    >>> seen = np.array([600.0, 300.0]), np.array([0.5, 0.25])
    >>> stable.note(0.0, hosts, *seen, np.array([True, False]))
    >>> stable.per_core(hosts, otherwise=np.array([1000.0, 1000.0])).tolist()
    [1200.0, 1000.0]
    """

    def __init__(self) -> None:
        self._seen: dict[HostId, _Average] = {}
        """Host -> mean rate in records per second, and mean load."""
        self._total = _Average()

    @property
    def rate(self) -> float:
        """Records per second of the whole step while all its hosts were stable; 0 if they never were."""
        return self._total.values[0] if self._total.values else 0.0

    def note(
        self, now_ms: float, hosts: Sequence[HostId], rate: Floats, load: Floats, stable: Flags
    ) -> None:
        """Add the rates and loads of hosts that are stable now. Idle hosts are ignored."""
        for n in np.flatnonzero(stable & (load > 0)).tolist():
            known = self._seen.get(hosts[n], _Average())
            self._seen[hosts[n]] = known.with_new(now_ms, float(rate[n]), float(load[n]))
        if stable.all():
            self._total = self._total.with_new(now_ms, float(rate.sum()))
        for gone in self._seen.keys() - set(hosts):
            del self._seen[gone]

    def per_core(self, hosts: Sequence[HostId], otherwise: Floats) -> Floats:
        """Equation 2: records per second of useful time, per host; `otherwise` for those never stable."""
        known = otherwise.tolist()
        for n, host in enumerate(hosts):
            if host in self._seen:
                rate, load = self._seen[host].values
                known[n] = rate / load
        return np.array(known)


@dataclass(frozen=True)
class _Average:
    """Exponentially weighted means; at first, plain means."""

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
"""A time in seconds, and a value for each host at that time."""


class Backlog:
    """Records that wait at each host because more arrived than it could process: the left of equation 1.

    It is integrated by Simpson's rule over the observations since the load went up. It never goes below zero,
    since no host works ahead.

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
        """Records that waited at the time of the first point."""
        self._points: list[Point] = []
        """Records per second beyond the throughput: points for the next parabola."""

    def forget(self) -> None:
        """Start from zero: slots have moved, at a boundary where nothing waits."""
        self._hosts = ()

    def note(self, seen: Observation, most: Floats | None = None) -> Floats:
        """Add an observation. Returns the records that wait at each of its hosts now, at most `most`."""
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
    """The excess rate, not below zero where nothing waits: an empty backlog cannot shrink."""
    return np.where(held > 0, beyond, np.maximum(beyond, 0.0))


def integral(points: Sequence[Point]) -> Floats:
    """The integral over up to three points, by Simpson's rule: a parabola through all three.

    Two points are joined by a line. So are three points if one interval is more than twice as long as the
    other: a parabola through close points says nothing about distant ones.

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
    """Number of observations in a row in which a condition held, for each host.

    >>> runs, hosts = Runs(), [HostId("a"), HostId("b")]
    >>> [runs.note(hosts, np.array(so)).tolist() for so in ([True, True], [True, False])]
    [[1, 1], [2, 0]]
    """

    def __init__(self) -> None:
        self._long: dict[HostId, int] = {}

    def note(self, hosts: Sequence[HostId], so: Flags) -> Ints:
        """Add an observation: whether the condition holds for each host. Returns the counts."""
        old = self._long
        self._long = {
            host: old.get(host, 0) + 1 for host, is_so in zip(hosts, so, strict=True) if is_so
        }
        return np.array([self._long.get(host, 0) for host in hosts])

    def restart(self) -> None:
        """Start counting from zero, after something was done about the condition."""
        self._long = {}


class BurstCalm:
    """Smooths arrival rates, so that a steady load looks steady, and a burst shows as it begins.

    Within a burst, the mean that separates noise from change restarts with each real change. Older values
    would only make it lag.
    """

    def __init__(self) -> None:
        self._calm = Calm()
        self._since_ms = -np.inf

    def of(self, vitals: Vitals, window_ms: float, burst: bool) -> Vitals:
        """The vitals with smoothed rates. `burst` says whether burst workers help now."""
        calm = self._calm.of(vitals, window_ms / 1000.0)
        changed = bool(np.any(np.isclose(calm.host_rate, vitals.host_rate, rtol=1e-9)))
        if burst and changed and vitals.now_ms - self._since_ms > 2 * window_ms:
            self._calm, self._since_ms = Calm(), vitals.now_ms
        return calm


def bound_part(vitals: Vitals, bounds: Bounds) -> float:
    """The load at which a host would just meet the latency bound, by the projection that fits the engine.

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
    """Upper limit of the records that wait at each host, by Little's law with a margin.

    It corrects the integrated backlog, which drifts if the assumed capacity is wrong.
    """
    most = seen.rate * 2 * (vitals.latency_ms + deadline_ms) / 1000.0
    return np.where(np.isnan(most), np.inf, most)
