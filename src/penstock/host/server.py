"""The shell around a host machine: a Flight server, the store, and the background sealer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.flight as fl

from penstock.host.machine import HostMachine, HostVitals
from penstock.state.store import DeltaRef, Store
from penstock.wire.flight import TokenServer, telling_errors
from penstock.wire.messages import CLOSE, ChannelHeader, dead_to_bytes


class HostServer(TokenServer):
    """Serves one host machine.

    Couriers speak `do_exchange`, one call per channel. The driver's orders are actions: `restore`,
    `seal`, `rollback`, `stop`. One lock keeps the machine's calls apart; staging a channel's input
    and writing a delta happen outside it.
    """

    def __init__(
        self,
        machine: HostMachine,
        store: Store,
        *,
        step: str,
        host: str,
        address: str,
        token: str,
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(address, 0, token)
        self._machine = machine
        self._store = store
        self._step, self._host = step, host
        self._lock = threading.Lock()
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="sealer")
        self._seal: tuple[int, int, Future[tuple[DeltaRef, HostVitals]]] | None = None
        self._on_stop = on_stop
        self.actions = {
            "restore": self._restore,
            "seal": self._answer_seal,
            "rollback": self._rollback,
            "stop": self._stop,
            "memory": lambda _: {"rss": psutil.Process().memory_info().rss},
        }

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        with telling_errors():
            header = ChannelHeader.from_bytes(descriptor.command)
            staged, kind = _stage(reader)
            if kind is None:
                return
            with self._lock:
                answer = self._machine.close_channel(header, kind, staged)
                complete = self._machine.complete
                if complete is not None:
                    self._begin_seal(*complete, header.partitions)
            writer.begin(self._machine.operator.output)
            for batch in answer.batches:
                writer.write_batch(batch)
            if answer.dead:
                writer.write_metadata(dead_to_bytes(answer.dead))

    def _begin_seal(self, epoch: int, run: int, partitions: int) -> None:
        """Write the delta while the sink still works, so that the driver's seal finds it done."""
        delta, vitals = self._machine.seal(epoch, run, partitions)

        def write() -> tuple[DeltaRef, HostVitals]:
            return self._store.write_delta(epoch, run, self._step, self._host, delta), vitals

        self._seal = (epoch, run, self._sealer.submit(write))

    def _answer_seal(self, order: dict[str, Any]) -> dict[str, Any]:
        epoch, run = order["epoch"], order["run"]
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
        return {"delta": asdict(ref), "vitals": asdict(vitals)}

    def _restore(self, order: dict[str, Any]) -> dict[str, Any]:
        version, slots = order["version"], np.array(order["slots"], dtype=np.int32)
        chain = self._store.chain(version) if version >= 0 else []
        refs = [ref for manifest in chain for ref in manifest.deltas if ref.step == self._step]
        with self._lock:
            self._machine.restore(version, map(self._store.read_delta, refs), slots)
            return {"entries": len(self._machine.operator.table)}

    def _rollback(self, order: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._machine.rollback(order["version"])
            self._seal = None
        return {}

    def _stop(self, order: dict[str, Any]) -> dict[str, Any]:
        self._on_stop()
        return {}


def _stage(reader: fl.MetadataRecordBatchReader) -> tuple[list[pa.RecordBatch], str | None]:
    """All batches of a channel and what they are; None for that if the channel broke off."""
    staged: list[pa.RecordBatch] = []
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return staged, None
        if chunk.data is not None:
            staged.append(chunk.data)
        word = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        if word.startswith(CLOSE):
            return staged, word.removeprefix(CLOSE).decode()
