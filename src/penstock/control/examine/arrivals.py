"""Arrival times of an epoch's records per slot, from the reports of its couriers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.examine.vitals import Floats, Ints
from penstock.wire.report import Seen


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Arrivals of one step in one epoch."""

    first_m: int
    """Number of the first time slot in `counts`: time slot m is ((m-1)*delta, m*delta]."""
    counts: Floats
    """Records by time slot and slot."""
    horizon_ms: float
    """Time until which all arrivals are known, in milliseconds."""
    age_ms: float
    """Mean age of the records when the epoch began, in milliseconds."""
    waited_ms: Floats
    """Sum of the records' ages when the epoch began, in milliseconds, by slot."""

    @property
    def by_slot(self) -> Floats:
        """Records by slot."""
        records: Floats = self.counts.sum(axis=0)
        return records

    def latency_ms(self, took_ms: float) -> Floats:
        """Sum of the records' latencies by slot, in milliseconds, if the epoch took `took_ms`."""
        return self.waited_ms + self.by_slot * took_ms


def arrivals_of(
    step: str, slots: int, seen: Sequence[Seen], delta_ms: float, since_ms: float, started_ms: float
) -> Arrivals:
    """Arrivals of a step in an epoch that began at `started_ms`; the one before began at `since_ms`.

    A courier reports the number of records for each slot, and the arrival times of all its rows, but not
    those of each slot. So the records of each slot are spread over time like all rows of the task. Rows
    without an arrival time are assumed to have come evenly since the epoch before began.

    >>> seen = [Seen(4, (1_010, 1_190), (3, 1), loads={"sum": np.array([4, 0])})]
    >>> arrivals = arrivals_of("sum", 2, seen, delta_ms=100, since_ms=1_000, started_ms=1_200)
    >>> arrivals.first_m, arrivals.counts.tolist(), arrivals.horizon_ms, arrivals.age_ms
    (11, [[3.0, 0.0], [1.0, 0.0]], 1190.0, 145.0)
    """
    spans = [_when(task, since_ms, started_ms) for task in seen]
    tasks = [(task, *span) for task, span in zip(seen, spans, strict=True) if len(span[0])]
    if not tasks:
        return Arrivals(
            math.ceil(started_ms / delta_ms), np.zeros((0, slots)), started_ms, 0.0, np.zeros(slots)
        )
    times = np.concatenate([times for _, times, _ in tasks])
    first = math.ceil(times.min() / delta_ms)
    counts = np.zeros((math.ceil(times.max() / delta_ms) - first + 1, slots))
    waited = np.zeros(slots)
    for task, when, weights in tasks:
        row = np.ceil(when / delta_ms).astype(np.int64) - first
        profile = np.bincount(row, weights, len(counts)) / weights.sum()
        load = task.loads.get(step, np.zeros(slots))
        counts += np.outer(profile, load)
        waited += load * np.average(started_ms - when, weights=weights)
    weight = np.concatenate([weights for _, _, weights in tasks])
    age = float(np.average(started_ms - times, weights=weight))
    dated = any(len(task.arrivals_ms) for task in seen)
    horizon = float(times.max()) if dated else started_ms
    return Arrivals(first, counts, horizon, age, waited)


def applied_after(
    step: str,
    seen: Sequence[Seen],
    owner: Ints,
    hosts: Sequence[str],
    closed_ms: Mapping[str, Mapping[int, float]],
    started_ms: float,
    written_ms: float,
) -> Floats | None:
    """Sum over a step's records, by slot, of the milliseconds from the epoch's start until they were applied.

    `closed_ms` are the times at which each host applied the channel of each partition. They are those of the
    host's clock, so they count only as far as they lie within the epoch. None if a host has not told them.

    >>> seen = [Seen(3, loads={"sum": np.array([2, 1])}), Seen(4, loads={"sum": np.array([0, 4])})]
    >>> closed_ms = {"a": {0: 1_100.0, 1: 1_200.0}, "b": {0: 1_150.0, 1: 1_300.0}}
    >>> applied_after("sum", seen, np.array([0, 1]), ["a", "b"], closed_ms, 1_000, 1_400).tolist()
    [200.0, 1350.0]
    """
    total = np.zeros(len(owner))
    for partition, task in enumerate(seen):
        load = task.loads.get(step)
        if load is None:
            continue
        times = [closed_ms.get(host, {}).get(partition) for host in hosts]
        if any(time is None for time in times):
            return None
        after = np.clip(np.array(times, np.float64), started_ms, written_ms) - started_ms
        total += load * after[owner]
    return total


def late_after(
    step: str,
    seen: Sequence[Seen],
    owner: Ints,
    hosts: Sequence[str],
    closed_ms: Mapping[str, Mapping[int, float]],
    times_ms: tuple[float, float, float],
    bound_ms: float,
) -> Floats:
    """Number of a step's records, by slot, that took longer than `bound_ms` from arrival until applied.

    `times_ms` are the starts of the epoch before and of this one, and the time at which the output reached
    the sink. That time counts for a channel whose own is not known. For `closed_ms` see `applied_after`.

    >>> seen = [Seen(4, (100, 900), (3, 1), loads={"sum": np.array([8, 4])})]
    >>> closed_ms = {"a": {0: 1_300.0}, "b": {0: 2_500.0}}
    >>> late_after("sum", seen, np.array([0, 1]), ["a", "b"], closed_ms, (0, 1_000, 3_000), 1_000).tolist()
    [6.0, 4.0]
    """
    since_ms, started_ms, written_ms = times_ms
    late = np.zeros(len(owner))
    for partition, task in enumerate(seen):
        came_ms, rows = _when(task, since_ms, started_ms)
        if step not in task.loads or not len(rows):
            continue
        times = [closed_ms.get(host, {}).get(partition, written_ms) for host in hosts]
        applied_ms = np.clip(np.array(times, np.float64), started_ms, written_ms)
        parts = np.array([rows[ms - came_ms > bound_ms].sum() for ms in applied_ms]) / rows.sum()
        late += task.loads[step] * parts[owner]
    return late


def _when(task: Seen, since_ms: float, started_ms: float) -> tuple[Floats, Floats]:
    """Arrival times of a task's rows, and the number of rows at each. None is after the start."""
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
    """Arrivals of a segment without a keyed step, with partitions as slots. See `arrivals_of`."""
    rows = _spread(np.array([task.maps[segment].rows for task in seen]))
    counted = [replace(task, loads={segment: row}) for task, row in zip(seen, rows, strict=True)]
    return arrivals_of(segment, len(seen), counted, delta_ms, since_ms, started_ms)


def _spread(rows: Ints) -> Ints:
    """Rows of each partition, divided among all tasks in proportion to their rows.

    A source may put rows of different times into different partitions. Without this, the last partition
    would seem to bring all of the newest rows.

    >>> _spread(np.array([10, 5, 0])).tolist()
    [[7, 3, 0], [3, 2, 0], [0, 0, 0]]
    """
    whole = np.outer(rows, rows) // max(1, int(rows.sum()))
    return whole + np.diag(rows - whole.sum(axis=0))
