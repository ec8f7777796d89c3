"""What is known of an epoch when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from penstock.control.money import Money
from penstock.host.vitals import HostVitals, MovedState
from penstock.plan.placement import Handover
from penstock.state.arrays import Array
from penstock.wire.report import OffloadCounts, Seen


@dataclass(frozen=True)
class Latency:
    """From a row's arrival until its epoch's output is in the sink, or in a live flow until its own is, in
    milliseconds."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class HostProgress:
    """One host in one epoch."""

    host: str
    entries: int
    state_bytes: int
    rows: int
    useful_ms: float


@dataclass(frozen=True)
class CourierProgress:
    """One courier in one epoch: what it did itself in stateless steps that burst workers can help."""

    courier: str
    """The segment that the steps are in, and the partition."""
    rows: int
    useful_ms: float


@dataclass(frozen=True, kw_only=True)
class MigrationProgress(MovedState):
    """What changed hands before an epoch, and what it cost in the epoch, over all hosts."""

    handovers: tuple[Handover, ...] = ()


@dataclass(frozen=True)
class EpochProgress:
    """One epoch, as `query.progress` tells it."""

    epoch: int
    runs: int
    """1, unless hosts died under it."""
    rows: int
    partitions: int
    started_ms: int
    sink_ms: float
    """Couriers, hosts and the sink."""
    seal_ms: float
    """Making it durable: what was left of it after the sink was done."""
    latency: Latency | None
    watermark_ms: int | None
    dead_letters: int
    hosts: tuple[HostProgress, ...]
    migration: MigrationProgress = MigrationProgress()
    late_rows: dict[str, int] = field(default_factory=dict)
    """step -> rows that came behind its watermark, if any did."""
    functions: OffloadCounts = field(default_factory=OffloadCounts)
    """What burst workers had to do with it, over all steps."""
    money: Money | None = None
    """Spent since the query was started."""
    couriers: tuple[CourierProgress, ...] = ()
    """Couriers of segments without a keyed step, where burst workers can help these."""


def host_progress(host: str, vitals: HostVitals) -> HostProgress:
    return HostProgress(host, vitals.entries, vitals.state_bytes, vitals.rows, vitals.useful_ms)


def migration_progress(
    handovers: Sequence[Handover], hosts: Sequence[HostVitals]
) -> MigrationProgress:
    sums = {cost.name: sum(getattr(v, cost.name) for v in hosts) for cost in fields(MovedState)}
    return MigrationProgress(handovers=tuple(handovers), **sums)


def couriers_progress(seen: Sequence[Seen]) -> tuple[CourierProgress, ...]:
    """What couriers told, by partition.

    >>> from penstock.wire.report import MapWork
    >>> couriers_progress([Seen(9, maps={"map-1": MapWork(9, 4, 2.5)})])
    (CourierProgress(courier='map-1/0', rows=4, useful_ms=2.5),)
    """
    return tuple(
        CourierProgress(f"{name}/{partition}", work.done, work.useful_ms)
        for partition, task in enumerate(seen)
        for name, work in task.maps.items()
    )


def latency_of(seen: Sequence[Seen], done_ms: float) -> Latency | None:
    """The latency of an epoch whose output reached the sink at `done_ms`.

    >>> latency_of([Seen(4, (1000, 1100), (3, 1))], done_ms=1200.0)
    Latency(mean_ms=175.0, p50_ms=200.0, p99_ms=200.0)
    """
    arrivals = np.array([a for s in seen for a in s.arrivals_ms], dtype=np.float64)
    return _latency(done_ms - arrivals, [c for s in seen for c in s.counts])


def live_latency_of(seen: Sequence[Seen]) -> Latency | None:
    """The latency of an epoch of a live flow, where rows are through one by one.

    >>> live_latency_of([Seen(4, latencies_us=(1500, 4000), latency_counts=(3, 1))])
    Latency(mean_ms=2.125, p50_ms=1.5, p99_ms=4.0)
    """
    taken_us = np.array([us for s in seen for us in s.latencies_us], dtype=np.float64)
    return _latency(taken_us / 1000, [c for s in seen for c in s.latency_counts])


def _latency(latencies_ms: Array, counted: Sequence[int]) -> Latency | None:
    counts = np.array(counted, dtype=np.int64)
    if counts.sum() == 0:
        return None
    order = np.argsort(latencies_ms)
    latencies, reached = latencies_ms[order], np.cumsum(counts[order])
    p50, p99 = (latencies[np.searchsorted(reached, q * reached[-1])] for q in (0.5, 0.99))
    mean = float(np.average(latencies, weights=counts[order]))
    return Latency(mean, float(p50), float(p99))
