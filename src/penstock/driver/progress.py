"""The progress report of an epoch."""

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
    """Latency in milliseconds: from a row's arrival until its epoch's output is in the sink. In a live flow,
    until the row's own output is."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class HostProgress:
    """Work of one host in one epoch."""

    host: str
    entries: int
    """Number of entries in its state."""
    state_bytes: int
    """Size of its state in memory, in bytes."""
    rows: int
    """Number of records that it processed."""
    useful_ms: float
    """Milliseconds that it worked on them."""


@dataclass(frozen=True)
class CourierProgress:
    """Work of one courier in one epoch, in stateless steps that burst workers can help."""

    courier: str
    """Segment of the steps, and number of the partition: "map-1/0"."""
    rows: int
    """Number of rows that the courier processed itself."""
    useful_ms: float
    """Milliseconds that it worked on them."""


@dataclass(frozen=True, kw_only=True)
class MigrationProgress(MovedState):
    """Slots that moved before an epoch, and the cost of that in the epoch, over all hosts."""

    handovers: tuple[Handover, ...] = ()


@dataclass(frozen=True)
class EpochProgress:
    """One epoch, as `query.progress` shows it."""

    epoch: int
    runs: int
    """Number of runs: 1, unless hosts were lost in it."""
    rows: int
    """Number of rows read from all sources."""
    partitions: int
    """Number of source partitions."""
    started_ms: int
    """Start time, in milliseconds since 1970."""
    sink_ms: float
    """Milliseconds from the start until the output was in the sink."""
    seal_ms: float
    """Milliseconds from then until the epoch was durable."""
    latency: Latency | None
    """Latency of its rows; None if it had none."""
    watermark_ms: int | None
    """Watermark of the first keyed step, in milliseconds since 1970; None if there is none."""
    dead_letters: int
    """Number of rows that failed and were set aside."""
    hosts: tuple[HostProgress, ...]
    migration: MigrationProgress = MigrationProgress()
    late_rows: dict[str, int] = field(default_factory=dict)
    """Step -> number of rows that came behind its watermark, if any did."""
    functions: OffloadCounts = field(default_factory=OffloadCounts)
    """Work of burst workers, over all steps."""
    money: Money | None = None
    """Cost since the query was started; None if it is not tracked."""
    couriers: tuple[CourierProgress, ...] = ()
    """Work of couriers in stateless segments that burst workers can help."""


def host_progress(host: str, vitals: HostVitals) -> HostProgress:
    return HostProgress(host, vitals.entries, vitals.state_bytes, vitals.rows, vitals.useful_ms)


def migration_progress(
    handovers: Sequence[Handover], hosts: Sequence[HostVitals]
) -> MigrationProgress:
    sums = {cost.name: sum(getattr(v, cost.name) for v in hosts) for cost in fields(MovedState)}
    return MigrationProgress(handovers=tuple(handovers), **sums)


def couriers_progress(seen: Sequence[Seen]) -> tuple[CourierProgress, ...]:
    """Work of couriers by partition, from their reports.

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
    """The latency of an epoch of a live flow, where each row has its own.

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
