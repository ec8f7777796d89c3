"""How far event time has come in the sources of one courier. Pure: the times of day are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.live.junction import LaneMark
from penstock.plan.steps import SourcePlan
from penstock.plan.watermarks import FREE, Bound, Partition, watermark_of

UNHEARD_MS = 5_000
"""Milliseconds for which a partition that has brought no row yet holds event time back, where the flow does
not say after how many a partition is idle. Partitions are polled one after the other: without this, rows of
those that come second would be late when a courier begins, or when a source that was empty fills."""
TOGETHER_MS = 1_000
"""Milliseconds for which event time waits after the first rows of a source that was empty and that others
read, too: those of other couriers come at about the same time."""


class SourceClock:
    """The event time of one source, over the partitions that one courier reads.

    A partition is known by the column that names it, if the flow has one, else by the reader's own name.

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
        """`known` says how far partitions had come before this run. A source that has partitions in other
        couriers is `shared`, as long as nothing is known of any of them."""
        self._time, self._started_ms = plan.time, started_ms
        self._shared, self._gathers = shared, False
        self._unheard = set(partitions) - set(known)
        self._reads = bool(self._unheard or known)
        self._partitions: dict[str, Partition] = dict(known)

    @property
    def idle_ms(self) -> int | None:
        """Milliseconds of quiet after which something may change by itself; None: nothing will."""
        if self._time is None or not self._reads:
            return None
        if self._time.idle_ms is not None:
            return self._time.idle_ms
        return UNHEARD_MS if self._unheard or self._gathers else None

    @property
    def _patience_ms(self) -> int:
        given_ms = None if self._time is None else self._time.idle_ms
        return UNHEARD_MS if given_ms is None else given_ms

    def heard(self, partition: str, newest: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """A partition has brought rows with these newest times; gives them by the names that are kept."""
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
        """How far it is; at its end nothing holds others back, and if windows are to close it is final."""
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
            return FREE  # of whichever couriers read those that have rows, none waits for this one
        return watermark_of(self._time, self._partitions.values(), now_ms, self._started_ms)


def known_partitions(
    rows: Sequence[Sequence[Any]], source: int, plan: SourcePlan, partitions: Iterable[str]
) -> dict[str, Partition]:
    """How far this courier's partitions of a source had come, from what the manifest says."""
    mine = set(partitions)
    return {
        name: Partition(newest_ms, last_seen_ms)
        for number, name, newest_ms, last_seen_ms in rows
        if number == source and name in mine and plan.time is not None
    }
