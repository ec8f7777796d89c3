"""Work that hosts share in the middle of an epoch: a large channel is applied in pieces, by several hosts.

The owner of the slots stays their owner until the epoch ends. It sends a piece's rows, with the entries of
their keys, to a helper. The helper applies them to these entries alone, in a table of its own, and sends back
the changed entries and the output. Then the owner puts both where its own work would have put them. So nobody
else can tell who applied a piece: the channel's answer, the delta, undo and rollback are the owner's as ever.

The helper keeps nothing. If it fails, or does not answer, the owner applies the piece itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import HostLostError, ProtocolError, StaleRunError
from penstock.exchange.aside import Aside
from penstock.faults import point
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.host.pieces import MOST, Piece, Piecework, cut
from penstock.operators.operator import Answer, Operator
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import key_index
from penstock.wire.access import Access
from penstock.wire.flight import AnswerWatch, Endpoints, in_own_thread
from penstock.wire.help import HelpHeader, packed, unpacked
from penstock.wire.messages import ChannelHeader

_log = logging.getLogger("penstock.hosts")

_LOOK_S = 0.25
"""Seconds between two looks whether a piece has come back, or whether the run was given up."""
_ASK_S = 0.5
"""Seconds without an answer before a helper is pinged."""
_ROW_S = 500e-6
"""Seconds that a row is expected to take before any was applied: much, since pieces can be taken together."""
_MEMORY = 0.7
"""Weight of earlier channels and pieces in the average time of a row, each time that one is added."""
_ALONE = 5
"""Number of pieces from which on a channel is cut although there is no helper yet: one may come. Fewer are
enough if other hosts may fetch state from this one, since they wait for the lock."""
_AT_ONCE = 2
"""Number of pieces that a helper has at a time, so that it need not wait for the next one."""
_COURTESY_S = 0.05
"""Maximum seconds between two pieces for the threads of helpers."""
_MOST_STATE = 64 << 20
"""Bytes of entries with which a piece does not travel: its owner applies it."""


class Sharing:
    """Applies the large channels of one host in pieces, with the help of other hosts.

    `lock` is the host's lock. Only one channel at a time is applied in pieces, and no other channel of its
    run meanwhile, so that a channel which fails can be undone.
    """

    def __init__(
        self,
        machine: HostMachine,
        lock: threading.Condition,
        access: Access,
        *,
        piece_ms: float | None,
        timeout_ms: int,
        lost_ms: int,
        where: dict[str, str],
        ended: threading.Event,
        counted_on: Callable[[str], bool],
    ) -> None:
        """`piece_ms` is the work in a piece, in milliseconds; None: channels are not cut."""
        self._machine, self._lock, self._where = machine, lock, where
        self._piece_ms = piece_ms
        self._applied = (1.0, _ROW_S)
        """Records, and the seconds that they took, fading out."""
        self._timeout_ms, self._lost_ms = timeout_ms, lost_ms
        self._counted_on, self._ended = counted_on, ended
        self._endpoints = Endpoints(access)
        self._work: Piecework | None = None
        self._run = (-1, -1)
        """(epoch, run) that the helpers are for."""
        self._helpers: set[str] = set()
        """Locations of hosts that help in this run."""
        self._wanting = 0
        """Number of threads of helpers that wait for the lock."""
        self._own = threading.Lock()
        """Guards the helpers and `_wanting`. Held for a moment only, with the host's lock or without."""

    def close(self) -> None:
        self._endpoints.close()

    def note(self, records: int, seconds: float) -> None:
        """Take in how long some records took, to know how large a piece may be."""
        before, took_s = self._applied
        self._applied = (_MEMORY * before + records, _MEMORY * took_s + seconds)

    # -- the owner's side: the caller holds the lock

    def await_turn(self, header: ChannelHeader) -> None:
        """Wait while another channel of the same run is applied in pieces."""
        while self._work is not None and self._work.run == (header.epoch, header.run):
            if not self._current(self._work):
                return
            if self._ended.is_set():
                raise HostLostError(f"host {self._where['host']} has ended")
            self._lock.wait(_LOOK_S)

    def begin(
        self, header: ChannelHeader, kind: str, staged: list[pa.RecordBatch]
    ) -> Piecework | None:
        """Begin to apply a channel in pieces, or the rest of one that has begun; None if it is not worth it.
        Its state must be complete."""
        operator = self._machine.operator
        kind, batches = self._machine.unapplied(header, kind, staged)
        pieces = self._pieces(header, sum(batch.num_rows for batch in batches))
        if pieces < 2 or not operator.portable or operator.ordered:
            return None
        if self._machine.is_kept(header):
            return None
        self._machine.begin_channel(header)
        waiting = deque(cut(operator, kind, batches, pieces))
        self._machine.divided(header, waiting)
        # What the channel has begun with stays before the mark: only its rest is undone.
        work = self._work = Piecework(header, kind, waiting, self._machine.mark())
        for location in self._helpers_in(work.run):
            self._begin_help(location, work)
        return work

    def _pieces(self, header: ChannelHeader, records: int) -> int:
        """Number of pieces into which to cut a channel; 1: it is applied at once."""
        pieces = self.pieces_of(records)
        alone = self._piece_ms and not self._helpers_in((header.epoch, header.run))
        return 1 if alone and pieces < _ALONE and not self._machine.is_source else pieces

    def pieces_of(self, records: int) -> int:
        """Number of pieces that this many records make."""
        if self._piece_ms is None:
            return 1
        most = min(records, MOST)
        if self._piece_ms == 0:
            return most
        return min(most, int(records * self._row_ms / self._piece_ms))

    @property
    def _row_ms(self) -> float:
        """Milliseconds that a row takes."""
        records, seconds = self._applied
        return 1000 * seconds / records

    def _next(self, work: Piecework) -> Piece | None:
        """Remove and return the next piece; several as one, if they turn out to be small."""
        if not work.waiting:
            return None
        piece, most_ms = work.waiting.popleft(), self._piece_ms or 0.0
        batches, rows = list(piece.batches), piece.rows
        while work.waiting and (rows + work.waiting[0].rows) * self._row_ms <= most_ms:
            more = work.waiting.popleft()
            batches, rows = batches + more.batches, rows + more.rows
        return Piece(batches)

    def _helpers_in(self, run: tuple[int, int]) -> set[str]:
        with self._own:
            return set(self._helpers) if self._run == run else set()

    def _current(self, work: Piecework) -> bool:
        """Tell whether a channel's pieces still count: its run was not given up."""
        return self._work is work and self._machine.is_open(*work.run)

    # -- the owner's side: the caller does not hold the lock

    def offer(self, epoch: int, run: int, locations: Iterable[str]) -> None:
        """Have these hosts help in a run from now on: the driver's order. Does not wait for the lock."""
        with self._own:
            if (epoch, run) < self._run:
                return
            if (epoch, run) > self._run:
                self._run, self._helpers = (epoch, run), set()
            new = set(locations) - self._helpers
            self._helpers |= new
        work = self._work
        if work is not None and work.run == (epoch, run):
            for location in new:
                self._begin_help(location, work)

    def apply(self, work: Piecework, done: Callable[[], None]) -> Answer:
        """Apply all pieces, and close the channel. `done` is called under the lock."""
        try:
            while True:
                self.let_others_in()
                with self._lock:
                    self._must_be_current(work)
                    piece = self._next(work)
                    if piece is None and not work.away:
                        answer = self._machine.close_pieces(work)
                        self._work = None
                        done()
                        self._lock.notify_all()
                        return answer
                    if piece is None:
                        self._lock.wait(_LOOK_S)
                        continue
                    took_s = self._apply(work, piece)
                self.worked(work.header.where, piece.rows, took_s)
        except BaseException:
            with self._lock:
                if self._current(work):
                    self._machine.undo(work.mark)
                if self._work is work:
                    self._work = None
                self._lock.notify_all()
            raise

    def let_others_in(self) -> None:
        """Let other threads have the lock, which the next piece would take at once again."""
        until_s = time.monotonic() + _COURTESY_S
        time.sleep(_COURTESY_S / 100)
        while self._wanting and time.monotonic() < until_s:
            time.sleep(_COURTESY_S / 100)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, in a thread of a helper."""
        with self._own:
            self._wanting += 1
        with self._lock:
            with self._own:
                self._wanting -= 1
            yield

    def _must_be_current(self, work: Piecework) -> None:
        if self._ended.is_set():
            raise HostLostError(f"host {self._where['host']} has ended")
        if not self._current(work):
            epoch, run = work.run
            raise StaleRunError(f"run {run} of epoch {epoch} was given up")
        if work.failed is not None:
            raise ProtocolError(
                f"host {self._where['host']} cannot use what another one made of its rows: {work.failed}",
                hint="use the same flow and the same release of Penstock everywhere",
            ) from work.failed

    def _apply(self, work: Piecework, piece: Piece) -> float:
        began = time.perf_counter()
        work.answers.append(self._machine.operator.apply(work.kind, piece.batches))
        took_s = time.perf_counter() - began
        work.rows += piece.rows
        work.busy_s += took_s
        return took_s

    def worked(self, where: dict[str, Any], records: int, took_s: float) -> None:
        """Note that this host has applied some records. The caller does not hold the lock."""
        facts = {"records": records, "took_s": took_s, "until": self._ended}
        slowed_s = point("host.work", **{**where, **self._where}, **facts)
        with self._lock:
            self._machine.spent(slowed_s)
            self.note(records, took_s + slowed_s)

    def await_own(self) -> None:
        """Wait until this host has begun all its own pieces, in order to help another one.

        It does not wait for pieces that others have. So hosts that help each other do not wait in a circle.
        """
        with self._lock:
            while self._work is not None and self._work.waiting and not self._ended.is_set():
                self._lock.wait(_LOOK_S)

    def _begin_help(self, location: str, work: Piecework) -> None:
        for _ in range(_AT_ONCE):
            threading.Thread(
                target=self._have_helped, args=(location, work), name="helped", daemon=True
            ).start()

    def _have_helped(self, location: str, work: Piecework) -> None:
        """Send pieces to a helper, one after the other, as long as there are any."""
        while (taken := self._taken(work)) is not None:
            piece, state = taken
            try:
                answer = self._awaited(location, work, piece, state)
                point("host.helped", **{**work.header.where, **self._where})
            except BaseException as failed:  # whatever it is, the piece must not be lost
                self._give_back(location, work, piece, failed)
                return
            self._put(work, piece, *answer)

    def _taken(self, work: Piecework) -> tuple[Piece, pa.Table] | None:
        """Take the next piece, with the entries of its keys."""
        with self._locked():
            if not self._current(work) or (piece := self._next(work)) is None:
                return None
            state = None
            try:
                table = self._machine.operator.table
                keys = distinct_keys(self._machine.operator, work.kind, piece.batches)
                entries = table.find(keys)
                state = table.export(entries[entries >= 0])
            finally:
                if state is None or state.nbytes > _MOST_STATE:
                    work.waiting.append(piece)
                    self._lock.notify_all()
            if state.nbytes > _MOST_STATE:
                return None
            work.away += 1
            return piece, state

    def _give_back(
        self, location: str, work: Piecework, piece: Piece, failed: BaseException
    ) -> None:
        """Apply a piece here that a helper did not apply, and do without that helper for this run."""
        with self._lock:
            work.away -= 1
            work.waiting.append(piece)
            with self._own:
                self._helpers.discard(location)
            current = self._current(work)
            self._lock.notify_all()
        if current:
            host, epoch = self._where["host"], work.header.epoch
            text = "Host %s does some rows of epoch %d itself: the host at %s did not help (%s)."
            _log.warning(text, host, epoch, location, failed, extra=self._where | {"epoch": epoch})

    def _put(self, work: Piecework, piece: Piece, changed: pa.Table, answer: Answer) -> None:
        with self._locked():
            work.away -= 1
            self._lock.notify_all()
            if self._current(work):
                try:
                    self._machine.operator.table.put(changed)
                except BaseException as failed:
                    work.failed = (
                        failed  # a part of it may be in the table: the channel must be undone
                    )
                    raise
                work.answers.append(answer)
                work.helped_rows += piece.rows

    def _awaited(
        self, location: str, work: Piecework, piece: Piece, state: pa.Table
    ) -> tuple[pa.Table, Answer]:
        """Return a helper's answer; raise HostLostError if the helper is lost."""
        endpoint = self._endpoints.at(location)
        answer = in_own_thread(lambda: self._asked(location, work, piece, state), "helped-wait")
        watch = AnswerWatch([endpoint], self._lost_ms, _ASK_S)
        while True:
            try:
                return answer.result(_ASK_S)
            except TimeoutError:
                if answer.done():
                    continue
            with self._lock:
                self._must_be_current(work)
            if not self._counted_on(location):
                raise HostLostError("the driver gave up the host that helps", location=location)
            watch.ask()

    def _asked(
        self, location: str, work: Piecework, piece: Piece, state: pa.Table
    ) -> tuple[pa.Table, Answer]:
        at = work.header
        header = HelpHeader(
            self._where["host"], at.epoch, at.run, at.step, at.partition, at.attempt, at.time,
            work.kind,
        )  # fmt: skip
        request = packed([state, pa.Table.from_batches(piece.batches)])
        endpoint, aside, batch = self._endpoints.at(location), Aside(), None
        endpoint.greet(self._lost_ms)
        with endpoint.exchange(codec.encode(header), self._timeout_ms) as (writer, reader):
            writer.begin(request.schema)
            writer.write_batch(request)
            writer.done_writing()
            for chunk in reader:
                batch = batch if chunk.data is None else chunk.data
                if chunk.app_metadata is not None:
                    aside.add(codec.decode(chunk.app_metadata.to_pybytes(), Aside))
        if batch is None:
            raise HostLostError("a helper's answer broke off", location=location)
        changed, output = unpacked(batch)
        batches = [one for one in output.to_batches() if one.num_rows]
        return changed, Answer(batches, aside.dead, late=aside.late)


class Helper:
    """Applies pieces of other hosts' channels, one at a time, to the entries that come with them.

    `make` makes an operator of the step, whose table is empty before and after each piece.
    """

    def __init__(
        self,
        make: Callable[[], PartedOperator],
        await_own: Callable[[], None],
        where: dict[str, str],
        ended: threading.Event,
    ) -> None:
        """`await_own` waits until the host has done its own work."""
        self._make, self._await_own, self._where, self._ended = make, await_own, where, ended
        self._operator: PartedOperator | None = None
        self._lock = threading.Lock()

    def serve(
        self,
        command: bytes,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        """Answer one request."""
        header = codec.decode(command, HelpHeader)
        where = header.where | self._where
        state, rows = unpacked(reader.read_chunk().data)
        point("host.help", **where)
        self._await_own()
        with self._lock:
            began = time.perf_counter()
            changed, answer, output = self._apply(header, state, rows.to_batches())
            took_s = time.perf_counter() - began
            facts = {"records": rows.num_rows, "took_s": took_s, "until": self._ended}
            point("host.work", **where, **facts)
        batch = packed([changed, pa.Table.from_batches(answer.batches, output)])
        writer.begin(batch.schema)
        writer.write_batch(batch)
        aside = Aside(answer.dead, answer.late)
        if aside:
            writer.write_metadata(codec.encode(aside))

    def _apply(
        self, header: HelpHeader, state: pa.Table, rows: list[pa.RecordBatch]
    ) -> tuple[pa.Table, Answer, pa.Schema]:
        if self._operator is None:
            self._operator = self._make()
        operator = self._operator
        table = operator.table
        try:
            table.install(distinct_keys(operator, header.kind, rows), state)
            operator.begin(header.time)
            answer = operator.apply(header.kind, rows)
            return table.export(table.touched()), answer, operator.output
        finally:
            operator.rollback()
            table.drop(np.arange(table.slots))

    def end(self) -> None:
        """End the workers: no more requests will come."""
        if self._operator is not None:
            self._operator.end()

    def shutdown(self) -> None:
        """Let user code close its resources."""
        if self._operator is not None:
            self._operator.shutdown()


def distinct_keys(operator: Operator, kind: str, batches: list[pa.RecordBatch]) -> Keys:
    """The keys of these rows, each once."""
    index = key_index(operator.table.codec.layout)
    for keys in operator.keys(kind, batches):
        index.upsert(keys)
    return index.keys(np.arange(index.size))
