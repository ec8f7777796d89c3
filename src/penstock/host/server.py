"""The shell around a host machine: a Flight server, the store, and background threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

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
from penstock.host.machine import HostMachine
from penstock.host.rounds import GatheredEpoch, Rounds
from penstock.host.staging import Held, Staging
from penstock.host.streams import LiveRun, Written, time_of_day, write_softly
from penstock.host.trickle import Trickle
from penstock.host.vitals import HostVitals
from penstock.operators.operator import Answer
from penstock.operators.places import schema_with_both, split_serial, with_places
from penstock.plan.assignment import Assignment
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array
from penstock.state.store.compaction import Compacted, compact
from penstock.state.store.reader import StateReader
from penstock.state.store.store import DeltaRef, Store
from penstock.wire import orders
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from penstock.wire.flight import TokenServer, in_own_thread, telling_errors
from penstock.wire.live import StreamHeader
from penstock.wire.messages import ChannelHeader, Close

_LIVE = b'"couriers"'
"""Bytes that occur in the header of a live stream, but not in the header of a channel."""
_PATIENCE_S = 5.0
"""Seconds that an ending host waits for its streams."""


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
        self._compactor = Compactor(self._compact)
        self._seal: tuple[int, int, Future[tuple[DeltaRef, HostVitals]]] | None = None
        self._timeout_s = timeout_ms / 1000
        self._ended = threading.Event()
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
        self._trickle = Trickle(machine, self._lock, self._fetcher, self._where, self._slot_brought)
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
        self._trickle.stop()
        self._fetcher.close()
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
            header = codec.decode(descriptor.command, ChannelHeader)
            where = self._where | header.where
            answer = self._take(header, reader, where)
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
            self._spent(time.thread_time() - began)

    def _take(
        self,
        header: ChannelHeader,
        reader: fl.MetadataRecordBatchReader,
        where: dict[str, Any],
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
            self._spent(time.thread_time() - began)
            held.header = header.closed_by(close)
            point("host.channel", **where)
            answer = self._close(held.header, close.kind, staged, where)
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

    def _spent(self, seconds: float) -> None:
        with self._lock:
            self.machine.spent(seconds)

    def _close(
        self,
        header: ChannelHeader,
        kind: str,
        staged: list[pa.RecordBatch],
        where: dict[str, Any],
    ) -> Answer:
        """Fetch the state that a channel needs, then apply the channel."""
        staged, places = split_serial(staged, header.partition)
        machine = self._chain or self.machine
        if header.chained and machine is self.machine:
            raise ProtocolError(f"host {self._host} serves one step only, not a chain of steps")
        while True:
            with self._lock, self._refusing_unfit(kind):
                need = machine.needs(header, kind, staged)
                if need is None:
                    began = time.perf_counter()
                    answer = machine.close_channel(header, kind, staged, places)
                    took_s = time.perf_counter() - began
                    for server in (self, *self._followers):
                        server.seal_if_complete(header)
                    break
            self._fetcher.bring(need)
        records = sum(batch.num_rows for batch in staged)
        work = {"records": records, "took_s": took_s, "until": self._ended}
        if slowed_s := point("host.work", **where, **work):
            self._spent(slowed_s)
        return answer

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

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """Stream entries of slots that have left this host to the host that owns them now."""
        with telling_errors():
            point("host.serve", **self._where)
            return serve.answer(self.machine, self._lock, self._will_reach, ticket.ticket)

    def seal_if_complete(self, header: ChannelHeader) -> None:
        """Start sealing if all channels of the epoch have closed. The caller holds the lock."""
        complete = self.machine.complete
        if complete is not None:
            self._begin_seal(*complete, header.partitions)

    def _begin_seal(self, epoch: int, run: int, partitions: int) -> None:
        """Write the delta in the background while the sink works, so that the driver's `seal` is quick."""
        delta, vitals = self.machine.seal(epoch, run, partitions)

        def write() -> tuple[DeltaRef, HostVitals]:
            where = self._where | {"epoch": epoch, "run": run}
            point("host.seal", **where)
            ref = self._store.write_delta(epoch, run, self._step, self._host, delta, self._tag)
            point("host.sealed", **where)
            return ref, vitals

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
                self._soft_writer, self._write_gathered, self._where, self._ended,
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
            self._store.write_delta(epoch, run, self._step, self._host, delta, tag)
            for delta, tag in [*((left, f"away-{self._tag}") for left in away), (own, self._tag)]
            if delta.num_rows
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
            vitals = self.machine.with_spent(vitals)
        return {"delta": ref, "vitals": vitals}

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
        whole, fetcher = self.machine.residence.whole, self._fetcher
        self._lock.wait_for(
            lambda: not whole.any() or fetcher.trouble is not None or self._ended.is_set(),
            self._timeout_s,
        )
        if whole.any():
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
        self, slots: Array, upto: int, tag: str, next_file: Callable[[], None]
    ) -> Compacted:
        table = self.machine.operator.table

        def check() -> None:
            point("host.compact", **self._where)
            next_file()

        return compact(self._store, self._step, table.codec, table.schema, slots, upto, tag, check)

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
            return
        self._live.end(StaleRunError(f"run {self._live.number} was given up"))
        with self._lock:
            self.machine.return_to(version)
