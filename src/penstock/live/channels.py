"""A courier's lasting streams to hosts, over Flight. A stream has no deadline: it lasts for a run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pyarrow as pa

from penstock import codec, errors
from penstock.errors import HostLostError, PenstockError
from penstock.live.junction import Lane
from penstock.wire.flight import Endpoint
from penstock.wire.live import Back, StreamHeader, pack


class Answered(NamedTuple):
    """What came from a host."""

    stream: HostStream
    batch: pa.RecordBatch | None
    back: Back | None


class Ended(NamedTuple):
    """A stream has ended: because both sides are done with it, or because of an error."""

    stream: HostStream
    error: PenstockError | None


class Unapplied:
    """Chunks that were sent to a host, and that it has not applied.

    >>> chunks = Unapplied()
    >>> for number in range(5):
    ...     chunks.add(number)
    >>> list(chunks.applied(0, done=(2, 3))), list(chunks.applied(4))
    ([0, 2, 3], [1, 4])
    """

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._ahead: set[int] = set()
        """Chunks among them that were applied before older ones."""

    def add(self, number: int) -> None:
        """A chunk is sent: the newest."""
        self._numbers.append(number)

    def applied(self, took: int | None, done: Iterable[int] = ()) -> Iterator[int]:
        """The host has applied all up to a number, and these later ones; gives those that were not yet."""
        numbers = self._numbers
        while took is not None and numbers and numbers[0] <= took:
            number = numbers.popleft()
            if number not in self._ahead:
                yield number
            self._ahead.discard(number)
        for number in done:
            self._ahead.add(number)
            yield number


class HostStream:
    """One courier's stream to one host of a step. One thread sends; what the host answers is handed, in its
    order, to `put`, by a thread of the stream's own."""

    def __init__(
        self,
        host: str,
        endpoint: Endpoint,
        header: StreamHeader,
        lane: Lane,
        put: Callable[[Answered | Ended], None],
        timeout_ms: int,
    ) -> None:
        """Waits up to `timeout_ms` for a first answer of a host that was not connected yet."""
        self.host, self.step, self.lane = host, header.step, lane
        self._endpoint, self._put = endpoint, put
        self._schema: pa.Schema | None = None
        """The schema of batches that need not be packed: that of the first one."""
        self._done = False
        self.unapplied = Unapplied()
        """The chunks that the host has not applied, for whoever sends."""
        self.epoch = 0
        """The epoch of what the host answers next, for whoever takes it."""
        self.watermark_ms: int | None = None
        self.final = False
        """The host has given all that it had to give."""
        endpoint.greet(timeout_ms)
        self._conversation = ExitStack()
        self._writer, self._reader = self._conversation.enter_context(
            endpoint.exchange(codec.encode(header), None)
        )
        name = f"stream-{header.step}-{host}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def send(self, metadata: bytes, batch: pa.RecordBatch | None = None) -> None:
        """Send a frame: metadata alone, or beside a batch."""
        try:
            if batch is None:
                self._writer.write_metadata(metadata)
                return
            if self._schema is None:
                self._writer.begin(batch.schema)
                self._schema = batch.schema
            if batch.schema.equals(self._schema):
                self._writer.write_with_metadata(batch, metadata)
            else:
                self._writer.write_metadata(pack(metadata, batch))
        except (pa.ArrowException, OSError) as broken:
            raise self._lost(broken) from broken

    def finish(self) -> None:
        """Say that nothing more will be sent: the host answers what it has, and ends the stream."""
        self._done = True
        try:
            self._writer.done_writing()
        except (pa.ArrowException, OSError) as broken:
            raise self._lost(broken) from broken

    def _lost(self, broken: Exception) -> PenstockError:
        """What it means that nothing more can be sent: what the host told, or that it is lost. Arrow calls
        a stream that the host has closed invalid."""
        told = errors.find(str(broken))
        return told or HostLostError(
            f"the stream to host {self.host} broke: {broken}", location=self._endpoint.location
        )

    def cancel(self) -> None:
        """Break the stream off; may be called by any thread."""
        self._done = True
        self._reader.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the stream's thread to end."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        error: PenstockError | None = None
        try:
            with self._conversation, self._endpoint.hearing_errors():
                for chunk in self._reader:
                    told = chunk.app_metadata
                    back = None if told is None else codec.decode(told.to_pybytes(), Back)
                    self._put(Answered(self, chunk.data, back))
        except PenstockError as failed:
            error = failed
        except Exception as failed:
            why = str(failed).split("\n")[0]
            error = PenstockError(f"the stream of host {self.host} failed: {why}")
        with suppress(Exception):  # of a stream that broke, too: else Arrow complains on stderr
            self._writer.close()
        if error is None and not self._done:
            error = HostLostError(
                f"host {self.host} has ended its stream", location=self._endpoint.location
            )
        self._put(Ended(self, None if self._done else error))
