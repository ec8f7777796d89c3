"""Fetching of missing state: from the previous host's frozen copy, or else from the store.

All missing keys of a channel go out in one request per source. Nothing here holds the host's lock
while it waits, so that channels whose state is present are applied meanwhile.

When a slot moves in a live run, some of its changes are in no manifest yet. Only the previous host has
them. The store can replace that host only once a manifest has those changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk
from penstock.state.keys.codec import Keys
from penstock.state.store.reader import StateReader
from penstock.state.table.table import HASH, KEY
from penstock.wire.access import Access
from penstock.wire.flight import AnswerWatch, Endpoints, in_own_thread, no_answer
from penstock.wire.messages import AFTER, LACKING, UNKNOWN, CopyTicket

_PIECE = 4 << 20
"""Bytes of a slot per read from the store."""
_ASK_S = 0.5
"""Seconds without an answer before the driver is asked whether the other host is still alive."""
_AGAIN_S = 0.05
"""Seconds between retries of a host that does not answer, while the store does not have its changes yet."""
_POLL_S = 1.0
"""Seconds that a channel waits for slots before it checks again whether it still needs them."""

T = TypeVar("T")


class Fetcher:
    """Fetches the state that a host needs.

    `arrived` is the condition of the host's lock. `newest` returns the newest version in the store.
    `counted_on` asks the driver whether it still relies on the host at a location.
    """

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
        """Error that keeps the slots that rows wait for from being fetched; None if there is none."""

    def close(self) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._endpoints.close()

    def begin(self, need: Need) -> Future[None]:
        """Call `bring` in its own thread."""
        return in_own_thread(lambda: self.bring(need), "fetch")

    def bring(self, need: Need) -> None:
        """Fetch and install state, as far as possible. The caller checks again whether that was enough."""
        began = time.perf_counter()
        fetches = 0
        if isinstance(need, NeedSlots):
            residence, slots = self._holdings.residence, list(need.slots)
            with self._arrived:
                self._arrived.wait_for(lambda: not residence.whole[slots].any(), _POLL_S)
                if self.trouble is not None and residence.whole[slots].any():
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
        """Yield all entries of a slot, piece by piece."""
        source, slots = wanted.source, np.array([wanted.slot])
        needed = self._came(slots)
        if source is not None:
            ticket = CopyTicket(
                "slot", source.version, (wanted.slot,), run=source.run, at_leisure=wanted.at_leisure
            )
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
        for piece in self._scan(self._slot_reader, wanted.slot):
            if source is not None:
                assert self._slot_reader.version is not None
                version = self._slot_reader.version
                piece = self._unchanged(source, piece, version, wanted.changes)
            yield piece

    def _scan(self, reader: StateReader, slot: int) -> Iterator[pa.Table]:
        """Yield all entries of a slot in the store, piece by piece. Files are by hash slot."""
        slot_map = self._holdings.operator.table.slot_map
        ranges, parent = slot_map.ranges(slot), slot_map.parent(slot)
        after = ranges[0][0] - 1 if ranges and ranges[0][0] else None
        while ranges:
            piece, after = reader.scan(parent, after, _PIECE)
            yield self._of_slots(piece, np.array([slot]))
            if after is None or after >= ranges[-1][1]:
                return

    def _of_slots(self, rows: pa.Table, slots: Array) -> pa.Table:
        """Return those rows of the store that are in these slots, not in others split off or on."""
        slot_map = self._holdings.operator.table.slot_map
        if not slot_map.splits or not rows.num_rows:
            return rows
        held = slot_map.of(fixed_values(one_chunk(rows.column(HASH))))
        return rows.filter(fixed_array(np.isin(held, slots), pa.bool_()))

    def _slots(self, keys: Keys) -> Array:
        return self._holdings.operator.table.slot_map.of(keys.hashes)

    # -- keys

    def _bring_keys(self, need: NeedKeys) -> None:
        fetched = self._each(list(need.parts), lambda part: self._find(*part, need))
        point("host.fetched", **self._where)
        with self._arrived:
            for (_, keys), tables in zip(need.parts, fetched, strict=True):
                self._holdings.install(need, keys, pa.concat_tables(tables))

    def _find(self, source: FrozenCopy | None, keys: Keys, need: NeedKeys) -> list[pa.Table]:
        slots = self._slots(keys)
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
        """Ask a frozen copy for the entries of these keys; None if it is gone and the store has them all.

        Also returns the indices of keys that the copy does not know, and the store version that has them.
        """
        codec = self._holdings.operator.table.codec
        stored = codec.to_storage(keys)
        ticket = CopyTicket("keys", source.version, keys=stored, run=source.run)
        answer = self._asked(source, ticket, self._slots(keys), changes)
        if answer is None:
            return None
        unknown = np.frombuffer(answer.schema.metadata[UNKNOWN], np.int64)
        return answer.replace_schema_metadata(None), unknown, _lacking(answer.schema)

    def _unchanged(
        self, source: FrozenCopy, stored: pa.Table, version: int, changes: int
    ) -> pa.Table:
        """Return those rows of the store, at a version, whose keys an incomplete copy does not know.

        The copy may meanwhile be gone, or may have forgotten which keys it removed. Then a later version
        must be read, and StaleRunError is raised.
        """
        table = self._holdings.operator.table
        keys = table.codec.from_storage(stored.column(KEY))
        if not len(keys):
            return stored
        answer = self._keys_of(source, keys, changes)
        lacking = self._came(self._slots(keys)) if answer is None else answer[2]
        if lacking is not None and lacking > version:
            raise StaleRunError("the copy of these slots changed while it was read")
        return stored if answer is None else stored.take(answer[1])

    # -- entries that are due

    def _bring_due(self, need: NeedDue) -> None:
        fetched = self._each(list(need.parts), lambda part: self._due(*part, need))
        point("host.fetched", **self._where)
        codec, next_due = self._holdings.operator.table.codec, dict[str, int]()
        with self._arrived:
            for tables, afters in fetched:
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
            numbers = tuple(slots.tolist())
            ticket = CopyTicket("due", source.version, numbers, need.limits, run=source.run)
            answer = self._asked(source, ticket, slots, need.changes)
        if answer is not None:
            tables.append(answer.replace_schema_metadata(None))
            afters.append(decode(answer.schema.metadata[AFTER], dict[str, int]))
            lacking = _lacking(answer.schema)
            if lacking is None:
                return tables, afters
            needed = lacking
        slot_map = self._holdings.operator.table.slot_map
        if slots.max() >= slot_map.count:
            raise StaleRunError("the slots of this request are no longer split")
        parents = slot_map.parents[slots]
        parents = parents[parents < slot_map.hashed]  # vacant ones have nothing
        version, (rows, after) = self._stored(
            need, needed, lambda reader: (reader.version or 0, reader.due(parents, need.limits))
        )
        rows = self._of_slots(rows, slots)
        if answer is not None and source is not None:
            rows = self._unchanged(source, rows, version, need.changes)
        return [*tables, rows], [*afters, after]

    # -- whom to ask

    def _asked(
        self, source: FrozenCopy, ticket: CopyTicket, slots: Array, changes: int
    ) -> pa.Table | None:
        """Return a previous host's answer; None if it fails and the store has its changes of these slots.

        Until the store has those changes, the request is retried. If the host cannot be reached for
        `lost_ms`, the run cannot go on: an error is raised, and couriers pass it on to the driver.
        """

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
        """Yield the store version that has what the copy lacks, or None; then the copy's entries."""
        with self._endpoints.at(source.location).get(encode(ticket), self._timeout_ms) as stream:
            yield _lacking(stream.schema)
            for chunk in stream:
                yield pa.Table.from_batches([chunk.data]).replace_schema_metadata(None)

    def _awaited(self, source: FrozenCopy, read: Callable[[], T]) -> T:
        """Return the result of `read` from another host; raise HostLostError if that host is lost."""
        answer = in_own_thread(read, "fetch-wait")
        watch = AnswerWatch([self._endpoints.at(source.location)], self._lost_ms, _ASK_S)
        while True:
            try:
                return answer.result(_ASK_S)
            except TimeoutError:
                if answer.done():
                    continue
                if not self._counted_on(source.location):
                    raise HostLostError(
                        "the driver gave up the host that state is fetched from",
                        location=source.location,
                    ) from None
                watch.ask()

    def _came(self, slots: Array) -> int:
        """Return the version at which the store has all changes of these slots from before they came."""
        residence = self._holdings.residence
        came = residence.came[slots[slots < len(residence.came)]]
        return max(residence.store_version, int(came.max(initial=-1)))

    def _in_store(self, version: int) -> bool:
        known = self._holdings.version
        if known is not None and version <= known:
            return True
        return version < NOT_CUT and version <= self._newest()

    def _stored(self, need: NeedKeys | NeedDue, needed: int, read: Callable[[StateReader], T]) -> T:
        with self._reading:
            if self._reader is None:
                self._reader = self._readers()
            # Keys that are not here have not changed since, so an older version has the same entries.
            if self._reader.version is None or self._reader.version < needed:
                self._stand(self._reader, need.version, needed, need.changes)
            return read(self._reader)

    def _stand(self, reader: StateReader, version: int, needed: int, changes: int) -> None:
        """Move a reader to a version, or to a later one that is needed: wait until the store has that one."""
        while not self._in_store(needed):
            self._pause(changes)
        reader.refresh(max(version, needed))

    def _pause(self, changes: int) -> None:
        """Wait a moment; raise StaleRunError if the answer is no longer wanted."""
        if self._ended.wait(_AGAIN_S) or changes != self._holdings.residence.changes:
            raise StaleRunError("the slots of this request have changed: its answer is not needed")

    def _gone(self, source: FrozenCopy) -> None:
        with self._arrived:
            self._holdings.residence.source_gone(source)

    def _each(self, parts: list[T], work: Callable[[T], object]) -> list:  # type: ignore[type-arg]
        if len(parts) == 1:
            return [work(parts[0])]
        return list(self._pool.map(work, parts))


def _lacking(schema: pa.Schema) -> int | None:
    """Return the store version that an answer says must be read too; None if it says none."""
    version = (schema.metadata or {}).get(LACKING)
    return None if version is None else decode(version, int)
