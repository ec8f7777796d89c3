"""Schedules: heuristics of Prasaad, Ramalingam and Rajan that choose the operator for a free worker.

A schedule is a pure function. It gets one `Standing` for each operator of the chain, and picks one that is
`ready`: it has input that may be taken, and room for another worker.

    qst     queue size throttling: the first operator whose output queue is below its threshold
    lp      last in pipeline: the last operator
    et      estimated time: the operator whose worklist would take longest
    ct      current throughput: the operator with the least recent progress
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.errors import SettingError

LEAST_SELECTIVITY = 1e-6
"""Lower limit of selectivities. With a selectivity of 0, the operators after it would not count at all."""


class Standing(NamedTuple):
    """The state of one operator at the time of a decision."""

    ready: bool
    """Whether one more worker would find work."""
    waiting: float = 0.0
    """Number of records in its worklist."""
    cost: float = 0.0
    """Seconds of work per record; 0 while unknown."""
    selectivity: float = 1.0
    """Output records per input record."""
    workers: int = 0
    """Number of workers that are working on it."""
    worked: float = 0.0
    """Seconds of work on it in the current window."""


Schedule = Callable[[Sequence[Standing]], int | None]
"""Function that returns the position of an operator in the chain; None if none is ready. It must be quick,
since other workers wait for it."""


def queue_size_throttling(standings: Sequence[Standing], capacity: float = 8192) -> int | None:
    """Choose the first operator whose output queue is not yet full, which pushes records from the entry.

    The thresholds of all queues sum up to `capacity` records, in proportion to the output of each
    operator per record that enters the chain. If all queues are full, the last ready operator is chosen,
    so that no worker idles.

    >>> one = Standing(ready=True, waiting=9)
    >>> queue_size_throttling([one, one._replace(waiting=10), one], capacity=30)
    1
    """
    outputs, chosen = _reaching(standings)[1:], None
    share = capacity / sum(outputs)
    for place, standing in enumerate(standings):
        if standing.ready:
            chosen = place
            behind = standings[place + 1 : place + 2]
            if behind and behind[0].waiting < share * outputs[place]:
                break
    return chosen


def last_in_pipeline(standings: Sequence[Standing]) -> int | None:
    """Choose the last operator that is ready, which pulls records towards the exit.

    >>> last_in_pipeline([Standing(True), Standing(True), Standing(False)])
    1
    """
    return max((place for place, standing in enumerate(standings) if standing.ready), default=None)


def estimated_time(standings: Sequence[Standing]) -> int | None:
    """Choose the operator whose worklist would take longest with one more worker. Unknown costs come first.

    >>> quick, slow = Standing(True, waiting=10, cost=1.0), Standing(True, waiting=1, cost=8.0)
    >>> estimated_time([quick, slow]), estimated_time([quick._replace(workers=1), slow])
    (0, 1)
    """
    chosen, longest = None, -1.0
    for place, standing in enumerate(standings):
        if standing.ready:
            cost = standing.cost or math.inf
            time = standing.waiting * cost / (standing.workers + 1)
            if time >= longest:
                chosen, longest = place, time
    return chosen


def current_throughput(standings: Sequence[Standing], slice: float) -> int | None:
    """Choose the bottleneck: the operator with the least progress in the current window.

    Progress includes the work that its current workers will have done at the end of their time slice (`slice`
    seconds). It is measured in records that enter the chain: the operator's records divided by the number
    that reach it per entering record. The selectivity of the operator itself does not count. Among equals,
    and among operators of unknown cost, the last one is chosen.

    >>> first = Standing(True, cost=1.0, worked=4.0, selectivity=0.5)
    >>> current_throughput([first, Standing(True, cost=1.0, worked=3.0)], slice=1.0)
    0
    >>> current_throughput([first, Standing(True, cost=1.0, worked=1.0)], slice=1.0)
    1
    """
    chosen, least, reaching = None, math.inf, 1.0
    for place, standing in enumerate(standings):
        if standing.ready:
            spent = standing.worked + standing.workers * slice
            done = spent / (standing.cost * reaching) if standing.cost else 0.0
            if done <= least:
                chosen, least = place, done
        reaching *= max(standing.selectivity, LEAST_SELECTIVITY)
    return chosen


def schedule_named(name: str, slice: float) -> Schedule:
    """The schedule of that name ("qst", "lp", "et" or "ct"), for time slices of `slice` seconds."""
    known: dict[str, Schedule] = {
        "qst": queue_size_throttling,
        "lp": last_in_pipeline,
        "et": estimated_time,
        "ct": partial(current_throughput, slice=slice),
    }
    if name not in known:
        raise SettingError(f"unknown schedule {name!r}", hint=f"use one of {', '.join(known)}")
    return known[name]


def _reaching(standings: Sequence[Standing]) -> list[float]:
    """Number of records that reach each operator, and the exit, per record that enters the chain."""
    reaching = [1.0]
    for standing in standings:
        reaching.append(reaching[-1] * max(standing.selectivity, LEAST_SELECTIVITY))
    return reaching
