"""When the records of an epoch arrived, slot by slot, from what its couriers told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.examine.vitals import Floats, Ints
from penstock.wire.report import Seen


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Records of one step in one epoch."""

    first_m: int
    """The time slot of the first row of `counts`: time slot m is ((m-1)*delta, m*delta]."""
    counts: Floats
    """By time slot and slot."""
    horizon_ms: float
    """All that arrived until then is known."""
    age_ms: float
    """Average time since arrival when the epoch began."""
    waited_ms: Floats
    """By slot: the same, added up over its records."""

    @property
    def by_slot(self) -> Floats:
        found: Floats = self.counts.sum(axis=0)
        return found

    def latency_ms(self, took_ms: float) -> Floats:
        """By slot: latencies added up over its records, if the epoch took so long."""
        return self.waited_ms + self.by_slot * took_ms


def arrivals_of(
    step: str, slots: int, seen: Sequence[Seen], delta_ms: float, since_ms: float, started_ms: float
) -> Arrivals:
    """The arrivals at a step in an epoch that began at `started_ms`, the one before at `since_ms`.

    A courier tells how many records each slot got and when its rows arrived, but not which of them
    when: each slot's records are spread over time as all rows of their task are. Rows without a time
    of arrival are taken to have come evenly since the epoch before began.

    >>> seen = [Seen(4, (1_010, 1_190), (3, 1), loads={"sum": np.array([4, 0])})]
    >>> found = arrivals_of("sum", 2, seen, delta_ms=100, since_ms=1_000, started_ms=1_200)
    >>> found.first_m, found.counts.tolist(), found.horizon_ms, found.age_ms
    (11, [[3.0, 0.0], [1.0, 0.0]], 1190.0, 145.0)
    """
    spans = [_when(task, since_ms, started_ms) for task in seen]
    told = [(task, *span) for task, span in zip(seen, spans, strict=True) if len(span[0])]
    if not told:
        return Arrivals(
            math.ceil(started_ms / delta_ms), np.zeros((0, slots)), started_ms, 0.0, np.zeros(slots)
        )
    times = np.concatenate([times for _, times, _ in told])
    first = math.ceil(times.min() / delta_ms)
    counts = np.zeros((math.ceil(times.max() / delta_ms) - first + 1, slots))
    waited = np.zeros(slots)
    for task, when, weights in told:
        row = np.ceil(when / delta_ms).astype(np.int64) - first
        profile = np.bincount(row, weights, len(counts)) / weights.sum()
        load = task.loads.get(step, np.zeros(slots))
        counts += np.outer(profile, load)
        waited += load * np.average(started_ms - when, weights=weights)
    weight = np.concatenate([weights for _, _, weights in told])
    age = float(np.average(started_ms - times, weights=weight))
    dated = any(len(task.arrivals_ms) for task in seen)
    horizon = float(times.max()) if dated else started_ms
    return Arrivals(first, counts, horizon, age, waited)


def _when(task: Seen, since_ms: float, started_ms: float) -> tuple[Floats, Floats]:
    """Times of arrival of a task's rows and how many came then; none of them after the start."""
    if not task.rows:
        return np.zeros(0), np.zeros(0)
    if task.arrivals_ms:
        times = np.minimum(np.array(task.arrivals_ms, np.float64), started_ms)
        return times, np.array(task.counts, np.float64)
    parts = max(1, round((started_ms - since_ms) / 10.0))
    times = started_ms - (started_ms - since_ms) * (np.arange(parts) + 0.5) / parts
    return times, np.full(parts, task.rows / parts)


def segment_arrivals(
    segment: str, seen: Sequence[Seen], delta_ms: float, since_ms: float, started_ms: float
) -> Arrivals:
    """The same for a segment without a keyed step: by partition, in the place of slots."""
    rows = _spread(np.array([task.maps[segment].rows for task in seen]))
    counted = [replace(task, loads={segment: row}) for task, row in zip(seen, rows, strict=True)]
    return arrivals_of(segment, len(seen), counted, delta_ms, since_ms, started_ms)


def _spread(rows: Ints) -> Ints:
    """Rows of each partition, by the task among whose arrivals they are counted: among all, alike.

    A source may give each partition another part of the time that has passed: the last one would
    seem to bring all of what came of late.

    >>> _spread(np.array([10, 5, 0])).tolist()
    [[7, 3, 0], [3, 2, 0], [0, 0, 0]]
    """
    whole = np.outer(rows, rows) // max(1, int(rows.sum()))
    return whole + np.diag(rows - whole.sum(axis=0))
