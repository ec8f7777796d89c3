"""Burst workers that a platform runs: usage that couriers count, and calls that keep some of them warm.

Couriers invoke such burst workers themselves. They count their own usage and report it to the driver, since
no other process sees all invocations. A backend of your own can use both classes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from penstock.control.money import FunctionPrice
from penstock.errors import SettingError
from penstock.offload.backends.backend import WorkerFailed
from penstock.wire.report import Usage

_WARM_EVERY_S = 240.0
"""Seconds between two warming calls. Platforms usually keep an idle worker for five minutes or more."""
_WARM_HOLD_MS = 200
"""Milliseconds that a warming call keeps its burst worker busy, so that each call gets its own."""
_ANSWER_MS = 30_000
"""Timeout of a call to a burst worker that may have to start first, in milliseconds."""


class UsageMeter:
    """Counts usage until it is taken. Safe to use from several threads.

    >>> meter = UsageMeter()
    >>> meter.count(invocations=2, seconds=0.5)
    >>> meter.taken().invocations, meter.taken().invocations
    (2, 0)
    """

    def __init__(self) -> None:
        self._lock, self._usage = threading.Lock(), Usage()

    def count(self, **more: Any) -> None:
        """Add to the fields of `Usage` with these names."""
        with self._lock:
            self._usage += Usage(**more)

    def taken(self) -> Usage:
        """Usage since the last call."""
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage


class RemoteInvoker(Protocol):
    """An `Invoker` that the driver also uses, to look after burst workers."""

    def touch(self, hold_ms: int, timeout_ms: int) -> str:
        """Keep one burst worker busy for `hold_ms` milliseconds. Returns the mark of its flow. Raises
        `WorkerFailed`."""
        ...

    def taken(self) -> Usage: ...

    def close(self) -> None: ...


class RemoteWorkers:
    """One run's use of burst workers on a platform. See `BurstWorkers`."""

    def __init__(self, reach: str, invoker: RemoteInvoker, price: FunctionPrice) -> None:
        self.reach, self._invoker, self._price = reach, invoker, price
        self._lock = threading.Lock()
        self._noted = Usage()
        self._warm = 0
        self._changed, self._ended = threading.Event(), False
        self._keeper = threading.Thread(target=self._keep_warm, name="penstock-warm", daemon=True)
        self._keeper.start()

    def check(self, mark: str, deploy: Callable[[], SettingError]) -> None:
        """Raise the error of `deploy` if burst workers have another flow than the one with this mark.

        One that does not answer now may answer later. It refuses requests of other flows itself.
        """
        with suppress(WorkerFailed):
            if self._invoker.touch(0, _ANSWER_MS) != mark:
                self.stop()
                raise deploy()

    def warm(self, count: int) -> None:
        """Keep `count` burst workers warm: call that many at once, now and every few minutes."""
        if count != self._warm:
            self._warm = count
            self._changed.set()

    def note(self, usage: Usage) -> None:
        with self._lock:
            self._noted += usage

    def used(self) -> Usage:
        self.note(self._invoker.taken())
        noted = self._noted
        return replace(noted, money=self._price.money(noted.invocations, noted.seconds))

    def stop(self) -> None:
        self._ended = True
        self._changed.set()
        self._keeper.join()
        self._invoker.close()

    def _keep_warm(self) -> None:
        while not self._ended:
            self._changed.wait(_WARM_EVERY_S)
            self._changed.clear()
            if self._warm and not self._ended:
                with ThreadPoolExecutor(self._warm) as threads:
                    list(threads.map(self._touch, range(self._warm)))

    def _touch(self, _: int) -> None:
        with suppress(WorkerFailed):
            self._invoker.touch(_WARM_HOLD_MS, _ANSWER_MS)
