"""The shell around a live run of a host: streams of couriers, and the one thread that works on them.

Flight's threads, one for each stream, only read. They put frames into a queue for the thread that owns the
table. That thread feeds `Rounds`, and writes the answers. It holds the host's lock while it works, and
never while it waits or writes. Fetches, copies for other hosts and the driver's orders take the lock for a
moment.

A run ends when its driver says so, or at the first error. Every courier is told, and the driver decides
what to do next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import HostLostError, PenstockError, ProtocolError, StaleRunError, to_wire
from penstock.faults import point
from penstock.host.fetch import Fetcher
from penstock.host.load import Load
from penstock.host.residence import Need
from penstock.host.rounds import GatheredEpoch, Rounds, Sent, Worked
from penstock.host.trickle import Trickle
from penstock.host.vitals import HostVitals
from penstock.state.store.manifest import DeltaRef
from penstock.wire.live import Back, Frame, StreamHeader, unpack

_WINDOW = 16 << 20
"""Bytes of a courier's rows that may be queued. Beyond that its stream is not read, and Flight stops it."""
_KEPT_SEALS = 100
"""Number of epochs before the last one sealed whose written deltas are remembered."""
_SOFT = 10
"""Nice value of the thread that writes deltas, so that rows come first."""

log = logging.getLogger("penstock.host")

Written = tuple[list[DeltaRef], HostVitals]
Arrived = tuple[int, Frame, pa.RecordBatch | None, int]
"""A frame that has arrived: (courier, frame, rows, bytes of the rows)."""


@dataclass(eq=False)
class _Stream:
    """One courier's stream."""

    writer: fl.MetadataRecordBatchWriter
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock that is held during writes."""
    over: bool = False
    """Whether the stream has ended, so that nothing can be written."""
    room: threading.Event = field(default_factory=threading.Event)
    """Event that is set while the stream may be read."""
    queued: int = 0
    """Bytes of rows that were read and not yet applied."""
    left: threading.Event = field(default_factory=threading.Event)
    """Event that is set when the courier's leave was processed."""


def time_of_day(time_ms: int) -> Callable[[], int]:
    """Return a clock of milliseconds since 1970 that starts no earlier than this, and never goes back."""
    latest = time_ms

    def now_ms() -> int:
        nonlocal latest
        latest = max(latest, int(time.time() * 1000))
        return latest

    return now_ms


def write_softly() -> None:
    """Lower the priority of the calling thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _SOFT)


class LiveRun:
    """One live run on one host. `write` writes an epoch's deltas to the store, in a thread of `writer`."""

    def __init__(
        self,
        rounds: Rounds,
        couriers: int,
        output: pa.Schema,
        lock: threading.Condition,
        fetcher: Fetcher,
        trickle: Trickle,
        load: Load,
        writer: ThreadPoolExecutor,
        write: Callable[[int, GatheredEpoch], Written],
        where: dict[str, str],
        host_ended: threading.Event,
    ) -> None:
        self._host_ended = host_ended
        self.number, self.couriers = rounds.run, couriers
        self.over: BaseException | None = None
        """Reason why the run has ended; None while it goes on."""
        self._rounds, self._output, self._lock = rounds, output, lock
        rounds.refill = self._refill
        self._fetcher, self._trickle, self._load = fetcher, trickle, load
        self._writer, self._write, self._where = writer, write, where | {"run": rounds.run}
        self._inbox: SimpleQueue[Arrived | None] = SimpleQueue()
        self._streams: dict[int, _Stream] = {}
        self._unsent: list[Sent] = []
        """Messages to couriers whose stream is not open yet."""
        self._seals: dict[int, list[Future[Written]]] = {}
        """Epoch -> its written deltas and vitals, for each step of this host."""
        self._fetches = ThreadPoolExecutor(4, thread_name_prefix="live-fetch")
        threading.Thread(target=self._work, name="rounds", daemon=True).start()

    # -- in Flight's threads

    def serve(
        self,
        header: StreamHeader,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        """Read a courier's stream until it or the run ends."""
        if (header.run, header.couriers) != (self.number, self.couriers):
            raise StaleRunError(f"run {header.run} with {header.couriers} couriers is not active")
        courier = header.courier
        writer.begin(self._output)
        stream = _Stream(writer)
        if self._streams.setdefault(courier, stream) is not stream:
            raise ProtocolError(f"courier {courier} already has a stream in run {self.number}")
        try:
            if self.over is not None:
                raise self.failure
            self.wake()
            self._read(courier, stream, reader)
        except BaseException as failed:
            self.end(failed)
            raise
        finally:
            with stream.lock:
                stream.over = True

    def _read(self, courier: int, stream: _Stream, reader: fl.MetadataRecordBatchReader) -> None:
        leaves = False
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                if not leaves and self.over is None:
                    raise HostLostError(f"courier {courier} ended its stream early") from None
                stream.left.wait()
                return
            except pa.ArrowException as broken:
                raise HostLostError(f"the stream of courier {courier} broke: {broken}") from broken
            if self.over is not None:
                raise self.failure
            if chunk.app_metadata is None:
                raise ProtocolError(f"courier {courier} sent rows without a frame")
            frame, packed = unpack(chunk.app_metadata)
            leaves = leaves or frame.leave
            if packed is not None and chunk.data is not None:
                raise ProtocolError(f"courier {courier} sent a frame with two batches")
            rows = chunk.data if packed is None else packed
            nbytes = 0 if rows is None else rows.get_total_buffer_size()
            stream.queued += nbytes
            if stream.queued > _WINDOW:
                stream.room.clear()
            self._inbox.put((courier, frame, rows, nbytes))
            if stream.queued > _WINDOW:
                stream.room.wait()

    def seal(self, epoch: int, timeout_s: float, place: int = 0) -> Written:
        """Wait until an epoch's deltas of a step are written, and return them with the vitals."""
        with self._lock:
            cut = self._lock.wait_for(
                lambda: self.over is not None or any(e >= epoch for e in self._seals), timeout_s
            )
            if self.over is not None:
                raise self.failure
            if not cut:
                raise HostLostError(
                    f"host {self._where['host']} has not reached checkpoint {epoch} "
                    f"within {timeout_s:g} s"
                )
            if epoch not in self._seals:
                raise ProtocolError(f"run {self.number} had no checkpoint {epoch} on this host")
            written = self._seals[epoch][place]
            for old in [e for e in self._seals if e < epoch - _KEPT_SEALS]:
                del self._seals[old]
        return written.result()

    # -- in any thread

    def will_reach(self, number: int) -> bool:
        """Tell whether a control message has not taken effect yet, but still can."""
        return self.over is None and self._rounds.acted < number

    def wake(self) -> None:
        """Wake the working thread, so that it checks for work."""
        self._inbox.put(None)

    def state_came(self) -> None:
        """Note that a slot was fetched in the background."""
        with self._lock:
            self._rounds.state_came()
        self.wake()

    def end(self, reason: BaseException) -> None:
        """Give up the run: nothing more of it is applied. Does not wait."""
        with self._lock:
            if self.over is not None:
                return
            self.over = reason
            self._lock.notify_all()
        for stream in list(self._streams.values()):
            stream.room.set()
            stream.left.set()
        self._fetches.shutdown(wait=False, cancel_futures=True)
        self.wake()

    @property
    def failure(self) -> PenstockError:
        """The error that tells couriers and the driver why the run has ended."""
        reason = self.over
        if isinstance(reason, PenstockError):
            return reason
        return HostLostError(f"a host failed with {type(reason).__name__}: {reason}")

    # -- in the working thread

    def _work(self) -> None:
        try:
            wakes_in_ms: int | None = 0
            while self.over is None:
                frames = self._next_frames(wakes_in_ms)
                with self._load.working():
                    wakes_in_ms = self._round(frames)
        except BaseException as failed:
            # Couriers are told. A fault that a test injects here ends the thread as a kill would.
            if self.over is None and not isinstance(failed, PenstockError):
                log.warning("Run %s ends on host %s: %r", self.number, self._where["host"], failed)
            self.end(failed)
        finally:
            for courier in list(self._streams):
                self._send(Sent(courier, None, Back(error=to_wire(self.failure))))

    def _next_frames(self, timeout_ms: int | None) -> list[Arrived]:
        """Wait for frames, and return all that have arrived."""
        frames = []
        try:
            item = self._inbox.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
            while True:
                if item is not None:
                    frames.append(item)
                item = self._inbox.get_nowait()
        except Empty:
            return frames

    def _refill(self) -> None:
        """Pass on all frames that have arrived while rounds are running."""
        for frame in self._next_frames(0):
            self._rounds.receive(*frame)

    def _round(self, frames: list[Arrived]) -> int | None:
        rounds, lock = self._rounds, self._lock
        with lock:
            if self.over is not None:
                return None
            for frame in frames:
                rounds.receive(*frame)
            outcome = rounds.work()
            wakes_in_ms = 0 if outcome.more else rounds.wakes_in_ms()
            for gathered in outcome.gathered:
                written = self._writer.submit(self._write, self.number, gathered)
                self._seals.setdefault(gathered.epoch, []).append(written)
            if outcome.trickle_mb_s is not None:
                self._trickle.mb_s = outcome.trickle_mb_s
            if outcome.gathered or outcome.acted or outcome.trickle_mb_s is not None:
                lock.notify_all()
        for need in outcome.needs:
            self._fetches.submit(self._fetch, need)
        self._answer(outcome)
        return wakes_in_ms

    def _answer(self, outcome: Worked) -> None:
        if outcome.rows:
            where = self._where | {"epoch": self._rounds.epoch}
            point("host.round", **where)
            work = {"records": outcome.rows, "took_s": outcome.busy_s, "until": self._host_ended}
            if spent_s := point("host.work", **where, **work):
                self._rounds.spent_on(outcome, spent_s)
        unsent, self._unsent = self._unsent, []
        for sent in (*unsent, *outcome.sent):
            self._send(sent)
        for courier, stream in list(self._streams.items()):
            stream.queued = self._rounds.waiting(courier)
            if stream.queued <= _WINDOW:
                stream.room.set()
            if self._rounds.has_left(courier):
                stream.left.set()

    def _send(self, sent: Sent) -> None:
        stream = self._streams.get(sent.courier)
        # A stream that was opened meanwhile first gets the messages that wait for it.
        if stream is None or any(unsent.courier == sent.courier for unsent in self._unsent):
            self._unsent.append(sent)
            return
        back = None if sent.back is None else codec.encode(sent.back)
        failed: HostLostError | None = None
        with stream.lock:
            if stream.over:
                return
            try:
                if sent.rows is None:
                    stream.writer.write_metadata(back)
                elif back is None:
                    stream.writer.write_batch(sent.rows)
                else:
                    stream.writer.write_with_metadata(sent.rows, back)
            except (pa.ArrowException, OSError) as broken:
                failed = HostLostError(f"the stream of courier {sent.courier} broke: {broken}")
                stream.over = True
        if failed is not None:
            self.end(failed)

    def _fetch(self, need: Need) -> None:
        try:
            self._fetcher.bring(need)
        except StaleRunError:
            pass
        except BaseException as failed:
            self.end(failed)
            return
        with self._lock:
            self._rounds.fetched(need)
        self.wake()
