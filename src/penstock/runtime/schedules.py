"""Which operator a free worker should work on: the heuristics of Prasaad, Ramalingam and Rajan.

A schedule sees one `Standing` for each operator of the chain, and picks one of those that are
`ready`: something waits that may be taken, and fewer workers are there than could be. Pure.

    qst     queue size throttling: the first one whose output queue is below its threshold
    lp      last in pipeline: the last one
    et      estimated time: the one whose worklist would take longest
    ct      current throughput: the one that got least done of late
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.errors import SettingError

LEAST_SELECTIVITY = 1e-6
"""One that gives nothing (yet) would make all that is behind it count for nothing."""


class Standing(NamedTuple):
    """How one operator stands at the moment of a decision."""

    ready: bool
    waiting: float = 0.0
    """Records in its worklist."""
    cost: float = 0.0
    """Seconds of work for a record; 0 while unknown."""
    selectivity: float = 1.0
    """Records out for a record in."""
    workers: int = 0
    """Workers that are at it."""
    worked: float = 0.0
    """Seconds of work that it got in the current window."""


Schedule = Callable[[Sequence[Standing]], int | None]
"""Gives the place of an operator in the chain; None if none is ready. Quick: other workers wait."""


def queue_size_throttling(standings: Sequence[Standing], capacity: float = 8192) -> int | None:
    """Push records from the entry: the first operator whose output queue is not yet full.

    Thresholds share `capacity` records in proportion to what each operator gives for one record of
    the whole chain. If all are over theirs, the last one that is ready: a worker never idles.

    >>> one = Standing(ready=True, waiting=9)
    >>> queue_size_throttling([one, one._replace(waiting=10), one], capacity=30)
    1
    """
    given, chosen = _reaching(standings)[1:], None
    share = capacity / sum(given)
    for place, standing in enumerate(standings):
        if standing.ready:
            chosen = place
            behind = standings[place + 1 : place + 2]
            if behind and behind[0].waiting < share * given[place]:
                break
    return chosen


def last_in_pipeline(standings: Sequence[Standing]) -> int | None:
    """Pull records towards the exit: the last operator that is ready.

    >>> last_in_pipeline([Standing(True), Standing(True), Standing(False)])
    1
    """
    return max((place for place, one in enumerate(standings) if one.ready), default=None)


def estimated_time(standings: Sequence[Standing]) -> int | None:
    """The longest time for a worklist, had its operator one worker more; unknown costs first.

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
    """The bottleneck: the operator that got through the fewest records in the current window.

    What it did, and will have done when those at it have ended their time slice (seconds), is told
    in records of the whole chain: its records divided by how many reach it for each that enters.
    (The selectivity of the operator itself does not count: one that gives nothing is not done.)
    Among equals, and among those whose cost is unknown, the last one.

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
        raise SettingError(f"there is no schedule {name!r}", hint=f"one of {', '.join(known)}")
    return known[name]


def _reaching(standings: Sequence[Standing]) -> list[float]:
    """Records that reach each operator, and the exit, for one that enters the chain."""
    reaching = [1.0]
    for standing in standings:
        reaching.append(reaching[-1] * max(standing.selectivity, LEAST_SELECTIVITY))
    return reaching
