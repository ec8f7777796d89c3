"""What a courier does about more rows than hosts can take, in the very epoch, or chunk, that brings them.

A decision takes at least one epoch: what is seen in one changes the next. By then a burst has made
the one under way long, and the next one longer. So the plan of an epoch also says how much hosts can
take of it in time; a courier that finds more in its task lets burst workers have the rest at once.

A live courier is told how many rows hosts can take in a second, and sees how many they have not taken yet. It
lets burst workers have what hosts could not be through with in time, of each chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_LEAST = 0.25
"""Part of the time for rows that hosts have in any case: what is late already is theirs too, for so long."""
_MOST = 32.0
"""Times the room. What is beyond that changes the share by little, so nobody waits to know it."""


@dataclass(frozen=True)
class Reflex:
    """When couriers give rows to burst workers although nobody has decided so, and how many.

    All counts are of rows at the place where they would leave for burst workers. They are of all tasks
    together, until `of` has made them those of one task.

    >>> reflex = Reflex(limit=800.0, room=600.0, each=300.0, merge=0.1, workers=8)
    >>> reflex.share(800), round(reflex.share(2000), 2), reflex.at_once(2600)
    (0.0, 0.78, 8)
    >>> half = Reflex(800.0, 600.0, 300.0, 0.1, 8, parts=(0.5, 0.25, 0.25)).of(0, partitions=3)
    >>> half.limit, half.room, half.workers
    (400.0, 300.0, 4)
    """

    limit: float
    """Rows per epoch above which couriers give the rest to burst workers."""
    room: float
    """Rows' worth of work that is left to hosts if there are more."""
    each: float
    """Rows that one burst worker should get."""
    merge: float
    """What a row that goes to burst workers costs its host all the same, in rows."""
    workers: int
    """Burst workers that may be at work at a time."""
    parts: tuple[float, ...] = ()
    """Share of all rows that each partition usually brings; empty: all bring as many."""
    within_ms: float | None = None
    """Milliseconds from a row's arrival within which hosts should be through with it, in a live flow:
    `limit`, `room` and `each` are rows per second then. None: they are rows per epoch."""

    @property
    def most(self) -> float:
        """Rows from which on the share stays as it is."""
        return max(self.limit, _MOST * self.room)

    def of(self, partition: int, partitions: int) -> Reflex:
        """What holds for the task of one partition."""
        even = len(self.parts) != partitions
        part = 1 / partitions if even else self.parts[partition]
        few = max(1, math.floor(self.workers * part))  # all together no more than there may be
        limit, room = part * self.limit, part * self.room
        return replace(self, limit=limit, room=room, workers=few, parts=())

    def share(self, rows: float) -> float:
        """The part of the rows that burst workers get. Never less for more rows."""
        if rows <= self.limit:
            return 0.0
        rows = max(1.0, min(rows, self.most))
        return self._share(rows, self.room)

    def surplus(self, rows: int, ahead: int, rate: float | None, waited_s: float) -> float:
        """The part of a live chunk's rows that burst workers get. Never less for more rows.

        Hosts have not applied the rows `ahead` of it, and apply `rate` a second while some wait; None:
        they have not let any wait of late, and take `limit`. The oldest row has waited for `waited_s`.

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
        """The part that burst workers get of more rows than hosts have room for."""
        wanted = (rows - room) / (rows * (1.0 - self.merge))
        # With few burst workers hosts do what they can for as long as those take.
        together = 1.0 / (self.room / (self.workers * self.each) + 1.0 - self.merge)
        return max(0.0, min(1.0, together, wanted))

    def at_once(self, carried: int) -> int:
        """How many burst workers share the rows carried."""
        return max(1, min(self.workers, math.ceil(carried / self.each)))
