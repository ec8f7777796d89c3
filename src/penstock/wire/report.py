"""A courier's report to the driver about one epoch: the rows that it read, sent and offloaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.spans import Span

Counts = npt.NDArray[np.int64]
"""Array with one number for each slot of a step."""


@dataclass(frozen=True)
class HotKeyCount:
    """Number of records of one key that a courier sent to a step in one epoch."""

    step: str
    slot: int
    key: str
    """Key in readable form, for example "user=42"."""
    count: int
    hash: int = 0
    """Hash of the key; 0 in reports of earlier releases."""


@dataclass(frozen=True)
class Usage:
    """Work of burst workers, and its cost.

    >>> Usage(invocations=2, seconds=0.5) + Usage(invocations=1, cold_starts=1)
    Usage(invocations=3, seconds=0.5, cold_starts=1, cold_start_ms=0.0, failed=0, throttled=0, money=0.0)
    """

    invocations: int = 0
    """Number of invocations that a burst worker began, including failed ones."""
    seconds: float = 0.0
    """Total billed time, in seconds."""
    cold_starts: int = 0
    """Number of invocations that had to start a burst worker."""
    cold_start_ms: float = 0.0
    """Total time of cold starts, in milliseconds."""
    failed: int = 0
    """Number of invocations that a burst worker began and did not answer in time, or at all."""
    throttled: int = 0
    """Number of invocations refused because too many burst workers were busy. They cost nothing."""
    money: float = 0.0
    """Cost in US dollars."""

    def __add__(self, other: Usage) -> Usage:
        mine, others = vars(self), vars(other)
        return Usage(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True, kw_only=True)
class OffloadCounts:
    """Counts of the rows that were handed to burst workers in one epoch."""

    rows: int = 0
    """Number of rows set apart for burst workers."""
    records: int = 0
    """Number of records that burst workers returned: partial states of the keyed step, or rows."""
    invocations: int = 0
    """Number of invocations of burst workers."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of invocations without a usable answer."""
    returned: int = 0
    """Number of rows that the courier processed itself because no burst worker answered."""
    here_ms: float = 0.0
    """CPU milliseconds of requests that couriers have done again themselves, to profile burst workers."""
    workers_ms: float = 0.0
    """CPU milliseconds of burst workers for the same requests."""
    wait_ms: float = 0
    """Milliseconds from the first request until the last answer arrived or was given up."""


@dataclass(frozen=True)
class Offloaded(OffloadCounts):
    """Counts of the rows that one courier handed to burst workers in one segment."""

    segment: str
    """Id of the segment's last step."""


@dataclass(frozen=True)
class Routed:
    """Rows that reached the point of a segment at which rows may go to burst workers."""

    rows: int
    combined: bool
    """Whether the courier combined the rows that did not go to burst workers into fewer records."""


@dataclass(frozen=True)
class MapWork:
    """One courier's work in one segment without a keyed step, in one epoch."""

    rows: int = 0
    """Number of rows that arrived for this segment."""
    done: int = 0
    """Number of those rows that the courier processed itself. Burst workers did the others."""
    useful_ms: float = 0.0
    """Milliseconds that the courier spent on its rows."""
    cpu_ms: float | None = None
    """CPU milliseconds of these; None if not measured."""


@dataclass(frozen=True)
class Seen:
    """One courier's report of one epoch."""

    rows: int
    """Number of rows read from all sources."""
    arrivals_ms: tuple[int, ...] = ()
    """Middle of each bucket of arrival times, in milliseconds since 1970."""
    counts: tuple[int, ...] = ()
    """Number of rows in each bucket of arrival times."""
    event_ms: tuple[tuple[int, str, int], ...] = ()
    """(input, partition, newest event time); the partition is "" for inputs without partitions."""
    late: dict[str, int] = field(default_factory=dict)
    """Step -> number of rows that were too late for it."""
    loads: dict[str, Counts] = field(default_factory=dict)
    """Step -> number of records sent to its hosts, by slot. Rows that went to burst workers are included.

    It does not say when each record arrived, because records may be combined, or come from an earlier step.
    Code that needs times spreads a slot's count over the arrivals of the whole task.
    """
    hot: tuple[HotKeyCount, ...] = ()
    """Most frequent keys of the slots that the epoch's plan says to watch."""
    offloaded: tuple[Offloaded, ...] = ()
    """Counts of rows that went to burst workers, by segment, for segments of which rows should go."""
    used: Usage = Usage()
    """Usage of burst workers that the courier invoked itself."""
    maps: dict[str, MapWork] = field(default_factory=dict)
    """Segment -> work in its stateless steps, for segments that the plan says to time."""
    routed: dict[str, Routed] = field(default_factory=dict)
    """Segment -> rows that could have gone to burst workers, for segments with a reflex."""
    latencies_us: tuple[int, ...] = ()
    """Middle of each bucket of latencies, in microseconds. Set by live couriers only.

    A latency is the time from a row's arrival until a host has applied it.
    """
    latency_counts: tuple[int, ...] = ()
    """Number of rows in each bucket of latencies."""
    spans: tuple[Span, ...] = ()
    """What the courier has done so far, and what it did in its last epoch after that epoch's report."""


def offloaded_by_segment(seen: Iterable[Seen]) -> dict[str, Offloaded]:
    """Add up the offload counts of all couriers, by segment. `wait_ms` is the longest of them, not the sum.

    >>> one = Offloaded("sum", rows=5, records=2, invocations=1, wait_ms=40)
    >>> other = Offloaded("sum", rows=4, invocations=1, failures={"timeout": 1}, wait_ms=70)
    >>> both = offloaded_by_segment([Seen(9, offloaded=(one,)), Seen(9, offloaded=(other,))])["sum"]
    >>> both.rows, both.records, both.failures, both.wait_ms
    (9, 2, {'timeout': 1}, 70)
    """
    groups: dict[str, list[Offloaded]] = {}
    for offloaded in (offloaded for task in seen for offloaded in task.offloaded):
        groups.setdefault(offloaded.segment, []).append(offloaded)
    totals = {}
    for segment, tasks in groups.items():
        longest_ms = max(task.wait_ms for task in tasks)
        totals[segment] = Offloaded(segment, **asdict(replace(added(tasks), wait_ms=longest_ms)))
    return totals


def added(counts: Collection[OffloadCounts]) -> OffloadCounts:
    """Return the sum of these counts, including `wait_ms`."""
    names = ("rows", "records", "invocations", "returned", "here_ms", "workers_ms", "wait_ms")
    sums = {name: sum(getattr(count, name) for count in counts) for name in names}
    failures = sum((Counter(count.failures) for count in counts), Counter[str]())
    return OffloadCounts(failures=dict(failures), **sums)
