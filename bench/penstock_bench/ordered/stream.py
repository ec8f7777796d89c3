"""The runtime as a stream: items are submitted one by one, and all workers are threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import SettingError
from penstock.runtime import Runtime


class Stream(Runtime):
    """A runtime that works while the trial feeds it. Used by one thread at a time."""

    _is_open = False

    def run(
        self, items: Iterable[Any], ahead: Mapping[int, Sequence[Any]] | None = None
    ) -> list[Any]:
        """As `Runtime.run`, while there is no stream."""
        self._check(is_open=False)
        return super().run(items, ahead)

    def open(self, sink: Callable[[Any], None]) -> None:
        """Begin a stream: all workers are threads, and `sink` gets outputs in serial order."""
        self._check(is_open=False)
        self._chain.exit.sink = sink
        self._is_open = True
        self._staff(self._workers)

    def submit(self, item: Any) -> None:
        """Feed one item to the stream; waits while the first operator has too many waiting."""
        self._check(is_open=True)
        chain = self._chain
        if not chain.has_room():
            self._feeding = True
            self._await(lambda: chain.halt.on or chain.has_room(), watch=True)
            self._feeding = False
        if chain.halt.on:
            self._end()
        chain.feed(item)
        if self._crew.idle:
            self._crew.wake()

    def finish(self) -> None:
        """Wait until everything submitted has been sent, and end the stream; raises its error."""
        self._check(is_open=True)
        self._await(lambda: self._chain.halt.on or self._complete(), watch=True)
        self._end()

    def stop(self) -> None:
        """End the stream now: what is under way is dropped."""
        self._check(is_open=True)
        self._chain.halt.on = True
        self._is_open = False
        self._settle()
        super().close()

    def close(self) -> None:
        """End the threads, and the stream if there is one."""
        if self._is_open:
            self.stop()
        super().close()

    def _end(self) -> None:
        self._is_open = False
        try:
            self._raise_failure()
        finally:
            super().close()

    def _check(self, *, is_open: bool) -> None:
        if self._is_open != is_open:
            now, hint = ("no", "open it") if is_open else ("an", "finish or stop it")
            raise SettingError(f"the runtime has {now} open stream", hint=hint)
