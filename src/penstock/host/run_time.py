"""Time in a live run on one host: the watermarks of couriers, and the due times of entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.host.holdings import Holdings
from penstock.host.residence import Need, NeedDue
from penstock.host.round_work import RoundWork
from penstock.operators.operator import EpochTime
from penstock.wire.live import Time

FIRE_EVERY_MS = 10
"""Milliseconds between two rounds that fire by the clock. A new watermark may fire sooner."""
_LOOK_EVERY_MS = 2
"""Milliseconds before the next check whether due entries can fire."""
_NEVER_DUE = 1 << 63
"""Time later than any due time, and than the limit used when the input has ended."""


class RunTime:
    """The current watermark of a run, watermarks still to come, and the due times of entries.

    The watermark never overtakes rows that are held, or entries elsewhere that may be due. State that must
    be fetched first is added to `needs`.
    """

    def __init__(
        self, holdings: Holdings, work: RoundWork, now_ms: Callable[[], int], needs: list[Need]
    ) -> None:
        self._holdings, self._work = holdings, work
        self._clock, self._needs, self._now = now_ms, needs, 0
        self.watermark: int | None = None
        """Current watermark in milliseconds; None before the first. Entries due by then have fired."""
        self.ended = False
        """Whether all input has ended, and everything has fired."""
        self._heard: deque[tuple[int, int]] = deque()
        """Watermarks not reached yet: (serial number of the next chunk to be held then, watermark)."""
        self._asked = False
        """Whether a request for due entries elsewhere is open."""
        self._floor: dict[str, int] = {}
        """Lower bound of all due times here, by column; a missing column means that it is unknown."""
        self._fired_ms = -FIRE_EVERY_MS

    @property
    def is_behind(self) -> bool:
        """Whether couriers have sent watermarks that time has not reached yet."""
        return bool(self._heard)

    def now(self, epoch: int) -> EpochTime:
        """Return the time for a round of this epoch."""
        return EpochTime(epoch, self._now, self.watermark, self.ended)

    def go_on(self) -> None:
        """Advance to the clock's time. Time never goes back."""
        self._now = max(self._now, self._clock())

    def fetched(self) -> None:
        """Note that the request for due entries is finished, with or without success."""
        self._asked = False

    def hear(self, times: Sequence[Time], before: int, epoch: int) -> bool:
        """Note the times of all couriers, and return whether they make something due.

        `before` is the serial number of the next chunk to be held: chunks with lower ones come first.
        """
        counting = [t.watermark_ms for t in times if not t.idle and not t.final]
        if not counting:
            return bool(times) and all(t.final for t in times)
        known = [watermark for watermark in counting if watermark is not None]
        newest = self._heard[-1][1] if self._heard else self.watermark
        if len(known) < len(counting) or (newest is not None and min(known) <= newest):
            return False
        self._heard.append((before, min(known)))
        return self._is_due(replace(self.now(epoch), watermark_ms=min(known)))

    def passes(self, first_held: int, epoch: int) -> bool:
        """Advance the watermark, but not past the first held chunk. Return whether something falls due."""
        if not self._work.due_columns and not self._heard:
            return False
        least, self._holdings.least_due = self._holdings.least_due, {}
        self._floor = {} if least is None else _lower(self._floor, least)
        target, passed = self.watermark, 0
        for before, watermark in self._heard:
            if before > first_held:
                break
            target, passed = watermark, passed + 1
        time = replace(self.now(epoch), watermark_ms=target)
        if not self.has_all_due(time):
            return False
        for _ in range(passed):
            self._heard.popleft()
        moved = target != self.watermark
        self.watermark = target
        paced = moved or self._now >= self._fired_ms + FIRE_EVERY_MS
        return paced and self._is_due(time)

    def has_all_due(self, time: EpochTime) -> bool:
        """Tell whether no entry elsewhere can be due then; if one can, request it."""
        need = self._holdings.need_due(self._work.due(time))
        if isinstance(need, NeedDue) and not self._asked:
            self._needs.append(need)
            self._asked = True
        return need is None

    def has_fired(self, epoch: int) -> bool:
        """Tell whether everything that is due has fired, here and elsewhere."""
        time = self.now(epoch)
        return self.has_all_due(time) and not self._is_due(time)

    def _is_due(self, time: EpochTime) -> bool:
        limits = self._work.due(time)
        return any(self._floor.get(name, 0) <= limit for name, limit in limits.items())

    def note_fired(self, time: EpochTime) -> None:
        """Note that all due entries have fired, and when the next one falls due."""
        for name, limit in self._work.due(time).items():
            self._floor[name] = self._work.least(name, limit) or _NEVER_DUE
        self._fired_ms = self._now

    def note_due(self, due: Mapping[str, int]) -> None:
        """Note the earliest due times of entries that were touched."""
        for name, least in due.items():
            self._floor[name] = min(least, self._floor.get(name, 0))

    def wakes_in_ms(self, epoch: int) -> int | None:
        """Return the milliseconds until something falls due; None if nothing will without new input."""
        if not self._work.due_columns or self._asked:
            return None
        now = max(self._now, self._clock())
        times = (replace(self.now(epoch), now_ms=at) for at in (now, now + 1000))
        soon, later = map(self._work.due, times)
        gaps = [
            max(0, self._floor.get(name, 0) - limit)
            for name, limit in soon.items()
            if later[name] > limit or self._floor.get(name, 0) <= limit
            if self._floor.get(name, 0) != _NEVER_DUE
        ]
        if not gaps:
            return None
        # Entries that are due and have not fired wait for their turn, or for state.
        return max(min(gaps), self._fired_ms + FIRE_EVERY_MS - now, _LOOK_EVERY_MS)


def _lower(floor: dict[str, int], later: dict[str, int]) -> dict[str, int]:
    return {name: min(least, later.get(name, least)) for name, least in floor.items()}
