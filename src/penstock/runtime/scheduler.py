"""The scheduler: it assigns operators to workers, and measures their work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.runtime.schedules import Schedule, Standing
from penstock.runtime.stages import Exit, Stage

_WINDOW_SLICES = 50
"""Length, in time slices, of the window over which throughput is compared."""

_KEPT = 0.8
"""Weight of the old value when costs and selectivities are smoothed."""


@dataclass(frozen=True)
class Meter:
    """Measurements of one operator."""

    name: str
    records_in: int
    records_out: int
    cost: float
    """Recent seconds of work per record; 0 while unknown."""
    selectivity: float
    """Recent number of output records per input record."""
    worked: float
    """Seconds of work in total."""
    waiting: int
    """Number of pieces in the worklist."""


class Turn(NamedTuple):
    """An assignment for a worker."""

    stage: Stage
    budget: float
    """Number of records to process; at least one piece is processed."""
    more: bool
    """Whether there is work for another worker."""


class _Account:
    """The work of one operator. Accessed under the scheduler's lock."""

    def __init__(self) -> None:
        self.workers = 0
        self.pieces = 0
        self.records = 0.0
        self.seconds = 0.0
        self.worked = 0.0
        """Seconds of work in this window."""
        self.cost = 0.0
        self.selectivity = 1.0
        self.rolled = (0.0, 0.0)
        """Input and output records up to the end of the last window."""

    @property
    def piece_size(self) -> float:
        return self.records / self.pieces if self.pieces else 1.0


class Scheduler:
    """Assigns operators to workers. Its lock is held for some microseconds, only between turns."""

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
        """Record the work of a finished turn."""
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
        """Whether there is work for one more worker."""
        return any(self._open())

    def _open(self) -> Iterator[bool]:
        """For each operator, whether one more worker would find work."""
        for stage, account in zip(self._stages, self._accounts, strict=True):
            yield account.workers < stage.degree and stage.ready()

    def meters(self) -> tuple[Meter, ...]:
        """Measurements of all operators. Exact while no items are in the chain."""
        with self._lock:
            records = [round(account.records) for account in self._accounts]
            outputs = [*records[1:], self._exit.records.load()]
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
                    self._stages, self._accounts, records, outputs, strict=True
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
        """Begin a window: reset the work of the last one, and update selectivities from it."""
        for place, account in enumerate(self._accounts):
            account.worked = 0.0
            if place + 1 < len(self._accounts) and not self._accounts[place + 1].pieces:
                # the number of records waiting behind it is unknown until one piece was processed
                continue
            came, went = account.records, self._records_out(place)
            before_came, before_went = account.rolled
            if came > before_came:
                recent = (went - before_went) / (came - before_came)
                first = before_came == 0
                account.selectivity = (
                    recent if first else _KEPT * account.selectivity + (1 - _KEPT) * recent
                )
            account.rolled = (came, went)

    def _records_out(self, place: int) -> float:
        """Output records of an operator: those that the next operator has processed, and those waiting
        for it."""
        if place + 1 == len(self._stages):
            return self._exit.records.load()
        behind, account = self._stages[place + 1], self._accounts[place + 1]
        return account.records + len(behind.worklist) * account.piece_size
