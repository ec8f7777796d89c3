"""What the couriers of an epoch told, as the control machine takes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.control.events import Came, SegmentSealed
from penstock.control.examine.arrivals import Arrivals
from penstock.control.examine.vitals import Floats, Ints
from penstock.wire.report import Seen


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


def segments_of(
    timed: Sequence[str],
    partitions: int,
    seen: Sequence[Seen],
    delta_ms: float,
    since_ms: float,
    started_ms: float,
) -> dict[str, SegmentSealed]:
    """What couriers did in segments without a keyed step; none where not all of them told of it.

    `seen` is by partition. For the rest see `arrivals_of`.
    """
    found = dict[str, SegmentSealed]()
    for name in timed if seen and len(seen) == partitions else ():
        if not all(name in task.maps for task in seen):
            continue
        works = [task.maps[name] for task in seen]
        spread = _spread(np.array([work.rows for work in works]))
        counted = [replace(task, loads={name: row}) for task, row in zip(seen, spread, strict=True)]
        arrivals = arrivals_of(name, len(works), counted, delta_ms, since_ms, started_ms)
        found[name] = SegmentSealed(arrivals, tuple(works))
    return found


def _spread(rows: Ints) -> Ints:
    """Rows of each partition, by the task among whose arrivals they are counted: among all, alike.

    A source may give each partition another part of the time that has passed: the last one would
    seem to bring all of what came of late.

    >>> _spread(np.array([10, 5, 0])).tolist()
    [[7, 3, 0], [3, 2, 0], [0, 0, 0]]
    """
    whole = np.outer(rows, rows) // max(1, int(rows.sum()))
    return whole + np.diag(rows - whole.sum(axis=0))


def came_for(step: str, seen: Sequence[Seen]) -> Came:
    """What came by where rows of a step, or of a segment without one, leave for functions."""
    done = tuple(task.maps[step].rows for task in seen if step in task.maps)
    if done:
        return Came(done, float(sum(done)), combined=False)
    routed = [task.routed[step] for task in seen if step in task.routed]
    records = float(sum(task.loads[step].sum() for task in seen if step in task.loads))
    combined = any(one.combined for one in routed)
    return Came(tuple(one.rows for one in routed), records, combined)
