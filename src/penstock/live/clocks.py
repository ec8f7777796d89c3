"""Event-time progress of one courier's sources. Pure: callers pass the time of day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.live.junction import LaneMark
from penstock.plan.steps import SourcePlan
from penstock.plan.watermarks import FREE, Bound, Partition, watermark_of

UNHEARD_MS = 5_000
"""Milliseconds for which a partition without rows so far holds the watermark back, if the flow sets no idle
time. Partitions are polled one after the other. Without this wait, rows of partitions that are polled second
would be late when a courier starts, or when an empty source fills."""
TOGETHER_MS = 1_000
"""Milliseconds for which the watermark waits after the first rows of a source that was empty and that several
couriers read: their rows arrive at about the same time."""


class SourceClock:
    """The watermark of one source, over the partitions that one courier reads.

    A partition is named by the flow's partition column if it has one, else by the reader.

    >>> import pyarrow as pa
    >>> plan = SourcePlan(pa.schema([("at", pa.timestamp("ms"))]), event_time="at", delay_ms=10)
    >>> clock = SourceClock(plan, ["p0", "p1"], {}, started_ms=0)
    >>> clock.heard("p0", {"": 500}, now_ms=1), clock.mark(1, ended=False, close=False)
    ({'p0': 500}, LaneMark(bound=None, final=False))
    >>> clock.heard("p1", {"": 400}, now_ms=2), clock.mark(2, ended=False, close=False)
    ({'p1': 400}, LaneMark(bound=390, final=False))
    """

    def __init__(
        self,
        plan: SourcePlan,
        partitions: Iterable[str],
        known: Mapping[str, Partition],
        started_ms: int,
        shared: bool = False,
    ) -> None:
        """`known` holds the partitions' event times from before this run. `shared` is true if other couriers
        read partitions of this source, too, and no event time of any is known yet."""
        self._time, self._started_ms = plan.time, started_ms
        self._shared, self._gathers = shared, False
        self._unheard = set(partitions) - set(known)
        self._reads = bool(self._unheard or known)
        self._partitions: dict[str, Partition] = dict(known)

    @property
    def idle_ms(self) -> int | None:
        """Milliseconds without rows after which the watermark may change by itself; None if it cannot."""
        if self._time is None or not self._reads:
            return None
        if self._time.idle_ms is not None:
            return self._time.idle_ms
        return UNHEARD_MS if self._unheard or self._gathers else None

    @property
    def _patience_ms(self) -> int:
        set_ms = None if self._time is None else self._time.idle_ms
        return UNHEARD_MS if set_ms is None else set_ms

    def heard(self, partition: str, newest: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Record the newest event times of rows from a partition. Returns them by partition name."""
        if not self._partitions and now_ms - self._started_ms >= self._patience_ms:
            self._started_ms, self._gathers = now_ms, self._shared
        self._unheard.discard(partition)
        named = {name or partition: newest_ms for name, newest_ms in newest.items()}
        for name, newest_ms in named.items():
            before = self._partitions.get(name)
            most_ms = newest_ms if before is None else max(before.newest_ms, newest_ms)
            self._partitions[name] = Partition(most_ms, now_ms)
        return named

    def mark(self, now_ms: int, ended: bool, close: bool) -> LaneMark:
        """The source's mark: its watermark, or no bound once it has ended. The mark is final if windows
        should close then (`close`)."""
        if ended or not self._reads:
            return LaneMark(FREE, final=close)
        if self._time is None:
            return LaneMark(FREE)
        return LaneMark(self._bound(now_ms))

    def _bound(self, now_ms: int) -> Bound:
        assert self._time is not None
        waits_ms = self._patience_ms if self._unheard else TOGETHER_MS if self._gathers else 0
        if now_ms - self._started_ms < waits_ms:
            return None
        self._gathers = False
        if not self._partitions:
            return FREE  # couriers that read partitions with rows do not wait for this one
        return watermark_of(self._time, self._partitions.values(), now_ms, self._started_ms)


def known_partitions(
    rows: Sequence[Sequence[Any]], source: int, plan: SourcePlan, partitions: Iterable[str]
) -> dict[str, Partition]:
    """Event times of this courier's partitions of a source, from the manifest's rows."""
    mine = set(partitions)
    return {
        name: Partition(newest_ms, last_seen_ms)
        for number, name, newest_ms, last_seen_ms in rows
        if number == source and name in mine and plan.time is not None
    }
