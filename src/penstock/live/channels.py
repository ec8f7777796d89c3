"""A courier's long-lived streams to hosts, over Flight. A stream has no deadline: it lasts for a run."""

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
    """A reply from a host."""

    stream: HostStream
    batch: pa.RecordBatch | None
    back: Back | None


class Ended(NamedTuple):
    """The end of a stream: both sides are done with it, or it failed."""

    stream: HostStream
    error: PenstockError | None


class Unapplied:
    """Chunks that were sent to a host and that it has not applied yet.

    >>> chunks = Unapplied()
    >>> for number in range(5):
    ...     chunks.add(number)
    >>> list(chunks.applied(0, done=(2, 3))), list(chunks.applied(4))
    ([0, 2, 3], [1, 4])
    """

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._ahead: set[int] = set()
        """Chunks that were applied before older ones."""

    def add(self, number: int) -> None:
        """Add the newest chunk."""
        self._numbers.append(number)

    def applied(self, took: int | None, done: Iterable[int] = ()) -> Iterator[int]:
        """Mark chunks up to `took`, and later ones in `done`, as applied. Yields those that were not yet."""
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
    """One courier's stream to one host of a step. One thread sends. The stream's own thread passes the host's
    replies to `put`, in order."""

    def __init__(
        self,
        host: str,
        endpoint: Endpoint,
        header: StreamHeader,
        lane: Lane,
        put: Callable[[Answered | Ended], None],
        timeout_ms: int,
    ) -> None:
        """Connects. Waits up to `timeout_ms` for the first reply of a host that was not connected before."""
        self.host, self.step, self.lane = host, header.step, lane
        self._endpoint, self._put = endpoint, put
        self._schema: pa.Schema | None = None
        """Schema of the first batch. Batches with another schema are packed into the metadata."""
        self._done = False
        self.unapplied = Unapplied()
        """Chunks that the host has not applied yet. Used by the sending thread."""
        self.epoch = 0
        """Epoch of the host's next reply. Used by the thread that handles replies."""
        self.watermark_ms: int | None = None
        self.final = False
        """Whether the host has sent all its output."""
        endpoint.greet(timeout_ms)
        self._conversation = ExitStack()
        self._writer, self._reader = self._conversation.enter_context(
            endpoint.exchange(codec.encode(header), None)
        )
        name = f"stream-{header.step}-{host}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def send(self, metadata: bytes, batch: pa.RecordBatch | None = None) -> None:
        """Send a frame: metadata, with or without a batch."""
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
        """Close the sending side. The host replies to what it has received, and ends the stream."""
        self._done = True
        try:
            self._writer.done_writing()
        except (pa.ArrowException, OSError) as broken:
            raise self._lost(broken) from broken

    def _lost(self, broken: Exception) -> PenstockError:
        """The error to raise when sending fails: the one that the host reported, or that the host is lost.
        Arrow calls a stream that the host has closed invalid."""
        reported = errors.find(str(broken))
        return reported or HostLostError(
            f"the stream to host {self.host} broke: {broken}", location=self._endpoint.location
        )

    def cancel(self) -> None:
        """Abort the stream. May be called by any thread."""
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
                    metadata = chunk.app_metadata
                    back = None if metadata is None else codec.decode(metadata.to_pybytes(), Back)
                    self._put(Answered(self, chunk.data, back))
        except PenstockError as failed:
            error = failed
        except Exception as failed:
            why = str(failed).split("\n")[0]
            error = PenstockError(f"the stream from host {self.host} failed: {why}")
        with suppress(Exception):  # also after a failure: else Arrow complains on stderr
            self._writer.close()
        if error is None and not self._done:
            error = HostLostError(
                f"host {self.host} closed its stream", location=self._endpoint.location
            )
        self._put(Ended(self, None if self._done else error))
