"""What a run costs, told live."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.control.money import HostPrice, Money, Spending


class Bill:
    """Follows the hosts and burst workers of one run. Safe to use from any thread.

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
        """`hosts` tells how many cores hosts have just now, `workers` what those have cost."""
        self._spending = Spending(price)
        self._hosts, self._workers, self._clock_ms = hosts, workers, clock_ms
        self._lock = threading.Lock()
        self._ended = False

    def note(self) -> None:
        """See what there is now. To be called, or `money` asked, when hosts may have come or gone."""
        with self._lock:
            if not self._ended:
                self._spending.note(self._clock_ms(), self._hosts(), self._workers())

    @property
    def money(self) -> Money:
        """Spent by now."""
        self.note()
        return self._spending.money

    def end(self) -> None:
        """Hosts and burst workers are let go: from now on nothing is added."""
        self.note()
        self._ended = True
