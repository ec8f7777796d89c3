"""What a courier tells the driver of one epoch: the rows it read, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
"""One number for each slot of a step."""


@dataclass(frozen=True)
class HotKeyCount:
    """How many records of one key a courier sent to a step in one epoch."""

    step: str
    slot: int
    key: str
    """As people read it, for example "user=42"."""
    count: int


@dataclass(frozen=True)
class Usage:
    """What burst workers have done, and what it cost.

    >>> Usage(invocations=2, seconds=0.5) + Usage(invocations=1, cold_starts=1)
    Usage(invocations=3, seconds=0.5, cold_starts=1, cold_start_ms=0.0, failed=0, throttled=0, money=0.0)
    """

    invocations: int = 0
    """Invocations that a burst worker began, including those that failed."""
    seconds: float = 0.0
    """Working time that is billed, in total."""
    cold_starts: int = 0
    cold_start_ms: float = 0.0
    """Time that cold starts took, in total."""
    failed: int = 0
    """Invocations that a burst worker began and did not answer in time, or at all."""
    throttled: int = 0
    """Invocations that were refused because too many burst workers were busy. They cost nothing."""
    money: float = 0.0
    """US dollars."""

    def __add__(self, other: Usage) -> Usage:
        mine, others = vars(self), vars(other)
        return Usage(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True, kw_only=True)
class OffloadCounts:
    """What was handed to burst workers in one epoch, and what came of it."""

    rows: int = 0
    """Rows that were set aside for burst workers."""
    records: int = 0
    """Records that burst workers gave: partial states of the keyed step, or rows."""
    invocations: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """Why invocations gave no answer that could be used -> how many of them."""
    returned: int = 0
    """Rows that the courier did itself, since no burst worker answered for them."""
    wait_ms: float = 0
    """From the first request until the last answer had come, or was given up."""


@dataclass(frozen=True)
class Offloaded(OffloadCounts):
    """The same of one courier and one segment."""

    segment: str
    """The id of the segment's last step."""


@dataclass(frozen=True)
class Routed:
    """Rows that came by where a segment's rows leave for burst workers."""

    rows: int
    combined: bool
    """Whether the courier made fewer records of those that stayed."""


@dataclass(frozen=True)
class MapWork:
    """What one courier had to do in one segment without a keyed step, in one epoch."""

    rows: int = 0
    """Rows that arrived for this segment."""
    done: int = 0
    """Rows of them that the courier did itself; burst workers did the others."""
    useful_ms: float = 0.0
    """Time in which the courier did its rows."""


@dataclass(frozen=True)
class Seen:
    """One courier's report of one epoch."""

    rows: int
    arrivals_ms: tuple[int, ...] = ()
    """Middle of each bucket of arrival times, since 1970."""
    counts: tuple[int, ...] = ()
    """Rows in each bucket."""
    event_ms: tuple[tuple[int, str, int], ...] = ()
    """(input, partition, newest event time); the partition is "" for inputs without partitions."""
    late: dict[str, int] = field(default_factory=dict)
    """step -> how many rows were too late for it."""
    loads: dict[str, Counts] = field(default_factory=dict)
    """step -> records sent to its hosts, by slot. Where burst workers help, what they carry is among them,
    as if hosts had got it.

    When each of them arrived is not told: what a step is sent may be combined, or made by the step
    before it. Whoever needs times spreads a slot's count over the arrivals of the whole task.
    """
    hot: tuple[HotKeyCount, ...] = ()
    """The most frequent keys of the slots that the epoch's plan had watched."""
    offloaded: tuple[Offloaded, ...] = ()
    """What went to burst workers, by segment; without those of which nothing was to go."""
    used: Usage = Usage()
    """What the courier's own way to burst workers counted."""
    maps: dict[str, MapWork] = field(default_factory=dict)
    """segment -> the work in its stateless steps, of segments that the plan has timed."""
    routed: dict[str, Routed] = field(default_factory=dict)
    """segment -> rows that came by where they leave for burst workers, of segments with a reflex."""
    latencies_us: tuple[int, ...] = ()
    """Of live couriers: the middle of each bucket of the times from a row's arrival until hosts had applied
    it, in microseconds."""
    latency_counts: tuple[int, ...] = ()
    """Rows in each of these buckets."""


def offloaded_by_segment(seen: Iterable[Seen]) -> dict[str, Offloaded]:
    """What couriers handed to burst workers, added up over them; of the times that they waited, the longest.

    >>> one = Offloaded("sum", rows=5, records=2, invocations=1, wait_ms=40)
    >>> other = Offloaded("sum", rows=4, invocations=1, failures={"timeout": 1}, wait_ms=70)
    >>> both = offloaded_by_segment([Seen(9, offloaded=(one,)), Seen(9, offloaded=(other,))])["sum"]
    >>> both.rows, both.records, both.failures, both.wait_ms
    (9, 2, {'timeout': 1}, 70)
    """
    groups: dict[str, list[Offloaded]] = {}
    for told in (told for task in seen for told in task.offloaded):
        groups.setdefault(told.segment, []).append(told)
    found = {}
    for segment, tasks in groups.items():
        longest_ms = max(one.wait_ms for one in tasks)
        found[segment] = Offloaded(segment, **asdict(replace(added(tasks), wait_ms=longest_ms)))
    return found


def added(told: Collection[OffloadCounts]) -> OffloadCounts:
    """All of these together, the times that were waited too."""
    names = ("rows", "records", "invocations", "returned", "wait_ms")
    sums = {name: sum(getattr(one, name) for one in told) for name in names}
    failures = sum((Counter(one.failures) for one in told), Counter[str]())
    return OffloadCounts(failures=dict(failures), **sums)
