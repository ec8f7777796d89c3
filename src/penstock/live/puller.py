"""The thread of a source: polls when it is allowed to, and passes on the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.live.sources.source import LiveReader, Polled

_WAIT_MS = 100.0
"""Milliseconds that one poll waits for a row. The end of a run may wait as long for a poll."""


class Pulled(NamedTuple):
    """The result of one poll of a source."""

    source: int
    polled: list[Polled]
    ended: bool
    """Whether the source has ended."""


class PullFailed(NamedTuple):
    """An error while reading a source."""

    source: int
    error: Exception


class Puller:
    """Polls one source in its own thread. Each `allow` makes it poll until it has rows, once. The consumer of
    the rows decides when to call it again, so that backpressure reaches the source."""

    def __init__(
        self,
        source: int,
        open: Callable[[], LiveReader],
        put: Callable[[Pulled | PullFailed], None],
    ) -> None:
        """`open` makes the reader, and is called in the puller's own thread."""
        self._source, self._open, self._put = source, open, put
        self._allowed: SimpleQueue[int] = SimpleQueue()
        self._done: Mapping[str, Any] | None = None
        self._left = threading.Event()
        self._reader: LiveReader | None = None
        self._thread = threading.Thread(target=self._run, name=f"source-{source}", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> int:
        """Number of rows that the source has and that were not read, as far as is known."""
        reader = self._reader
        return 0 if reader is None else reader.behind()

    def allow(self, most_rows: int) -> None:
        """Allow one poll, for about `most_rows` rows at most."""
        self._allowed.put(most_rows)

    def commit(self, positions: Mapping[str, Any]) -> None:
        """Tell the source, before its next poll, that rows before these positions are not needed again."""
        self._done = positions

    def close(self) -> None:
        """End the thread, once its current poll is over."""
        self._left.set()
        self._allowed.put(0)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            reader = self._reader = self._open()
            try:
                self._pull(reader)
            finally:
                self._reader = None
                reader.close()
        except Exception as failed:
            self._put(PullFailed(self._source, failed))

    def _pull(self, reader: LiveReader) -> None:
        while True:
            most_rows = self._allowed.get()
            polled: list[Polled] = []
            while not (polled or reader.ended or self._left.is_set()):
                done, self._done = self._done, None
                if done is not None:
                    reader.commit(done)
                polled = reader.poll(_WAIT_MS, most_rows)
            if self._left.is_set():
                return
            self._put(Pulled(self._source, polled, reader.ended))
            if reader.ended:
                return


def as_error(failed: Exception) -> PenstockError:
    """The error as one that can be sent to the driver."""
    if isinstance(failed, PenstockError):
        return failed
    return PenstockError(f"a courier failed with {type(failed).__name__}: {failed}")
