"""Offloading by couriers, at once, of rows beyond what hosts can process in time.

A decision takes at least one epoch: measurements of one epoch change the next. By then a burst has
made the current epoch long, and the next one longer. So the plan of an epoch also says how many rows
hosts can process in time. A courier that finds more in its task sends the rest to burst workers at once.

A live courier knows how many rows per second hosts can process, and how many they have not applied yet. From
each chunk it sends burst workers the rows that hosts could not process in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_LEAST = 0.25
"""Fraction of `within_ms` that hosts always have for a chunk, even if its rows are late already."""
_MOST = 32.0
"""Multiple of `room` above which the share hardly changes, so that couriers stop counting rows there."""


@dataclass(frozen=True)
class Reflex:
    """The rule by which couriers offload rows without waiting for a decision: when, and how many.

    All counts are of rows at the point where they would leave for burst workers. They are totals over all
    tasks; `of` returns the rule for one task.

    >>> reflex = Reflex(limit=800.0, room=600.0, each=300.0, merge=0.1, workers=8)
    >>> reflex.share(800), round(reflex.share(2000), 2), reflex.at_once(2600)
    (0.0, 0.78, 8)
    >>> half = Reflex(800.0, 600.0, 300.0, 0.1, 8, parts=(0.5, 0.25, 0.25)).of(0, partitions=3)
    >>> half.limit, half.room, half.workers
    (400.0, 300.0, 4)
    """

    limit: float
    """Rows per epoch above which couriers offload the rest."""
    room: float
    """Work per epoch that hosts keep when there are more rows than `limit`, counted in rows."""
    each: float
    """Rows per epoch for one burst worker."""
    merge: float
    """Cost of an offloaded row for its host, as a fraction of a row's full cost."""
    workers: int
    """Maximum number of concurrent burst workers."""
    parts: tuple[float, ...] = ()
    """Usual share of all rows in each partition; empty: equal shares."""
    within_ms: float | None = None
    """Milliseconds from a row's arrival within which hosts should have processed it, in a live flow. `limit`,
    `room` and `each` are then rows per second. None: they are rows per epoch."""

    @property
    def most(self) -> float:
        """Number of rows above which the share no longer changes."""
        return max(self.limit, _MOST * self.room)

    def of(self, partition: int, partitions: int) -> Reflex:
        """The rule for the task of one partition."""
        even = len(self.parts) != partitions
        part = 1 / partitions if even else self.parts[partition]
        # rounded down, to keep the total within the maximum
        workers = max(1, math.floor(self.workers * part))
        limit, room = part * self.limit, part * self.room
        return replace(self, limit=limit, room=room, workers=workers, parts=())

    def share(self, rows: float) -> float:
        """Share of the rows that goes to burst workers. It never falls as rows increase."""
        if rows <= self.limit:
            return 0.0
        rows = max(1.0, min(rows, self.most))
        return self._share(rows, self.room)

    def surplus(self, rows: int, ahead: int, rate: float | None, waited_s: float) -> float:
        """Share of a live chunk's rows that goes to burst workers. It never falls as rows increase.

        `ahead` is the number of rows sent before that hosts have not applied yet. `rate` is the rows per
        second that hosts apply while rows wait; None: no rows waited lately, and `limit` is used. The oldest
        row has waited for `waited_s` seconds.

        >>> reflex = Reflex(1000.0, 800.0, 500.0, 0.1, workers=8, within_ms=100.0)
        >>> [round(reflex.surplus(rows, 0, None, 0.0), 2) for rows in (100, 101, 200, 1000)]
        [0.0, 0.23, 0.67, 0.91]
        >>> reflex.surplus(60, 0, None, 0.05), reflex.surplus(60, 50, None, 0.0)
        (0.37037037037037035, 0.37037037037037035)
        """
        if self.within_ms is None or not rows:
            return 0.0
        within_s = self.within_ms / 1000
        left_s = max(within_s - waited_s, _LEAST * within_s)
        can = (self.limit if rate is None else rate) * left_s - ahead
        if rows <= can:
            return 0.0
        return self._share(rows, max(can, 0.0) * min(self.room / self.limit, 1.0))

    def _share(self, rows: float, room: float) -> float:
        """Share that goes to burst workers when there are more rows than hosts have room for."""
        wanted = (rows - room) / (rows * (1.0 - self.merge))
        # With few burst workers, hosts work for as long as the burst workers need.
        together = 1.0 / (self.room / (self.workers * self.each) + 1.0 - self.merge)
        return max(0.0, min(1.0, together, wanted))

    def at_once(self, carried: int) -> int:
        """Number of burst workers for `carried` offloaded rows."""
        return max(1, min(self.workers, math.ceil(carried / self.each)))
