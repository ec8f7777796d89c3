"""The shell around a host machine: a Flight server, the store, and background threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import (
    FEWER_ROWS,
    HostLostError,
    MemoryLimitError,
    PenstockError,
    ProtocolError,
    StaleRunError,
)
from penstock.exchange.aside import Aside
from penstock.faults import point
from penstock.host import serve
from penstock.host.chain import StepChain
from penstock.host.compactor import CompactionStanding, Compactor, CompactOrder
from penstock.host.fetch import Fetcher
from penstock.host.load import Load
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.host.rounds import GatheredEpoch, Rounds
from penstock.host.sharing import Helper, Sharing
from penstock.host.staging import Held, Staging
from penstock.host.streams import LiveRun, Written, time_of_day, write_softly
from penstock.host.trickle import Trickle
from penstock.host.vitals import HostVitals
from penstock.operators.operator import Answer
from penstock.operators.places import schema_with_both, split_serial, with_places
from penstock.plan.assignment import Assignment
from penstock.plan.slots import must_be_slots
from penstock.spans import Laps, Span
from penstock.state.arrays import Array
from penstock.state.store.compaction import Compacted, compact
from penstock.state.store.reader import StateReader
from penstock.state.store.store import DeltaRef, Store
from penstock.wire import orders
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from penstock.wire.flight import TokenServer, in_own_thread, telling_errors
from penstock.wire.help import HELPED
from penstock.wire.live import StreamHeader
from penstock.wire.messages import ChannelHeader, Close

_LIVE = b'"couriers"'
"""Bytes that occur in the header of a live stream, but not in the header of a channel."""
_PATIENCE_S = 5.0
"""Seconds that an ending host waits for its streams."""
_TURN_S, _LOOK_S = 10.0, 0.25
"""Seconds that a channel waits for a lower one whose task is not under way, and between two looks for it."""


class _Applied(NamedTuple):
    """Some rows of a channel that were applied."""

    rows: int
    took_s: float


class HostServer(TokenServer):
    """Serves one host machine.

    Couriers use `do_exchange`, one call per channel. The driver's orders are actions: `assign`, `seal`,
    `rollback`, `release`, `stop`, and three more to begin, query and cancel a compaction. Other hosts
    fetch copies of slots with `do_get`. One lock serializes the machine's calls. Staging a channel's
    input, fetching missing state and writing files happen without the lock. The `tag` keeps this
    incarnation's files apart from those of another one, which may be of the same epoch.

    In a host of all steps the server of the first step takes the channels, through the `chain`. The
    other servers are its `followers`: they share its lock, and take only the driver's orders.

    In a live run each courier has one `do_exchange` for the whole run. `join` begins the run, `rollback`
    ends it, and `seal` waits for a checkpoint.

    With `in_turn`, for an ordered flow, channels are applied in the order of their tasks. So keys that occur
    in several source partitions see the same order of rows whenever the epoch is run.

    `counted_on` asks the driver whether it still relies on the host at a location. A host that does not
    answer for `lost_ms` milliseconds counts as unreachable, whatever the driver says.
    """

    def __init__(
        self,
        machine: HostMachine,
        store: Store,
        *,
        step: str,
        host: str,
        listen: Listen,
        access: Access,
        tag: str,
        timeout_ms: int,
        on_stop: Callable[[], None],
        lost_ms: int = 5_000,
        counted_on: Callable[[str], bool] = lambda location: True,
        staged_bytes: int = sys.maxsize,
        in_turn: bool = False,
        piece_ms: float | None = None,
        make: Callable[[], PartedOperator] | None = None,
        lock: threading.Condition | None = None,
        chain: StepChain | None = None,
        followers: Sequence[HostServer] = (),
    ) -> None:
        super().__init__(listen, access)
        self.machine = machine
        self._store = store
        self._step, self._host = step, host
        self._tag = tag
        self._where = {"host": host, "step": step}
        self._lock = lock or threading.Condition()
        self._staging, self._room = Staging(staged_bytes), threading.Condition()
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="sealer")
        self._load = Load()
        self._compactor = Compactor(self._compact, self._load)
        self._seal: tuple[int, int, Future[tuple[DeltaRef, HostVitals]]] | None = None
        self._unnoted = 0
        """Number of closed channels whose work is not noted yet. An epoch is sealed with all of its work."""
        self._told: tuple[int, int, HostVitals] | None = None
        """Epoch, run and vitals of the seal that the driver has collected last."""
        self._spans: list[Span] = []
        """Spans of the channels since the last seal."""
        self._timeout_s = timeout_ms / 1000
        self._ended, self._in_turn = threading.Event(), in_turn
        self._chain, self._followers = chain, followers
        self._fetcher = Fetcher(
            machine,
            self._lock,
            self._reader,
            self._newest,
            access,
            timeout_ms,
            lost_ms,
            self._where,
            counted_on,
        )
        self._sharing = Sharing(
            machine,
            self._lock,
            access,
            piece_ms=None if in_turn or chain or make is None else piece_ms,
            timeout_ms=timeout_ms,
            lost_ms=lost_ms,
            where=self._where,
            ended=self._ended,
            counted_on=counted_on,
        )
        self._helper = (
            None
            if make is None
            else Helper(make, self._sharing.await_own, self._where, self._ended)
        )
        self._trickle = Trickle(
            machine, self._lock, self._fetcher, self._load, self._where, self._slot_brought
        )
        self._live: LiveRun | None = None
        self._place = 0
        """Number of the step among the steps of its task."""
        for place, server in enumerate(followers, 1):
            server._place = place
        self._soft_writer = ThreadPoolExecutor(1, "live-deltas", write_softly)
        self.actions = {
            "assign": self._assign,
            "join": self._join,
            "seal": self._answer_seal,
            "rollback": self._rollback,
            "release": self._release,
            "help": self._offer_help,
            "compact": self._begin_compaction,
            "compaction": self._compaction,
            "cancel_compaction": lambda order: self._compactor.cancel(order["tag"]),
            "stop": lambda _: on_stop(),
            "memory": lambda _: {"rss": psutil.Process().memory_info().rss},
        }
        self.takes = {
            "assign": orders.Assign,
            "join": orders.Join,
            "seal": orders.Seal,
            "rollback": orders.Rollback,
            "help": orders.Help,
            "compact": orders.Compact,
            "compaction": orders.OfCompaction,
            "cancel_compaction": orders.OfCompaction,
        }

    def end(self) -> None:
        """Stop the server and all background threads."""
        self._ended.set()
        self.end_run(HostLostError(f"host {self._host} has ended"))
        with self._room:
            self._room.notify_all()
        with self._lock:
            self._lock.notify_all()
        self._trickle.stop()
        self._fetcher.close()
        self._sharing.close()
        if self._helper is not None:
            self._helper.end()
        self._sealer.shutdown(wait=False, cancel_futures=True)
        self._soft_writer.shutdown(wait=False, cancel_futures=True)
        self._compactor.end()
        # Streams end when their couriers have read that. Do not wait longer for a courier that does not.
        with suppress(TimeoutError):
            in_own_thread(self.shutdown, "shutdown").result(_PATIENCE_S)

    def open_tasks(self) -> set[tuple[int, int, int]]:
        """Return (epoch, run, task) of each courier that has an open channel."""
        with self._room:
            return self._staging.tasks()

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        with telling_errors():
            if _LIVE in descriptor.command:
                self._serve_stream(descriptor.command, reader, writer)
                return
            if HELPED in descriptor.command:
                self._help(descriptor.command, reader, writer)
                return
            header = codec.decode(descriptor.command, ChannelHeader)
            where = self._where | header.where
            laps = self._laps(header.epoch, header.partition)
            with self._load.working():
                answer = self._take(header, reader, where, laps)
            if answer is None:
                return
            point("host.applied", **where)
            began = time.thread_time()
            batches = with_places(answer.batches, answer.places)
            output = self._chain.output if self._chain else self.machine.operator.output
            writer.begin(batches[0].schema if batches else output)
            for batch in batches:
                writer.write_batch(batch)
            aside = Aside(answer.dead, answer.late)
            if aside:
                writer.write_metadata(codec.encode(aside))
            laps.lap("answer")
            self._spent(time.thread_time() - began, laps)

    def _laps(self, epoch: int, channel: int = -1) -> Laps:
        return Laps(epoch, f"host {self._host}", channel)

    def _take(
        self,
        header: ChannelHeader,
        reader: fl.MetadataRecordBatchReader,
        where: dict[str, Any],
        laps: Laps,
    ) -> Answer | None:
        """Read a channel to its end and apply it; None if it broke off."""
        with self._room:
            held = self._staging.open(header)
            self._room.notify_all()  # waiting channels of an older run must fail now
        applied = False
        try:
            # Only this thread's CPU time counts as useful, not its waiting.
            began = time.thread_time()
            staged, close = self._stage(held, reader)
            if close is None:
                return None
            laps.lap("receive")
            self._spent(time.thread_time() - began)
            held.header = header.closed_by(close)
            point("host.channel", **where)
            answer = self._close(held.header, close.kind, staged, where, laps)
            applied = True
            return answer
        except MemoryError as full:
            raise MemoryLimitError(
                f"host {self._host} does not have enough memory for partition {header.partition} of epoch "
                f"{header.epoch}: {full}",
                hint=FEWER_ROWS,
            ) from full
        finally:
            with self._room:
                self._staging.close(held, applied)
                self._room.notify_all()

    def _stage(
        self, held: Held, reader: fl.MetadataRecordBatchReader
    ) -> tuple[list[pa.RecordBatch], Close | None]:
        """Read all batches of a channel and its closing message, which is None if the channel broke off."""
        staged: list[pa.RecordBatch] = []
        records = 0
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return staged, None
            if chunk.data is not None:
                records += chunk.data.num_rows
                staged.append(chunk.data)
                if not self._has_room(held, chunk.data.get_total_buffer_size()):
                    staged.clear()
            if chunk.app_metadata is not None:
                close = codec.decode(chunk.app_metadata.to_pybytes(), Close)
                if records != close.records:
                    raise ProtocolError(
                        f"{records} of a channel's {close.records} records have arrived"
                    )
                return staged, close

    def _has_room(self, held: Held, bytes: int) -> bool:
        """Count a channel's bytes and wait until it may be read again; False if its rows are not needed."""
        with self._room:
            needed = self._staging.add(held, bytes)
            self._room.wait_for(lambda: self._ended.is_set() or self._staging.may_read(held))
        return needed

    def _spent(self, seconds: float, laps: Laps | None = None) -> None:
        with self._lock:
            self.machine.spent(seconds)
            if laps is not None:
                self._spans += laps.take()

    def _close(
        self,
        header: ChannelHeader,
        kind: str,
        staged: list[pa.RecordBatch],
        where: dict[str, Any],
        laps: Laps,
    ) -> Answer:
        """Fetch the state that a channel needs, and apply it. Rows that need none are applied meanwhile."""
        staged, places = split_serial(staged, header.partition)
        machine = self._chain or self.machine
        if header.chained and machine is self.machine:
            raise ProtocolError(f"host {self._host} serves one step only, not a chain of steps")
        records = sum(batch.num_rows for batch in staged)
        while True:
            with self._lock, self._refusing_unfit(kind):
                self._await_turn(header)
                self._sharing.await_turn(header)
                need = machine.needs(header, kind, staged)
                work = None if need is not None else self._sharing.begin(header, kind, staged)
                laps.lap("wait")
                began = time.perf_counter()
                if need is None and work is None:
                    answer = machine.close_channel(header, kind, staged, places)
                    took_s = time.perf_counter() - began
                    laps.lap("apply")
                    self._unnoted += 1
                    self._lock.notify_all()  # it may be another channel's turn
                    break
                if need is not None:
                    fetched = self._fetcher.begin(need)
                    here = self._apply_here(header, kind, staged)
            if work is not None:
                staged.clear()
                with self._refusing_unfit(kind):
                    answer = self._sharing.apply(work, lambda: self.seal_if_complete(header))
                laps.lap("apply")
                return answer
            while here.rows:
                records -= here.rows
                self._sharing.worked(header.where, here.rows, here.took_s)
                point("host.began", **where)
                if fetched.done():
                    break  # the rest can be shared now
                self._sharing.let_others_in()
                with self._lock, self._refusing_unfit(kind):
                    self._sharing.await_turn(header)
                    here = self._apply_here(header, kind, staged)
            laps.lap("apply")
            fetched.result()
        try:
            self._sharing.worked(header.where, max(0, records), took_s)
        finally:
            with self._lock:
                self._unnoted -= 1
                for server in () if self._unnoted else (self, *self._followers):
                    server.seal_if_complete(header)
                self._lock.notify_all()  # the driver may wait for the seal
        laps.lap("delta")
        return answer

    def _apply_here(
        self, header: ChannelHeader, kind: str, staged: list[pa.RecordBatch]
    ) -> _Applied:
        """Apply a piece of a channel's rows whose state is here. The caller holds the lock, which is free
        between two pieces: other hosts fetch state from this one meanwhile."""
        began = time.perf_counter()
        rows = self.machine.apply_here(header, kind, staged, self._sharing.pieces_of)
        return _Applied(rows, time.perf_counter() - began)

    def _await_turn(self, header: ChannelHeader) -> None:
        """Wait until the channels of all lower tasks are applied, if channels are applied in turn. The caller
        holds the lock.

        Spark starts tasks in order, so a lower task is under way or done. Only one that must be tried again
        may find no task slot, because others wait for their turn. Then this one fails and makes room for it.
        """
        if not self._in_turn:
            return
        run, seen_s = (header.epoch, header.run), time.monotonic()
        while (ahead := self.machine.ahead_of(header)) is not None:
            if self._ended.is_set():
                raise HostLostError(f"host {self._host} has ended")
            with self._room:
                under_way = self._staging.is_open(run, ahead)
            now_s = time.monotonic()
            seen_s = now_s if under_way else seen_s
            if now_s - seen_s > _TURN_S:
                raise StaleRunError(
                    f"partition {header.partition} of epoch {header.epoch} gave up its turn: no task "
                    f"has sent partition {ahead}, which comes before it, for {_TURN_S:g} s"
                )
            self._lock.wait(_LOOK_S)

    @contextmanager
    def _refusing_unfit(self, kind: str) -> Iterator[None]:
        """Turn errors of batches that do not fit this step into a ProtocolError that says so."""
        try:
            yield
        except fl.FlightError:
            raise
        except (LookupError, TypeError, ValueError, OverflowError, pa.ArrowException) as unfit:
            raise ProtocolError(
                f"step {self._step} cannot apply this channel of {kind!r}: "
                f"{type(unfit).__name__}: {unfit}",
                hint="use the same flow and the same release of Penstock everywhere",
            ) from unfit

    def _offer_help(self, order: dict[str, Any]) -> None:
        self._sharing.offer(order["epoch"], order["run"], order["locations"])

    def _help(
        self,
        command: bytes,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        if self._helper is None:
            raise ProtocolError(f"host {self._host} cannot help others")
        self._helper.serve(command, reader, writer)

    def shutdown_helper(self) -> None:
        """Let the user code that has helped other hosts close its resources."""
        if self._helper is not None:
            self._helper.shutdown()

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """Stream entries of slots that have left this host to the host that owns them now."""
        with telling_errors():
            point("host.serve", **self._where)
            return serve.answer(
                self.machine, self._lock, self._load, self._will_reach, ticket.ticket
            )

    def seal_if_complete(self, header: ChannelHeader) -> None:
        """Start sealing if all channels of the epoch have closed. The caller holds the lock."""
        if self.machine.complete == (header.epoch, header.run):
            self._begin_seal(header.epoch, header.run, header.partitions)

    def _begin_seal(self, epoch: int, run: int, partitions: int) -> None:
        """Write the delta in the background while the sink works, so that the driver's `seal` is quick."""
        delta, vitals = self.machine.seal(epoch, run, partitions)

        def write() -> tuple[DeltaRef, HostVitals]:
            where = self._where | {"epoch": epoch, "run": run}
            point("host.seal", **where)
            laps = self._laps(epoch)
            ref = self._store.write_delta(epoch, run, self._step, self._host, delta, self._tag)
            laps.lap("write delta")
            point("host.sealed", **where)
            return ref, replace(vitals, spans=laps.take())

        self._seal = (epoch, run, self._sealer.submit(write))

    # -- live runs

    def _join(self, order: dict[str, Any]) -> None:
        """Begin this host's part of a live run with a number of couriers."""
        run, couriers, time_ms = order["run"], order["couriers"], order.get("time_ms", 0)
        with self._lock:
            if self._live is not None and self._live.number == run and self._place:
                return  # it began with the first step
            if self._place or (self._live is not None and self._live.number >= run):
                now = "in no run" if self._live is None else f"in run {self._live.number}"
                raise StaleRunError(f"run {run} cannot begin: host {self._host} is {now}")
            machine = self.machine
            if machine.version is None:
                raise ProtocolError("this host has no slots assigned yet")
            rounds, output = self._rounds(run, couriers, time_of_day(time_ms))
            rounds.time.watermark = order.get("watermark_ms")
            live = LiveRun(
                rounds, couriers, output, self._lock, self._fetcher, self._trickle,
                self._load, self._soft_writer, self._write_gathered, self._where, self._ended,
            )  # fmt: skip
            for server in (self, *self._followers):
                server._live = live

    def _rounds(
        self, run: int, couriers: int, now_ms: Callable[[], int]
    ) -> tuple[Rounds, pa.Schema]:
        """Create the state machine of a live run, and return it with the schema of its answers."""
        machine, chain = self.machine, self._chain
        if chain is None:
            rounds, operator = Rounds(machine, self._host, run, couriers, now_ms), machine.operator
            output = operator.output
            return rounds, schema_with_both(output) if operator.ordered else output
        first, *behind = chain.machines
        for server in (self, *self._followers):
            server._wait_for_slots()  # after a rollback some may have to be fetched again
        if any(m.version != first.version or m.residence.any_partial for m in chain.machines):
            raise ProtocolError("the steps of this host do not have all their state")
        chain.live.begin()
        rounds = Rounds(
            first, self._host, run, couriers, now_ms, work=chain.live, behind=tuple(behind)
        )
        return rounds, chain.output

    def _serve_stream(
        self,
        command: bytes,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        header = codec.decode(command, StreamHeader)
        with self._lock:
            live = self._live
        if live is None or header.step != self._step:
            raise StaleRunError(
                f"run {header.run} of step {header.step} is not active on this host"
            )
        live.serve(header, reader, writer)

    def _write_gathered(self, run: int, gathered: GatheredEpoch) -> Written:
        """Write the deltas of an epoch. Changes of slots that left in it go to a separate file."""
        if gathered.place != self._place:
            return self._followers[gathered.place - 1]._write_gathered(run, gathered)
        epoch, where = gathered.epoch, self._where | {"epoch": gathered.epoch, "run": run}
        point("host.seal", **where)
        *away, own = gathered.deltas
        refs = [
            replace(ref, away=left)
            for deltas, tag, left in ((away, f"away-{self._tag}", True), ([own], self._tag, False))
            for delta in deltas
            if delta.num_rows
            for ref in [self._store.write_delta(epoch, run, self._step, self._host, delta, tag)]
        ]
        point("host.sealed", **where)
        return refs, gathered.vitals

    def end_run(self, reason: PenstockError) -> None:
        """End the live run, if there is one, and tell its couriers why. Does not wait."""
        with self._lock:
            live = self._live
        if live is not None:
            live.end(reason)

    def _will_reach(self, run: int, number: int) -> bool:
        live = self._live
        return live is not None and live.number == run and live.will_reach(number)

    def _slot_brought(self) -> None:
        if self._live is not None:
            self._live.state_came()

    def _answer_seal(self, order: dict[str, Any]) -> dict[str, Any]:
        epoch, run = order["epoch"], order["run"]
        if self._live is not None and run == self._live.number:
            refs, vitals = self._live.seal(epoch, self._timeout_s, self._place)
            return {"deltas": refs, "vitals": vitals}
        with self._lock:
            if order.get("wait"):
                self._await_channels(epoch, run)
            if self._seal is None or self._seal[:2] != (epoch, run):
                self._begin_seal(epoch, run, order["partitions"])
            assert self._seal is not None
            written = self._seal[2]
        try:
            ref, vitals = written.result()
        except BaseException:
            self._seal = None
            raise
        with self._lock:
            # The driver may ask again: what was noted meanwhile comes on top of what it was told.
            if self._told is not None and self._told[:2] == (epoch, run):
                vitals = self._told[2]
            vitals = self.machine.with_spent(vitals)
            vitals = replace(vitals, spans=(*vitals.spans, *self._spans))
            self._spans = []
            self._told = (epoch, run, vitals)
        if order.get("wait"):
            point("host.confirm", **self._where, epoch=epoch, run=run)
        return {"delta": ref, "vitals": vitals}

    def _await_channels(self, epoch: int, run: int) -> None:
        """Wait until all channels of a run have closed. The caller holds the lock.

        A run that was given up, or did not begin in time, fails when it is sealed.
        """

        def settled() -> bool:
            sealed = self._seal is not None and self._seal[:2] == (epoch, run)
            return sealed or self._ended.is_set() or self.machine.is_past(epoch, run)

        self._lock.wait_for(settled, self._timeout_s)

    def _assign(self, order: dict[str, Any]) -> None:
        """Own other slots from now on. With `wait`, return only when their state is complete."""
        assignment = codec.from_plain(order["assignment"], Assignment)
        point("host.assign", **self._where)
        with self._lock:
            self.machine.assign(assignment)
            self._trickle.mb_s = assignment.trickle_mb_s
            self._fetcher.trouble = None
            self._lock.notify_all()
            if order["wait"]:
                self._wait_for_slots()

    def _wait_for_slots(self) -> None:
        residence, fetcher = self.machine.residence, self._fetcher
        self._lock.wait_for(
            lambda: (
                not residence.whole.any() or fetcher.trouble is not None or self._ended.is_set()
            ),
            self._timeout_s,
        )
        if residence.whole.any():
            raise fetcher.trouble or HostLostError(
                f"host {self._host} did not get its slots within {self._timeout_s:g} s"
            )

    def _release(self, order: dict[str, Any]) -> None:
        with self._lock:
            self.machine.release()

    def _begin_compaction(self, order: dict[str, Any]) -> None:
        wanted = codec.from_plain(order["order"], CompactOrder)
        codec.from_plain({"tag": wanted.tag}, orders.OfCompaction)
        must_be_slots(wanted.slots, self.machine.operator.table.slots)
        self._compactor.begin(wanted)

    def _compaction(self, order: dict[str, Any]) -> CompactionStanding:
        return self._compactor.standing(order["tag"])

    def _compact(
        self,
        slots: Array,
        upto: int,
        tag: str,
        next_file: Callable[[], None],
        rest: Callable[[], None],
    ) -> Compacted:
        table = self.machine.operator.table

        def check() -> None:
            point("host.compact", **self._where)
            next_file()

        of = (self._store, self._step, table.codec, table.schema)
        return compact(*of, slots, upto, tag, check, rest=rest)

    def _reader(self) -> StateReader:
        table = self.machine.operator.table
        return StateReader(self._store, self._step, table.codec, table.schema, table.slots)

    def _newest(self) -> int:
        return max(self._store.epochs(), default=-1)

    def _rollback(self, order: dict[str, Any]) -> None:
        """Roll back to a version, and end the live run if there is one."""
        version, run = order["version"], order["run"]
        if self._live is None:
            with self._lock:
                self.machine.rollback(version, run)
                self._seal = None
                self._lock.notify_all()  # channels that wait for their turn must fail now
            return
        self._live.end(StaleRunError(f"run {self._live.number} was given up"))
        with self._lock:
            self.machine.return_to(version)
