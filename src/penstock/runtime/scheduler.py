"""Hands out operators to workers, and keeps account of their work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.runtime.schedules import Schedule, Standing
from penstock.runtime.stages import Exit, Stage

_WINDOW_SLICES = 50
"""Time slices over which throughput is compared."""

_KEPT = 0.8
"""Weight of what was known of costs and selectivities when something new is learnt."""


@dataclass(frozen=True)
class Meter:
    """What one operator has done."""

    name: str
    records_in: int
    records_out: int
    cost: float
    """Seconds of work for a record, of late; 0 while unknown."""
    selectivity: float
    """Records out for a record in, of late."""
    worked: float
    """Seconds of work."""
    waiting: int
    """Pieces in the worklist."""


class Turn(NamedTuple):
    """What a worker is to do."""

    stage: Stage
    budget: float
    """Records to take; at least one piece is taken."""
    more: bool
    """Whether there is something to do for another worker."""


class _Account:
    """The work of one operator. Touched under the scheduler's lock."""

    def __init__(self) -> None:
        self.workers = 0
        self.pieces = 0
        self.records = 0.0
        self.seconds = 0.0
        self.worked = 0.0
        """In this window."""
        self.cost = 0.0
        self.selectivity = 1.0
        self.rolled = (0.0, 0.0)
        """Records in and out at the end of the last window."""

    @property
    def piece_size(self) -> float:
        return self.records / self.pieces if self.pieces else 1.0


class Scheduler:
    """Decides who works on what. Its lock is held for some microseconds at the borders of turns only."""

    def __init__(
        self,
        stages: Sequence[Stage],
        exit: Exit,
        schedule: Schedule,
        slice: float,
        clock: Callable[[], float],
    ) -> None:
        self._stages, self._exit, self._schedule = tuple(stages), exit, schedule
        self._slice, self._clock = slice, clock
        self._accounts = [_Account() for _ in stages]
        self._lock = threading.Lock()
        self._window_end = clock()

    def begin(self) -> Turn | None:
        """A turn for the calling worker; None if there is nothing to do."""
        with self._lock:
            ready = [*self._open()]
            choices = sum(ready)
            if not choices:
                return None
            place = ready.index(True) if choices == 1 else self._choose(ready)
            account = self._accounts[place]
            account.workers += 1
            stage = self._stages[place]
            more = choices > 1 or (len(stage.worklist) > 1 and account.workers < stage.degree)
            return Turn(stage, self._slice / account.cost if account.cost else 1, more)

    def end(self, turn: Turn, pieces: int, records: float, seconds: float) -> None:
        """The turn is over; notes the seconds that it took."""
        with self._lock:
            account = self._accounts[turn.stage.place]
            account.workers -= 1
            account.pieces += pieces
            account.records += records
            account.seconds += seconds
            account.worked += seconds
            if records:
                cost = seconds / records
                known = account.cost or cost
                account.cost = _KEPT * known + (1 - _KEPT) * cost

    def ready(self) -> bool:
        """Whether there is something to do."""
        return any(self._open())

    def _open(self) -> Iterator[bool]:
        """Whether one more worker would find something to do, for each operator."""
        for stage, account in zip(self._stages, self._accounts, strict=True):
            yield account.workers < stage.degree and stage.ready()

    def meters(self) -> tuple[Meter, ...]:
        """What was done so far. Exact when nothing is under way."""
        with self._lock:
            records = [round(account.records) for account in self._accounts]
            given = [*records[1:], self._exit.records.load()]
            return tuple(
                Meter(
                    stage.operator.name,
                    came,
                    went,
                    account.cost,
                    account.selectivity,
                    account.seconds,
                    len(stage.worklist),
                )
                for stage, account, came, went in zip(
                    self._stages, self._accounts, records, given, strict=True
                )
            )

    def _choose(self, ready: list[bool]) -> int:
        now = self._clock()
        if now >= self._window_end:
            self._roll()
            self._window_end = now + _WINDOW_SLICES * self._slice
        standings = [
            Standing(
                is_ready,
                len(stage.worklist) * account.piece_size,
                account.cost,
                account.selectivity,
                account.workers,
                account.worked,
            )
            for is_ready, stage, account in zip(ready, self._stages, self._accounts, strict=True)
        ]
        chosen = self._schedule(standings)
        return ready.index(True) if chosen is None else chosen

    def _roll(self) -> None:
        """Begin a window: forget what was worked, and learn the selectivities of the last one."""
        for place, account in enumerate(self._accounts):
            account.worked = 0.0
            if place + 1 < len(self._accounts) and not self._accounts[place + 1].pieces:
                # how many records wait behind it cannot be told before one piece was worked on
                continue
            came, went = account.records, self._given(place)
            before_came, before_went = account.rolled
            if came > before_came:
                learnt = (went - before_went) / (came - before_came)
                first = before_came == 0
                account.selectivity = (
                    learnt if first else _KEPT * account.selectivity + (1 - _KEPT) * learnt
                )
            account.rolled = (came, went)

    def _given(self, place: int) -> float:
        """Records that an operator has given: what was worked on behind it, and what waits there."""
        if place + 1 == len(self._stages):
            return self._exit.records.load()
        behind, account = self._stages[place + 1], self._accounts[place + 1]
        return account.records + len(behind.worklist) * account.piece_size
