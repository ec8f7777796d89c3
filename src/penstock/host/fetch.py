"""Fetching of missing state: from the previous host's frozen copy, or else from the store.

All missing keys of a channel go out in one request per source. Nothing here holds the host's lock
while it waits, so channels whose state is there are applied meanwhile.

A slot that moves in a live run leaves changes behind that no manifest has yet: only the previous host
knows them. The store is asked in its place as soon as it has them, and before that nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.codec import decode, encode
from penstock.errors import HostLostError, PenstockError, StaleRunError
from penstock.faults import point
from penstock.host.holdings import Holdings
from penstock.host.residence import (
    NOT_CUT,
    FrozenCopy,
    Need,
    NeedDue,
    NeedKeys,
    NeedSlots,
    Wanted,
)
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.store.reader import StateReader
from penstock.state.table.table import KEY
from penstock.wire.access import Access
from penstock.wire.flight import AnswerWatch, Endpoints, in_own_thread, no_answer
from penstock.wire.messages import AFTER, LACKING, UNKNOWN, CopyTicket

_PIECE = 4 << 20
"""Bytes of a slot that are brought from the store at a time."""
_ASK_S = 0.5
"""Seconds without an answer after which the driver is asked whether the other host still counts."""
_AGAIN_S = 0.05
"""Pause before a host that did not answer is asked again, where the store does not have its changes yet."""
_POLL_S = 1.0
"""How long a channel waits for slots at most before it looks again whether it still should."""

T = TypeVar("T")


class Fetcher:
    """Brings a host what it needs. `arrived` is the condition of the host's lock; `newest` tells the
    newest version in the store."""

    def __init__(
        self,
        holdings: Holdings,
        arrived: threading.Condition,
        reader: Callable[[], StateReader],
        newest: Callable[[], int],
        access: Access,
        timeout_ms: int,
        lost_ms: int,
        where: dict[str, str],
        counted_on: Callable[[str], bool],
    ) -> None:
        self._counted_on, self._newest = counted_on, newest
        self._ended = threading.Event()
        self._holdings, self._arrived = holdings, arrived
        self._timeout_ms, self._lost_ms, self._where = timeout_ms, lost_ms, where
        self._readers, self._reading = reader, threading.Lock()
        self._reader: StateReader | None = None
        self._slot_reader: StateReader | None = None
        self._endpoints = Endpoints(access)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="fetch")
        self.trouble: PenstockError | None = None
        """Why the slot that rows wait for cannot be brought."""

    def close(self) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._endpoints.close()

    def bring(self, need: Need) -> None:
        """Fetch and install it, as far as possible: ask the machine again whether it is enough."""
        began = time.perf_counter()
        fetches = 0
        if isinstance(need, NeedSlots):
            whole = self._holdings.residence.whole
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
            self._holdings.waited((time.perf_counter() - began) * 1000, fetches)

    def slot(self, wanted: Wanted) -> Iterator[pa.Table]:
        """All entries of a slot, piece by piece."""
        source, slots = wanted.source, np.array([wanted.slot])
        needed = self._came(slots)
        if source is not None:
            ticket = CopyTicket("slot", source.version, (wanted.slot,), run=source.run)
            try:
                pieces = self._pieces(source, ticket)
                lacking = self._awaited(source, lambda: next(pieces))
                while (piece := self._awaited(source, lambda: next(pieces, None))) is not None:
                    yield piece
                if lacking is None:
                    return
                needed = lacking
            except PenstockError:
                if not self._in_store(needed):
                    raise
                self._gone(source)
                source = None
        if self._slot_reader is None:
            self._slot_reader = self._readers()
        self._stand(self._slot_reader, wanted.version, needed, wanted.changes)
        after: int | None = None
        while True:
            piece, after = self._slot_reader.scan(wanted.slot, after, _PIECE)
            if source is not None:
                assert self._slot_reader.version is not None
                version = self._slot_reader.version
                piece = self._unchanged(source, piece, version, wanted.changes)
            yield piece
            if after is None:
                return

    # -- keys

    def _bring_keys(self, need: NeedKeys) -> None:
        found = self._each(list(need.parts), lambda part: self._find(*part, need))
        point("host.fetched", **self._where)
        with self._arrived:
            for (_, keys), tables in zip(need.parts, found, strict=True):
                self._holdings.install(need, keys, pa.concat_tables(tables))

    def _find(self, source: FrozenCopy | None, keys: Keys, need: NeedKeys) -> list[pa.Table]:
        slots = slots_of(keys.hashes, self._holdings.operator.table.slots)
        tables, needed = list[pa.Table](), self._came(slots)
        if source is not None and (answer := self._keys_of(source, keys, need.changes)):
            rows, unknown, lacking = answer
            tables.append(rows)
            keys, needed = keys.take(unknown), needed if lacking is None else lacking
        if len(keys):
            tables.append(self._stored(need, needed, lambda reader: reader.find(keys)))
        return tables

    def _keys_of(
        self, source: FrozenCopy, keys: Keys, changes: int
    ) -> tuple[pa.Table, Array, int | None] | None:
        """The entries of these keys in a copy, the places of those that it does not know, and what
        version of the store does; None if it does not answer, and the store has all."""
        codec = self._holdings.operator.table.codec
        stored = codec.to_storage(keys)
        ticket = CopyTicket("keys", source.version, keys=stored, run=source.run)
        answer = self._asked(
            source, ticket, slots_of(keys.hashes, self._holdings.operator.table.slots), changes
        )
        if answer is None:
            return None
        unknown = np.frombuffer(answer.schema.metadata[UNKNOWN], np.int64)
        return answer.replace_schema_metadata(None), unknown, _lacking(answer.schema)

    def _unchanged(
        self, source: FrozenCopy, stored: pa.Table, version: int, changes: int
    ) -> pa.Table:
        """Those rows of the store, as of a version, of whose keys a copy that is not complete knows
        nothing. The copy may have forgotten meanwhile what it had removed of them, or be gone: then a later
        version has to be read."""
        table = self._holdings.operator.table
        keys = table.codec.from_storage(stored.column(KEY))
        if not len(keys):
            return stored
        answer = self._keys_of(source, keys, changes)
        lacking = self._came(slots_of(keys.hashes, table.slots)) if answer is None else answer[2]
        if lacking is not None and lacking > version:
            raise StaleRunError("a copy of slots has changed while it was read")
        return stored if answer is None else stored.take(answer[1])

    # -- what is due

    def _bring_due(self, need: NeedDue) -> None:
        found = self._each(list(need.parts), lambda part: self._due(*part, need))
        point("host.fetched", **self._where)
        codec, next_due = self._holdings.operator.table.codec, dict[str, int]()
        with self._arrived:
            for tables, afters in found:
                table = pa.concat_tables(tables)
                keys = codec.from_storage(table.column(KEY))
                if not self._holdings.install(need, keys, table):
                    return
                for name, value in ((n, v) for after in afters for n, v in after.items()):
                    next_due[name] = min(value, next_due.get(name, value))
            self._holdings.none_due_before(need, next_due)

    def _due(
        self, source: FrozenCopy | None, slots: Array, need: NeedDue
    ) -> tuple[list[pa.Table], list[dict[str, int]]]:
        tables, afters, needed = list[pa.Table](), list[dict[str, int]](), self._came(slots)
        answer = None
        if source is not None:
            asked = tuple(slots.tolist())
            ticket = CopyTicket("due", source.version, asked, need.limits, run=source.run)
            answer = self._asked(source, ticket, slots, need.changes)
        if answer is not None:
            tables.append(answer.replace_schema_metadata(None))
            afters.append(decode(answer.schema.metadata[AFTER], dict[str, int]))
            lacking = _lacking(answer.schema)
            if lacking is None:
                return tables, afters
            needed = lacking
        version, (rows, after) = self._stored(
            need, needed, lambda reader: (reader.version or 0, reader.due(slots, need.limits))
        )
        if answer is not None and source is not None:
            rows = self._unchanged(source, rows, version, need.changes)
        return [*tables, rows], [*afters, after]

    # -- whom to ask

    def _asked(
        self, source: FrozenCopy, ticket: CopyTicket, slots: Array, changes: int
    ) -> pa.Table | None:
        """What a previous host answers; None if it cannot, and is not asked again. As long as the store
        does not have what that host did to these slots, it is; unless it cannot be reached: then the run
        cannot go on, and its couriers tell the driver why."""

        def read() -> pa.Table:
            with self._endpoints.at(source.location).get(
                encode(ticket), self._timeout_ms
            ) as stream:
                return stream.read_all()

        began = time.monotonic()
        while True:
            try:
                return self._awaited(source, read)
            except PenstockError as failed:
                if self._in_store(self._came(slots)):
                    self._gone(source)
                    return None
                silent_ms = (time.monotonic() - began) * 1000
                if isinstance(failed, HostLostError) and silent_ms > self._lost_ms:
                    raise no_answer([source.location], silent_ms) from failed
                self._pause(changes)

    def _pieces(self, source: FrozenCopy, ticket: CopyTicket) -> Iterator[Any]:
        """What version of the store knows what the copy does not, and then the copy's entries."""
        with self._endpoints.at(source.location).get(encode(ticket), self._timeout_ms) as stream:
            yield _lacking(stream.schema)
            for chunk in stream:
                yield pa.Table.from_batches([chunk.data]).replace_schema_metadata(None)

    def _awaited(self, source: FrozenCopy, read: Callable[[], T]) -> T:
        """What is read from another host, as long as the driver counts on that one and it can be reached."""
        answer = in_own_thread(read, "fetch-wait")
        watch = AnswerWatch([self._endpoints.at(source.location)], self._lost_ms, _ASK_S)
        while True:
            try:
                return answer.result(_ASK_S)
            except TimeoutError:
                if answer.done():
                    continue
                if not self._counted_on(source.location):
                    raise HostLostError("a host was given up", location=source.location) from None
                watch.ask()

    def _came(self, slots: Array) -> int:
        """The version at which the store has all that was done to these slots before they came."""
        residence = self._holdings.residence
        return max(residence.store_version, int(residence.came[slots].max(initial=-1)))

    def _in_store(self, version: int) -> bool:
        known = self._holdings.version
        if known is not None and version <= known:
            return True
        return version < NOT_CUT and version <= self._newest()

    def _stored(self, need: NeedKeys | NeedDue, needed: int, read: Callable[[StateReader], T]) -> T:
        with self._reading:
            if self._reader is None:
                self._reader = self._readers()
            # keys that are not here have not changed since: an older version tells the same of them
            if self._reader.version is None or self._reader.version < needed:
                self._stand(self._reader, need.version, needed, need.changes)
            return read(self._reader)

    def _stand(self, reader: StateReader, version: int, needed: int, changes: int) -> None:
        """Let a reader stand at a version, or, when it is there, at one that is needed."""
        while not self._in_store(needed):
            self._pause(changes)
        reader.refresh(max(version, needed))

    def _pause(self, changes: int) -> None:
        """Wait a moment, unless nobody wants the answer any more."""
        if self._ended.wait(_AGAIN_S) or changes != self._holdings.residence.changes:
            raise StaleRunError("what a host asks for is not wanted any more")

    def _gone(self, source: FrozenCopy) -> None:
        with self._arrived:
            self._holdings.residence.source_gone(source)

    def _each(self, parts: list[T], work: Callable[[T], object]) -> list:  # type: ignore[type-arg]
        if len(parts) == 1:
            return [work(parts[0])]
        return list(self._pool.map(work, parts))


def _lacking(schema: pa.Schema) -> int | None:
    """What an answer says of the version that the store must have."""
    told = (schema.metadata or {}).get(LACKING)
    return None if told is None else decode(told, int)
