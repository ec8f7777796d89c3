"""Whether burst workers hang, as far as one process knows.

    well ──a request missed its deadline, and none was answered since it was sent──► hung
    hung ──a probe was answered──► well

While they hang, no rows wait for them: requests fail at once, and one of them at a time is sent as a probe,
whose answer nobody uses. So burst workers that hang cost one deadline, and not one for each request, task and
epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.offload.backends.backend import Invoker

_PROBE_MS = 10_000
"""Timeout of a probe, in milliseconds."""
_PROBE_EVERY_S = 0.5
"""Least seconds between the starts of two probes."""
_KEPT = 32
"""Most reach texts whose health is kept. The oldest is forgotten first."""


class Health:
    """The health of the burst workers with one reach text. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.hung = False
        self._answered = self._probed = float("-inf")
        """Times of the last answer and of the start of the last probe."""
        self._probing = False

    def answered(self) -> None:
        """Note that a burst worker has answered, whatever it has said."""
        with self._lock:
            self._answered, self.hung = self._clock(), False

    def missed(self, asked: float) -> None:
        """Note that a request of this time has missed its deadline."""
        with self._lock:
            self.hung = self.hung or self._answered < asked

    def probe(self, invoker: Invoker, request: bytes) -> None:
        """Send a request in another thread, unless one is under way or was just sent."""
        with self._lock:
            now = self._clock()
            if self._probing or now - self._probed < _PROBE_EVERY_S:
                return
            self._probing, self._probed = True, now
        threading.Thread(
            target=self._probe, args=(invoker, request), name="penstock-probe", daemon=True
        ).start()

    def _probe(self, invoker: Invoker, request: bytes) -> None:
        try:
            invoker.invoke(request, _PROBE_MS)
            self.answered()
        except Exception:  # the next probe may be answered
            return
        finally:
            with self._lock:
                self._probing = False


_lock = threading.Lock()
_known: dict[str, Health] = {}


def health_at(reach: str) -> Health:
    """What this process knows about the burst workers with this reach text."""
    with _lock:
        if reach not in _known:
            _known[reach] = Health()
            if len(_known) > _KEPT:
                _known.pop(next(iter(_known)))
        return _known[reach]
