"""What a courier does about more rows than hosts can take, in the very epoch that brings them.

A decision takes at least one epoch: what is seen in one changes the next. By then a burst has made
the one under way long, and the next one longer. So the plan of an epoch also says how much hosts can
take of it in time; a courier that finds more in its task lets burst workers have the rest at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    @property
    def most(self) -> float:
        """Rows from which on the share stays as it is."""
        return max(self.limit, _MOST * self.room)

    def of(self, partition: int, partitions: int) -> Reflex:
        """What holds for the task of one partition."""
        even = len(self.parts) != partitions
        part = 1 / partitions if even else self.parts[partition]
        few = max(1, math.floor(self.workers * part))  # all together no more than there may be
        return Reflex(part * self.limit, part * self.room, self.each, self.merge, few)

    def share(self, rows: float) -> float:
        """The part of the rows that burst workers get. Never less for more rows."""
        if rows <= self.limit:
            return 0.0
        rows = max(1.0, min(rows, self.most))
        wanted = (rows - self.room) / (rows * (1.0 - self.merge))
        # With few burst workers hosts do what they can for as long as those take.
        together = 1.0 / (self.room / (self.workers * self.each) + 1.0 - self.merge)
        return max(0.0, min(1.0, together, wanted))

    def at_once(self, carried: int) -> int:
        """How many burst workers share the rows carried."""
        return max(1, min(self.workers, math.ceil(carried / self.each)))
