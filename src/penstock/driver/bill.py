"""The running cost of a query."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.control.money import HostPrice, Money, Spending


class Bill:
    """Adds up the cost of one query's hosts and burst workers. Safe to use from any thread.

    >>> hosts, times = [2], iter([0.0, 10_000.0])
    >>> bill = Bill(HostPrice(per_hour=3.6), lambda: hosts[0], lambda: 0.25, lambda: next(times))
    >>> bill.money
    Money(hosts=0.0, functions=0.25)
    >>> bill.money
    Money(hosts=0.02, functions=0.25)
    """

    def __init__(
        self,
        price: HostPrice,
        hosts: Callable[[], int],
        workers: Callable[[], float],
        clock_ms: Callable[[], float],
    ) -> None:
        """`hosts` returns the number of cores that hosts have now, `workers` the dollars that burst workers
        have cost so far."""
        self._spending = Spending(price)
        self._hosts, self._workers, self._clock_ms = hosts, workers, clock_ms
        self._lock = threading.Lock()
        self._ended = False

    def note(self) -> None:
        """Count the hosts that there are now. Call this whenever hosts may have started or ended."""
        with self._lock:
            if not self._ended:
                self._spending.note(self._clock_ms(), self._hosts(), self._workers())

    @property
    def money(self) -> Money:
        """Dollars spent so far."""
        self.note()
        return self._spending.money

    def end(self) -> None:
        """Stop counting: hosts and burst workers are released."""
        self.note()
        self._ended = True
