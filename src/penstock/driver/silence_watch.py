"""A thread that finds members which have stopped sending heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from penstock.settings import Settings
from penstock.wire.silence import Silences

K = TypeVar("K", bound=Hashable)


class SilenceWatch(Generic[K]):
    """Checks every `Settings.heartbeat_ms` which members have been silent for `Settings.host_lost_ms`.

    `heard` returns the members to watch, each with a value that changes with every heartbeat. `on_silent` is
    called at each check with a silent member and its silence in milliseconds.
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
        """Silence of each member at the last check, in milliseconds."""
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self) -> None:
        """Start the thread, unless it runs already."""
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
            for member, silent_ms in self.silent.items():
                if silent_ms > self._settings.host_lost_ms:
                    self._on_silent(member, silent_ms)
