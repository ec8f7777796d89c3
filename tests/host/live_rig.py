"""Live hosts with real servers, and couriers that are simulated by the test."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import codec
from penstock.errors import PenstockError
from penstock.host.machine import HostMachine
from penstock.host.server import HostServer
from penstock.host.vitals import HostVitals
from penstock.operators.aggregate.aggregates import AggregatePlan, count, sum
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.steps import KeyedStep
from penstock.state.keys.codec import slots_of
from penstock.state.store.manifest import DeltaRef, Manifest
from penstock.state.store.store import Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint
from penstock.wire.live import (
    Back,
    CheckpointMessage,
    Chunk,
    Frame,
    Handing,
    Message,
    Reroute,
    StreamHeader,
    Time,
)

SLOTS, STEP = 4, "sums"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PLAN = AggregatePlan(SCHEMA, ["k"], {"t": sum("v"), "n": count()})
KEYS = list(range(16))
WIRE = PLAN.wire[ROWS]
ACCESS = Access(secrets.token_hex(8))
EPOCH = EpochTime(0, 0)


def slots(keys: list[int]) -> list[int]:
    hashes = PLAN.codec.encode(pa.record_batch({"k": pa.array(keys, pa.int64())})).hashes
    return [int(slot) for slot in slots_of(hashes, SLOTS)]


def newest(rows: Iterable[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return key -> (count, sum) of the row with the highest count."""
    latest: dict[int, tuple[int, int]] = {}
    for row in rows:
        latest[row["k"]] = max(latest.get(row["k"], (0, 0)), (row["n"], row["t"]))
    return latest


class Stream:
    """A courier's stream to one host. It sends frames, and keeps all answers."""

    def __init__(self, location: str, header: StreamHeader) -> None:
        self.rows: list[dict[str, Any]] = []
        self.backs: list[Back] = []
        self.failed: Exception | None = None
        self._endpoint = Endpoint(location, ACCESS)
        self._endpoint.greet(5_000)
        self._stack = ExitStack()
        self._writer, self._reader = self._stack.enter_context(
            self._endpoint.exchange(codec.encode(header), None)
        )
        try:
            with self._endpoint.hearing_errors():
                self._writer.begin(WIRE)
        except PenstockError as refused:
            self.failed = refused
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def send(self, frame: Frame, rows: pa.RecordBatch | None = None) -> None:
        facts = codec.encode(frame)
        if rows is None:
            self._writer.write_metadata(facts)
        else:
            self._writer.write_with_metadata(rows, facts)

    def _read(self) -> None:
        try:
            with self._endpoint.hearing_errors():
                while True:
                    chunk = self._reader.read_chunk()
                    if chunk.data is not None:
                        self.rows += chunk.data.to_pylist()
                    if chunk.app_metadata is not None:
                        self.backs.append(codec.decode(chunk.app_metadata.to_pybytes(), Back))
        except StopIteration:
            pass
        except PenstockError as failed:
            self.failed = failed

    @property
    def took(self) -> int:
        return max((back.took for back in self.backs if back.took is not None), default=-1)

    @property
    def messages(self) -> list[int]:
        return [back.message for back in self.backs if back.message is not None]

    @property
    def error(self) -> str | None:
        return next((back.error for back in self.backs if back.error is not None), None)

    def done(self) -> None:
        """Send nothing more, and let the host end the call."""
        self._writer.done_writing()
        self._thread.join(5)
        self.close()

    def close(self) -> None:
        """Cancel the stream."""
        self._reader.cancel()
        self._thread.join(5)
        self._endpoint.close()


class Rig:
    """Hosts of a step that sums, the couriers of a run, and the driver's orders."""

    def __init__(
        self, couriers: int = 2, hosts: int = 2, version: int = -1, **options: Any
    ) -> None:
        self.store = options.pop("store", None) or Store(f"memory://{secrets.token_hex(4)}")
        self.names = [f"{STEP}/{n}" for n in range(hosts)]
        self.couriers, self.run, self.number, self.epoch = couriers, -1, 0, version + 1
        self.owners = [slot % hosts for slot in range(SLOTS)]
        self.chunk = 0
        step = KeyedStep(STEP, SLOTS, PLAN)
        self.servers = [
            HostServer(
                HostMachine(step.operator(), **options),
                self.store,
                step=STEP,
                host=name,
                listen=LOOPBACK,
                access=ACCESS,
                tag=f"t{n}",
                timeout_ms=10_000,
                on_stop=lambda: None,
            )
            for n, name in enumerate(self.names)
        ]
        self.lines = [Endpoint(server.location, ACCESS) for server in self.servers]
        for host, line in enumerate(self.lines):
            line.call(
                "assign", 5_000, assignment=codec.to_plain(self.owned(host, version)), wait=False
            )
        self.streams: dict[tuple[int, int], Stream] = {}

    def owned(self, host: int, version: int) -> Assignment:
        mine = tuple(slot for slot in range(SLOTS) if self.owners[slot] == host)
        return Assignment(version, mine, (Incoming(mine, None),))

    def begin(self) -> None:
        """Begin a run."""
        self.run += 1
        for line in self.lines:
            line.call("join", 5_000, run=self.run, couriers=self.couriers)
        self.streams = {
            (courier, host): Stream(
                server.location, StreamHeader(STEP, self.run, courier, self.couriers)
            )
            for courier in range(self.couriers)
            for host, server in enumerate(self.servers)
        }

    def send(self, courier: int, *pairs: tuple[int, int]) -> None:
        """Send rows from a courier to the owners of their slots."""
        self.chunk += 1
        for host in range(len(self.servers)):
            some = [(k, v) for k, v in pairs if self.owners[slots([k])[0]] == host]
            if some:
                keys, values = zip(*some, strict=True)
                batch = pa.record_batch([pa.array(keys), pa.array(values)], schema=SCHEMA)
                sender = PLAN.sender(EPOCH)
                sender.combines = False
                (sent,) = sender.add(0, batch)
                frame = Frame(chunk=Chunk(self.chunk, ROWS))
                self.streams[courier, host].send(frame, sent.batch)

    def tell(self, message: Message, couriers: Iterable[int] | None = None) -> None:
        for courier in range(self.couriers) if couriers is None else couriers:
            for host in range(len(self.servers)):
                self.streams[courier, host].send(Frame(message=message))

    def checkpoint(self) -> Message:
        message = Message(checkpoint=CheckpointMessage(self.number, self.epoch, self.epoch - 1))
        self.number, self.epoch = self.number + 1, self.epoch + 1
        return message

    def move(self, moved: tuple[int, ...], source: int, target: int, **options: Any) -> Message:
        """Return a reroute. Rows that are sent after it go to the new owner."""
        handing = Handing(
            moved, self.names[source], self.servers[source].location,
            self.names[target], self.servers[target].location,
        )  # fmt: skip
        message = Message(reroute=Reroute(self.number, STEP, (handing,), **options))
        self.number += 1
        for slot in moved:
            self.owners[slot] = target
        return message

    def time(self, courier: int, time: Time) -> None:
        for host in range(len(self.servers)):
            self.streams[courier, host].send(Frame(time=time))

    def seal(self, epoch: int) -> list[HostVitals]:
        """Write a manifest with all hosts' deltas of an epoch, and return their vitals."""
        replies = [
            line.call("seal", 20_000, epoch=epoch, run=self.run, partitions=0)
            for line in self.lines
        ]
        refs = [codec.from_plain(ref, DeltaRef) for reply in replies for ref in reply["deltas"]]
        away = [ref for ref in refs if "-away-" in ref.file]
        own = [ref for ref in refs if "-away-" not in ref.file]
        manifest = Manifest(epoch, 0, -1, "", (*away, *own), {}, {}, 0, 0)
        self.store.write_manifest(manifest)
        return [codec.from_plain(reply["vitals"], HostVitals) for reply in replies]

    def rollback(self, version: int) -> None:
        for line in self.lines:
            line.call("rollback", 10_000, version=version, run=self.run)
        self.epoch, self.number = version + 1, 0
        self.close_streams()

    def stored(self, version: int) -> dict[int, tuple[int, int]]:
        """Return key -> (count, sum) of a version in the store."""
        reader = self.servers[0]._reader()
        reader.refresh(version)
        operator = KeyedStep(STEP, SLOTS, PLAN).operator()
        for slot in range(SLOTS):
            operator.table.load(reader.scan(slot, None, 1 << 30)[0])
        operator.begin(EPOCH)
        touched = operator.table.entries_in(np.arange(SLOTS))
        operator.table.touch(touched)  # type: ignore[union-attr]
        return newest(row for batch in operator.close().batches for row in batch.to_pylist())

    def received(self) -> dict[int, tuple[int, int]]:
        """Return key -> newest (count, sum) that any courier has received."""
        return newest(row for stream in self.streams.values() for row in list(stream.rows))

    def close_streams(self) -> None:
        for stream in self.streams.values():
            stream.close()

    def end(self) -> None:
        self.close_streams()
        for line in self.lines:
            line.close()
        for server in self.servers:
            server.end()
