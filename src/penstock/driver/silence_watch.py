"""A thread that counts how long each of several others has been silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from penstock.settings import Settings
from penstock.wire.silence import Silences

K = TypeVar("K", bound=Hashable)


class SilenceWatch(Generic[K]):
    """Looks at every heartbeat's time who was heard since, and tells who was silent for
    `Settings.host_lost_ms`.

    `heard` gives whoever should be heard, with a mark that changes when it is; `on_silent` gets one that
    was not, and its milliseconds of silence, at every look until nobody counts on it any more.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        clock_ms: Callable[[], float],
        heard: Callable[[], Mapping[K, object]],
        on_silent: Callable[[K, float], None],
    ) -> None:
        self._settings, self._clock_ms = settings, clock_ms
        self._heard, self._on_silent = heard, on_silent
        self._silences = Silences[K](settings.heartbeat_ms)
        self.silent: dict[K, float] = {}
        """Milliseconds of silence of each, at the last look."""
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self) -> None:
        """Begin to watch, unless it has begun."""
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._settings.heartbeat_ms / 1000):
            self.silent = self._silences.tick(self._clock_ms(), self._heard())
            for one, silent_ms in self.silent.items():
                if silent_ms > self._settings.host_lost_ms:
                    self._on_silent(one, silent_ms)
