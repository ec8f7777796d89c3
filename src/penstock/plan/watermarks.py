"""Watermarks: how far event time has certainly come, for each source and for each step.

A source's rows may come in any order, within a delay; its watermark is the newest event time so
far, less that delay. A source of several partitions (of a Kafka topic, say) is only as far as the
one that is furthest behind, so that a slow partition's rows are not late. A partition that has
been quiet for `idle_ms` no longer holds the others back; rows that it brings after that may be late.

A step is as far as the least of what it reads. Everything here is values in, values out: what was
seen in an epoch, and the time of day, decide the watermarks of the next one, and the manifest keeps
both. A step's watermark never goes back.

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
    """How event time passes in one input of a flow."""

    delay_ms: int
    """How far behind the newest row of its partition a row may be."""
    idle_ms: int | None
    """Milliseconds without a row, in time of day, after which a partition is left out; None: never."""
    by_partition: bool
    """Whether rows name their partition. If not, the whole input is one partition, ""."""


class Partition(NamedTuple):
    """How far one partition has come."""

    newest_ms: int
    """Its newest event time."""
    last_seen_ms: int
    """The time of day when it last brought a row."""


Known = dict[tuple[int, str], Partition]
"""(number of the input, partition) -> how far it has come."""


class Free(Enum):
    """One value, FREE: the bound of what says nothing of event time, and so holds nobody back."""

    FREE = "free"


FREE = Free.FREE

Bound = int | None | Free
"""A watermark; None if there is none yet, which holds others back; or FREE."""

Graph = Sequence[tuple[str, Sequence[int | str]]]
"""(step, what it reads: numbers of inputs and names of steps that come before it), in order."""


def advance(
    sources: Sequence[SourceTime | None],
    known: Mapping[tuple[int, str], Partition],
    seen: Iterable[tuple[int, str, int]],
    now_ms: int,
) -> Known:
    """What is known after an epoch in which couriers saw (input, partition, newest event time).

    Partitions that do not fit the sources any more are forgotten: a flow may start again with other
    settings, and what nobody will ever bring rows of must not hold the watermark back.
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
    """How far a source has come, by those of its partitions that are not idle; FREE if all are.

    None if it has not brought any row yet. Nothing counts as quiet from before `started_ms`, when
    this run of the query began: that the query was down is not the sources' fault.

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
    """How far each input has come. One without event time is FREE."""
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
    """The watermarks of the next epoch, from those of the one `before`.

    A step that reads another one lags it by an epoch: what that one gives in the next epoch belongs
    to the watermark that it has now. A step that reads only what is FREE keeps its watermark, and
    is FREE for the steps that read it.

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
        if known and len(known) == len(holding):  # one that is not known yet holds the step back
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
    """What is known, for the manifest: (input, partition, newest event time, when last seen).

    >>> known_rows({(0, "p1"): Partition(900, 4_000)})
    [[0, 'p1', 900, 4000]]
    """
    return [[number, name, *partition] for (number, name), partition in sorted(known.items())]


def known_from(rows: Iterable[Sequence[Any]]) -> Known:
    """Undo `known_rows`."""
    return {
        (number, name): Partition(newest_ms, last_seen_ms)
        for number, name, newest_ms, last_seen_ms in rows
    }
