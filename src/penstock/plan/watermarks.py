"""Watermarks of sources and steps: the event time up to which all rows are expected to have arrived.

A source's rows may arrive out of order, within a delay. Its watermark is the newest event time so
far minus that delay. With several partitions (of a Kafka topic, say) the slowest one counts, so that
its rows are not late. A partition without rows for `idle_ms` no longer holds the others back; rows that
it brings after that may be late.

A step's watermark is the lowest of its inputs', and never goes back. All functions here are pure: the
event times seen in an epoch and the time of day determine the watermarks of the next epoch. The
manifest stores both.

>>> sources = (SourceTime(delay_ms=10, idle_ms=60_000, by_partition=True),)
>>> known = advance(sources, {}, [(0, "p0", 1_000), (0, "p1", 700)], now_ms=0)
>>> source_watermarks(sources, known, now_ms=0, started_ms=0)
(690,)
>>> known = advance(sources, known, [(0, "p0", 2_000)], now_ms=60_000)
>>> bounds = source_watermarks(sources, known, now_ms=60_000, started_ms=0)
>>> step_watermarks((("count", (0,)), ("top", ("count",))), bounds, {"count": 690, "top": None})
{'count': 1990, 'top': 690}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


@dataclass(frozen=True)
class SourceTime:
    """Watermark settings of one input of a flow."""

    delay_ms: int
    """Milliseconds by which a row may be behind the newest row of its partition."""
    idle_ms: int | None
    """Milliseconds without a row, in time of day, after which a partition is ignored; None: never."""
    by_partition: bool
    """Whether rows name their partition. If not, the whole input is one partition, ""."""


class Partition(NamedTuple):
    """Event-time progress of one partition."""

    newest_ms: int
    """Newest event time, in Unix milliseconds."""
    last_seen_ms: int
    """Time of day when its last row arrived, in Unix milliseconds."""


Known = dict[tuple[int, str], Partition]
"""(number of the input, partition) -> its progress."""


class Free(Enum):
    """The type of FREE: the bound of an input that has no event time, or is idle, and so holds no step
    back."""

    FREE = "free"


FREE = Free.FREE

Bound = int | None | Free
"""A watermark in milliseconds; None: no watermark yet, which holds steps back; or FREE."""

Graph = Sequence[tuple[str, Sequence[int | str]]]
"""(step, its inputs: numbers of sources and names of earlier steps), in order."""


def advance(
    sources: Sequence[SourceTime | None],
    known: Mapping[tuple[int, str], Partition],
    seen: Iterable[tuple[int, str, int]],
    now_ms: int,
) -> Known:
    """Update the partitions' progress after an epoch in which couriers saw (input, partition, newest event
    time).

    Partitions that no longer match the sources are dropped. A flow may restart with other settings, and
    a partition that never gets rows again must not hold the watermark back.
    """
    result = {
        (number, name): partition
        for (number, name), partition in known.items()
        if number < len(sources) and _fits(sources[number], name)
    }
    for number, name, event_ms in seen:
        source = sources[number]
        if source is None:
            continue
        place = (number, name if source.by_partition else "")
        before = result.get(place, Partition(event_ms, now_ms))
        result[place] = Partition(max(before.newest_ms, event_ms), max(before.last_seen_ms, now_ms))
    return result


def _fits(source: SourceTime | None, name: str) -> bool:
    return source is not None and source.by_partition == (name != "")


def watermark_of(
    source: SourceTime, partitions: Iterable[Partition], now_ms: int, started_ms: int
) -> Bound:
    """A source's watermark, from those of its partitions that are not idle; FREE if all are.

    None if there was no row yet. Idle time counts from `started_ms`, the start of this run of the query,
    at the earliest, so that the time while the query was down does not count.

    >>> topic = SourceTime(delay_ms=0, idle_ms=5_000, by_partition=True)
    >>> watermark_of(topic, [Partition(100, 0), Partition(900, 4_000)], now_ms=5_000, started_ms=0)
    900
    >>> watermark_of(topic, [], now_ms=4_999, started_ms=0)
    >>> watermark_of(topic, [], now_ms=5_000, started_ms=0)
    <Free.FREE: 'free'>
    """

    def idle_since(quiet_from_ms: int) -> bool:
        quiet_ms = now_ms - max(quiet_from_ms, started_ms)
        return source.idle_ms is not None and quiet_ms >= source.idle_ms

    held = list(partitions)
    busy = [part.newest_ms for part in held if not idle_since(part.last_seen_ms)]
    if busy:
        return min(busy) - source.delay_ms
    return FREE if held or idle_since(started_ms) else None


def source_watermarks(
    sources: Sequence[SourceTime | None],
    known: Mapping[tuple[int, str], Partition],
    now_ms: int,
    started_ms: int,
) -> tuple[Bound, ...]:
    """The watermark of each input; FREE for an input without event time."""
    held: list[list[Partition]] = [[] for _ in sources]
    for (number, _), partition in known.items():
        held[number].append(partition)
    return tuple(
        FREE if source is None else watermark_of(source, partitions, now_ms, started_ms)
        for source, partitions in zip(sources, held, strict=True)
    )


def step_watermarks(
    graph: Graph, sources: Sequence[Bound], before: Mapping[str, int | None]
) -> dict[str, int | None]:
    """The watermarks of all steps in the next epoch, from those of the epoch `before`.

    A step that reads another step lags it by one epoch: the other step's output of the next epoch belongs
    to its present watermark. A step whose inputs are all FREE keeps its watermark, and is FREE for the
    steps that read it.

    >>> step_watermarks((("join", (0, 1)),), (500, None), {"join": 100})
    {'join': 100}
    >>> step_watermarks((("join", (0, 1)),), (500, FREE), {"join": 100})
    {'join': 500}
    """
    result: dict[str, int | None] = {}
    free: set[str] = set()
    for step, reads in graph:
        bounds = [_bound(read, sources, before, free) for read in reads]
        holding = [bound for bound in bounds if not isinstance(bound, Free)]
        if not holding:
            free.add(step)
        times, known = [before.get(step)], [bound for bound in holding if bound is not None]
        if known and len(known) == len(holding):  # an input without a watermark holds the step back
            times.append(min(known))
        result[step] = max((time for time in times if time is not None), default=None)
    return result


def _bound(
    read: int | str, sources: Sequence[Bound], before: Mapping[str, int | None], free: set[str]
) -> Bound:
    if isinstance(read, int):
        return sources[read]
    return FREE if read in free else before.get(read)


def known_rows(known: Mapping[tuple[int, str], Partition]) -> list[list[Any]]:
    """The partitions' progress as rows for the manifest: (input, partition, newest event time, last seen).

    >>> known_rows({(0, "p1"): Partition(900, 4_000)})
    [[0, 'p1', 900, 4000]]
    """
    return [[number, name, *partition] for (number, name), partition in sorted(known.items())]


def known_from(rows: Iterable[Sequence[Any]]) -> Known:
    """Restore the partitions' progress from the rows of `known_rows`."""
    return {
        (number, name): Partition(newest_ms, last_seen_ms)
        for number, name, newest_ms, last_seen_ms in rows
    }
