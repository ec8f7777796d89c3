"""Fetching of missing state: from the previous host's frozen copy, or else from the store.

All missing keys of a channel go out in one request per source. Nothing here holds the host's lock
while it waits, so channels whose state is there are applied meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.codec import decode, encode
from penstock.errors import HostLostError, PenstockError
from penstock.faults import point
from penstock.host.machine import HostMachine
from penstock.host.residence import FrozenCopy, Need, NeedDue, NeedKeys, NeedSlots, Wanted
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.store.reader import StateReader
from penstock.state.table.table import KEY
from penstock.wire.flight import Endpoints, in_own_thread
from penstock.wire.messages import AFTER, UNKNOWN, CopyTicket

_PIECE = 4 << 20
"""Bytes of a slot that are brought from the store at a time."""
_ASK_S = 0.5
"""Seconds without an answer after which the driver is asked whether the other host still counts."""
_POLL_S = 1.0
"""How long a channel waits for slots at most before it looks again whether it still should."""

T = TypeVar("T")


class Fetcher:
    """Brings a host what it needs. `arrived` is the condition of the host's lock."""

    def __init__(
        self,
        machine: HostMachine,
        arrived: threading.Condition,
        reader: Callable[[], StateReader],
        token: str,
        timeout_ms: int,
        where: dict[str, str],
        counted_on: Callable[[str], bool],
    ) -> None:
        self._counted_on = counted_on
        self._machine, self._arrived = machine, arrived
        self._timeout_ms, self._where = timeout_ms, where
        self._readers, self._reading = reader, threading.Lock()
        self._reader: StateReader | None = None
        self._slot_reader: StateReader | None = None
        self._endpoints = Endpoints(token)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="fetch")
        self.trouble: PenstockError | None = None
        """Why the slot that rows wait for cannot be brought."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._endpoints.close()

    def bring(self, need: Need) -> None:
        """Fetch and install it, as far as possible: ask the machine again whether it is enough."""
        began = time.perf_counter()
        fetches = 0
        if isinstance(need, NeedSlots):
            whole = self._machine.residence.whole
            with self._arrived:
                self._arrived.wait_for(lambda: not whole[list(need.slots)].any(), _POLL_S)
                if self.trouble is not None and whole[list(need.slots)].any():
                    raise self.trouble
        else:
            point("host.fetch", **self._where)
            fetches = len(need.parts)
            if isinstance(need, NeedKeys):
                self._bring_keys(need)
            else:
                self._bring_due(need)
        with self._arrived:
            self._machine.waited((time.perf_counter() - began) * 1000, fetches)

    def slot(self, wanted: Wanted) -> Iterator[pa.Table]:
        """All entries of a slot, piece by piece."""
        if wanted.source is not None:
            try:
                ticket = CopyTicket("slot", wanted.source.version, (wanted.slot,))
                pieces = self._pieces(wanted.source, ticket)
                while (
                    piece := self._awaited(wanted.source, lambda: next(pieces, None))
                ) is not None:
                    yield piece
                return
            except PenstockError:
                self._gone(wanted.source)
        if self._slot_reader is None:
            self._slot_reader = self._readers()
        self._slot_reader.refresh(wanted.version)
        after: int | None = None
        while True:
            piece, after = self._slot_reader.scan(wanted.slot, after, _PIECE)
            yield piece
            if after is None:
                return

    # -- keys

    def _bring_keys(self, need: NeedKeys) -> None:
        found = self._each(list(need.parts), lambda part: self._find(*part, need.version))
        point("host.fetched", **self._where)
        with self._arrived:
            for (_, keys), tables in zip(need.parts, found, strict=True):
                self._machine.install(need.changes, keys, pa.concat_tables(tables))

    def _find(self, source: FrozenCopy | None, keys: Keys, version: int) -> list[pa.Table]:
        tables: list[pa.Table] = []
        unknown = np.arange(len(keys))
        if source is not None:
            codec = self._machine.operator.table.codec
            ticket = CopyTicket("keys", source.version, keys=codec.to_storage(keys))
            answer = self._asked(source, ticket)
            if answer is not None:
                unknown = np.frombuffer(answer.schema.metadata[UNKNOWN], np.int64)
                tables.append(answer.replace_schema_metadata(None))
        if len(unknown):
            tables.append(self._stored(version, lambda reader: reader.find(keys.take(unknown))))
        return tables

    # -- what is due

    def _bring_due(self, need: NeedDue) -> None:
        limits = need.limits
        found = self._each(list(need.parts), lambda part: self._due(*part, limits, need.version))
        point("host.fetched", **self._where)
        codec, next_due = self._machine.operator.table.codec, dict[str, int]()
        with self._arrived:
            for table, after in found:
                keys = codec.from_storage(table.column(KEY))
                if not self._machine.install(need.changes, keys, table):
                    return
                for name, value in after.items():
                    next_due[name] = min(value, next_due.get(name, value))
            self._machine.none_due_before(need.changes, next_due)

    def _due(
        self, source: FrozenCopy | None, slots: Array, limits: dict[str, int], version: int
    ) -> tuple[pa.Table, dict[str, int]]:
        if source is not None:
            ticket = CopyTicket("due", source.version, tuple(slots.tolist()), limits)
            answer = self._asked(source, ticket)
            if answer is not None:
                after = decode(answer.schema.metadata[AFTER], dict[str, int])
                return answer.replace_schema_metadata(None), after
        return self._stored(version, lambda reader: reader.due(slots, limits))

    # -- whom to ask

    def _asked(self, source: FrozenCopy, ticket: CopyTicket) -> pa.Table | None:
        """What a previous host answers; None if it cannot, and is not asked again."""

        def read() -> pa.Table:
            with self._endpoints.at(source.location).get(
                encode(ticket), self._timeout_ms
            ) as stream:
                return stream.read_all()

        try:
            return self._awaited(source, read)
        except PenstockError:
            self._gone(source)
            return None

    def _pieces(self, source: FrozenCopy, ticket: CopyTicket) -> Iterator[pa.Table]:
        with self._endpoints.at(source.location).get(encode(ticket), self._timeout_ms) as stream:
            for chunk in stream:
                yield pa.Table.from_batches([chunk.data])

    def _awaited(self, source: FrozenCopy, read: Callable[[], T]) -> T:
        """What is read from another host, as long as the driver counts on that one."""
        answer = in_own_thread(read, "fetch-wait")
        while True:
            try:
                return answer.result(_ASK_S)
            except TimeoutError:
                if answer.done():
                    continue
                if not self._counted_on(source.location):
                    raise HostLostError("a host was given up", location=source.location) from None

    def _stored(self, version: int, read: Callable[[StateReader], T]) -> T:
        with self._reading:
            if self._reader is None:
                self._reader = self._readers()
            needed = self._machine.residence.store_version
            # keys that are not here have not changed since: an older version tells the same of them
            if self._reader.version is None or self._reader.version < needed:
                self._reader.refresh(version)
            return read(self._reader)

    def _gone(self, source: FrozenCopy) -> None:
        with self._arrived:
            self._machine.residence.source_gone(source)

    def _each(self, parts: list[T], work: Callable[[T], object]) -> list:  # type: ignore[type-arg]
        if len(parts) == 1:
            return [work(parts[0])]
        return list(self._pool.map(work, parts))
