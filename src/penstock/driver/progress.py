"""What is known of an epoch when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.courier.witness import Seen
from penstock.host.vitals import HostVitals
from penstock.plan.placement import Handover


@dataclass(frozen=True)
class Latency:
    """From a row's arrival until its epoch's output is in the sink, in milliseconds."""

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
    busy_ms: float


@dataclass(frozen=True)
class MigrationProgress:
    """What moving slots, recovering and reading evicted entries cost in one epoch, over all hosts."""

    handovers: tuple[Handover, ...] = ()
    """Slots that changed hands before the epoch."""
    fetched_keys: int = 0
    """Entries that came from other hosts or the store, because rows needed them or by trickle."""
    fetched_bytes: int = 0
    fetches: int = 0
    """Round trips for entries that rows needed."""
    wait_ms: float = 0.0
    """How long channels waited for those, added up over channels."""
    partial_slots: int = 0
    """Slots of which entries are still elsewhere."""
    left_behind: int = 0
    """Entries of slots given away that nobody has asked for: they never had to move."""
    evicted: int = 0
    """Entries that hosts dropped for lack of memory."""


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


def host_progress(host: str, vitals: HostVitals) -> HostProgress:
    return HostProgress(host, vitals.entries, vitals.state_bytes, vitals.rows, vitals.busy_ms)


def migration_progress(
    handovers: Sequence[Handover], hosts: Sequence[HostVitals]
) -> MigrationProgress:
    return MigrationProgress(
        handovers=tuple(handovers),
        fetched_keys=sum(v.fetched_keys for v in hosts),
        fetched_bytes=sum(v.fetched_bytes for v in hosts),
        fetches=sum(v.fetches for v in hosts),
        wait_ms=sum(v.wait_ms for v in hosts),
        partial_slots=sum(v.partial_slots for v in hosts),
        left_behind=sum(v.left_behind for v in hosts),
        evicted=sum(v.evicted for v in hosts),
    )


def latency_of(seen: Sequence[Seen], done_ms: float) -> Latency | None:
    """The latency of an epoch whose output reached the sink at `done_ms`.

    >>> latency_of([Seen(4, (1000, 1100), (3, 1))], done_ms=1200.0)
    Latency(mean_ms=175.0, p50_ms=200.0, p99_ms=200.0)
    """
    arrivals = np.array([a for s in seen for a in s.arrivals_ms], dtype=np.float64)
    counts = np.array([c for s in seen for c in s.counts], dtype=np.int64)
    if counts.sum() == 0:
        return None
    order = np.argsort(-arrivals)
    latencies, reached = done_ms - arrivals[order], np.cumsum(counts[order])
    p50, p99 = (latencies[np.searchsorted(reached, q * reached[-1])] for q in (0.5, 0.99))
    mean = float(np.average(latencies, weights=counts[order]))
    return Latency(mean, float(p50), float(p99))
