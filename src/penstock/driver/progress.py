"""The progress report of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from penstock.control.examine.success import Success
from penstock.control.money import Money
from penstock.host.vitals import HostVitals, MovedState
from penstock.plan.placement import Handover
from penstock.spans import Span
from penstock.state.arrays import Array
from penstock.wire.report import Counts, OffloadCounts, Seen

LATENCY_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of the buckets of `Latency.histogram`, in milliseconds. One more bucket has all above them."""


@dataclass(frozen=True)
class Latency:
    """Latency in milliseconds: from a row's arrival until its epoch's output is in the sink. In a live flow,
    until the row's own output is."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    histogram: tuple[int, ...] = ()
    """Number of rows in each bucket of `LATENCY_BOUNDS_MS`; empty if it is not known."""


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
    workers: int = 1
    """Number of its worker threads at the end of the epoch."""


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
    read_ms: float = 0.0
    """Milliseconds from the start until all couriers had read their rows and sent them to hosts. 0 in a live
    flow, which reads all the time."""
    loads: Mapping[str, Counts] = field(default_factory=dict)
    """Step -> number of records sent to its hosts, by slot."""
    success: Mapping[str, Success] = field(default_factory=dict)
    """Kind of the SLA's bounds, such as "average" or "clicks: p99" -> share of its windows that were kept so
    far. Those of a step are means over its slots."""
    spans: tuple[Span, ...] = ()
    """What the driver, couriers and hosts did, and when: in this epoch, and in the epoch before after its own
    progress was made. Empty in a live flow."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Where the time of the trigger went: phase -> milliseconds, in order, see `driver.phases.PHASES`. They
    add up to the trigger. Set by `query.progress` once Spark has reported the trigger. Empty in a live
    flow."""

    @property
    def done_ms(self) -> float:
        """Time at which the output was in the sink, in milliseconds since 1970."""
        return self.started_ms + self.sink_ms


def host_progress(host: str, vitals: HostVitals) -> HostProgress:
    return HostProgress(
        *(host, vitals.entries, vitals.state_bytes, vitals.rows, vitals.useful_ms),
        workers=vitals.workers,
    )


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


def summed_loads(seen: Sequence[Seen]) -> dict[str, Counts]:
    """Step -> records by slot, over all couriers."""
    loads: dict[str, Counts] = {}
    for task in seen:
        for step, counts in task.loads.items():
            loads[step] = loads[step] + counts if step in loads else counts
    return loads


def merged_latency(epochs: Iterable[EpochProgress]) -> Latency | None:
    """Latency over several epochs; None if they had no rows.

    Its mean is exact. Its p50 is the median of the epochs' p50, by rows, and its p99 is that of the worst
    epoch.
    """
    known = [(e.rows, e.latency) for e in epochs if e.latency is not None and e.rows]
    if not known:
        return None
    rows = np.array([r for r, _ in known])
    means, medians = (np.array([getattr(x, n) for _, x in known]) for n in ("mean_ms", "p50_ms"))
    order = np.argsort(medians)
    middle = np.searchsorted(np.cumsum(rows[order]), rows.sum() / 2)
    buckets = [latency.histogram for _, latency in known if latency.histogram]
    return Latency(
        mean_ms=float(np.average(means, weights=rows)),
        p50_ms=float(medians[order][middle]),
        p99_ms=max(x.p99_ms for _, x in known),
        histogram=tuple(map(sum, zip(*buckets, strict=True))),
    )


def latency_of(
    seen: Sequence[Seen], done_ms: float, started_ms: float | None = None
) -> Latency | None:
    """The latency of an epoch whose output reached the sink at `done_ms`. Rows without an arrival time count
    from `started_ms`, when the epoch began to read them.

    >>> latency = latency_of([Seen(4, (1000, 1100), (3, 1))], done_ms=1200.0)
    >>> latency.mean_ms, latency.p50_ms, latency.p99_ms, latency.histogram[4:6]
    (175.0, 200.0, 200.0, (1, 3))
    >>> latency_of([Seen(4)], done_ms=1200.0, started_ms=900.0).mean_ms
    300.0
    """
    arrivals = [float(a) for s in seen for a in s.arrivals_ms]
    counts = [c for s in seen for c in s.counts]
    if started_ms is not None:
        arrivals.append(started_ms)
        counts.append(max(0, sum(s.rows for s in seen) - sum(counts)))
    return _latency(done_ms - np.array(arrivals, dtype=np.float64), counts)


def live_latency_of(seen: Sequence[Seen]) -> Latency | None:
    """The latency of an epoch of a live flow, where each row has its own.

    >>> latency = live_latency_of([Seen(4, latencies_us=(1500, 4000), latency_counts=(3, 1))])
    >>> latency.mean_ms, latency.p50_ms, latency.p99_ms
    (2.125, 1.5, 4.0)
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
    places = np.searchsorted(LATENCY_BOUNDS_MS, latencies)
    histogram = np.bincount(places, counts[order], len(LATENCY_BOUNDS_MS) + 1).astype(np.int64)
    return Latency(mean, float(p50), float(p99), tuple(histogram.tolist()))
