"""What the work of a benched operator costs: time asleep, or time that really computes.

Asleep, a worker needs no core: so sixteen of them work as on sixteen cores, whatever the machine has.
Computing is done by kernels that do not hold the interpreter's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

LEAST_S = 200e-6
"""Shorter sleeps are put off and slept together: one takes 60 to 130 microseconds longer than asked."""
CREDIT_S = 250e-6
"""At most so much of a sleep that took too long counts for the next: what a timer may be late,
but not what a worker waited for a lock."""

SIDE = 32
"""Rows and columns of the matrices; small enough that no library uses threads of its own on them."""


class Cost(Protocol):
    """What a worker does for some records."""

    def spend(self, records: int, values: Any) -> Any:
        """Take the time for so many records; gives the values that go on."""
        ...


class _Debt(threading.local):
    seconds = 0.0


class Asleep:
    """So many microseconds a record, slept. Values go on as they are.

    What is too short to sleep, and what a sleep took too long, is kept for the next; by thread.

    >>> slept = []
    >>> cost = Asleep(150, clock=lambda: sum(slept), sleep=slept.append)
    >>> [cost.spend(1, None) for _ in range(4)]
    [None, None, None, None]
    >>> [round(seconds * 1e6) for seconds in slept]
    [300, 300]
    """

    def __init__(
        self,
        us: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = us * 1e-6
        self._clock, self._sleep = clock, sleep
        self._debt = _Debt()

    def spend(self, records: int, values: Any) -> Any:
        owed = self._debt.seconds + self._seconds * records
        if owed >= LEAST_S:
            began = self._clock()
            self._sleep(owed)
            owed = max(-CREDIT_S, owed - (self._clock() - began))
        self._debt.seconds = owed
        return values


class Matrices:
    """Every record is a small matrix, multiplied so many times by another one.

    >>> turned = Matrices(times=2, seed=1).spend(3, matrices(3, seed=2))
    >>> turned.shape
    (3, 32, 32)
    """

    def __init__(self, times: int, seed: int = 0) -> None:
        # A rotation: whatever is multiplied by it, however often, keeps its size.
        self._turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((SIDE, SIDE)))
        self._times = times

    def spend(self, records: int, values: Any) -> Any:
        # Two buffers in turn: new memory for each product would be most of the work.
        given, spare = np.matmul(values, self._turn), np.empty_like(values)
        for _ in range(self._times - 1):
            given, spare = np.matmul(given, self._turn, out=spare), given
        return given


def matrices(records: int, seed: int = 0) -> Any:
    """Records for `Matrices`."""
    return np.random.default_rng(seed).standard_normal((records, SIDE, SIDE))
