"""What an epoch costs however little it brings."""

from __future__ import annotations

from collections import deque
from statistics import median

_EPOCHS = 31
"""So many epochs are looked back on: a treatment, or a pause of the machine, spoils a few of them."""


class EpochCost:
    """The fixed part of an epoch: what is left of its length without the hosts' useful time.

    Of the pause between two epochs only the shortest counts, since a query also waits for rows.

    >>> cost = EpochCost()
    >>> cost.note(started_ms=0, done_ms=300, useful_ms=100)
    >>> cost.note(started_ms=320, done_ms=560, useful_ms=50)
    >>> cost.ms
    215.0
    """

    def __init__(self) -> None:
        self._fixed: deque[float] = deque(maxlen=_EPOCHS)
        self._pauses: deque[float] = deque(maxlen=_EPOCHS)
        self._done_ms: float | None = None

    def skip(self, done_ms: float) -> None:
        """An epoch is done that says nothing of it: with functions beside hosts, what an epoch takes
        is not the sum of its parts. Taken for a cost, it would make room for longer epochs."""
        self._done_ms = done_ms

    def note(self, started_ms: float, done_ms: float, useful_ms: float) -> None:
        """An epoch is done, in which the hosts of each step, the slowest of them, worked so long."""
        if self._done_ms is not None:
            self._pauses.append(max(0.0, started_ms - self._done_ms))
        self._done_ms = done_ms
        self._fixed.append(max(1.0, done_ms - started_ms - useful_ms))

    @property
    def ms(self) -> float:
        """0 before the first epoch."""
        return median(self._fixed) + min(self._pauses, default=0.0) if self._fixed else 0.0
