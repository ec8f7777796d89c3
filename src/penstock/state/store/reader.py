"""Reading of one step's state from the store, by key, by slot or by time.

A reader is at a version. It searches for a key in the files that may contain it, newest first: the
deltas since the layout, the runs, the snapshot of the key's slot. Files stay open from version to
version while they are needed, so moving to the next version is cheap.

The files of old versions may be removed while a reader uses them. It then moves to the newest version by
itself. A host reads only entries that nobody has changed since, so the result is the same at any version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.state.arrays import Array, filled_values, fixed_array, one_chunk
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.store.blocks import damaged, stored_keys
from penstock.state.store.manifest import (
    DeltaRef,
    SegmentRef,
    VersionChain,
    slot_groups,
    unpack_slots,
)
from penstock.state.store.merging import Newest, fitting, newest, no_rows, whole
from penstock.state.store.segment import SegmentFile, hash_order, stretches
from penstock.state.store.store import SegmentGone, Store
from penstock.state.table.table import HASH, KEY, PRESENT, SLOT

T = TypeVar("T")
Ref = DeltaRef | SegmentRef
_AT_ONCE = 64 << 20
"""Bytes of files that `due` reads at once."""


@dataclass(frozen=True)
class _Layer:
    """A delta or run. Its rows are newer than those of the layers after it."""

    ref: Ref
    covers: Array
    """Slot -> whether its rows in this file count (bool)."""


@dataclass(frozen=True)
class _View:
    """The files of a version."""

    version: int
    layers: tuple[_Layer, ...] = ()
    """Deltas and runs, newest first."""
    snapshots: dict[int, SegmentRef] = field(default_factory=dict)
    """Slot -> its snapshot."""

    def files(self, slots: Array) -> Iterator[tuple[Ref, Array]]:
        """The files of these slots, newest first, each with those of the slots that count in it."""
        for layer in self.layers:
            near = slots[layer.covers[slots]]
            if len(near):
                yield layer.ref, near
        for slot in slots.tolist():
            if slot in self.snapshots:
                yield self.snapshots[slot], np.array([slot])


class StateReader:
    """Reads one step's state at a version. Thread-safe."""

    def __init__(
        self, store: Store, step: str, codec: KeyCodec, schema: pa.Schema, slots: int
    ) -> None:
        self._store, self._step, self._codec = store, step, codec
        self._schema, self._slots = schema, slots
        self._view: _View | None = None
        self._chain: VersionChain | None = None
        self._open: dict[tuple[str, int | None], SegmentFile] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> int | None:
        """The version that is read; None before the first `refresh`."""
        view = self._view
        return None if view is None else view.version

    def refresh(self, version: int) -> None:
        """Move to this version, which must be sealed. Version -1 has no entries."""
        with self._lock:
            self._chain = None if version < 0 else self._store.chain(version, self._chain)
            view = _View(-1) if self._chain is None else self._viewed(self._chain)
            files = [layer.ref for layer in view.layers] + list(view.snapshots.values())
            needed = {(ref.file, ref.checksum) for ref in files}
            self._open = {k: segment for k, segment in self._open.copy().items() if k in needed}
            self._view = view

    def find(self, keys: Keys) -> pa.Table:
        """Present entries of these keys, complete, in any order."""
        ordered = keys.take(hash_order(keys.hashes))
        return self._steadily(lambda view: whole(self._found(view, ordered)))

    def scan(self, slot: int, after: int | None, about_bytes: int) -> tuple[pa.Table, int | None]:
        """Read a piece of a slot: present entries with hashes above `after`, about `about_bytes` bytes.

        Also returns the `after` of the next piece; None if this was the last one.
        """
        return self._steadily(lambda view: self._piece(view, slot, after, about_bytes))

    def due(self, slots: Array, limits: dict[str, int]) -> tuple[pa.Table, dict[str, int]]:
        """Present entries of these slots that are due: a time in some column is at or before its limit.

        `limits` maps columns of times (0: none) to limits. Also returns the earliest time after its limit of
        each column that has one.
        """
        wanted = np.unique(slots).astype(np.int64)
        return self._steadily(lambda view: self._due(view, wanted, limits))

    # -- how it works

    def _steadily(self, work: Callable[[_View], T]) -> T:
        try:
            return work(self._standing())
        except SegmentGone:
            self.refresh(max(self._store.epochs(), default=-1))
            try:
                return work(self._standing())
            except SegmentGone as gone:
                raise self._store.lacks(str(gone)) from gone

    def _standing(self) -> _View:
        view = self._view
        assert view is not None, "call refresh first"
        return view

    def _viewed(self, chain: VersionChain) -> _View:
        files = chain.step(self._step)
        deltas = [ref for _, ref in chain.deltas(self._step)]
        refs: list[Ref] = [*deltas[::-1], *files.runs[::-1]]
        layers = [_Layer(ref, self._covers(ref.slots)) for ref in refs]
        return _View(chain.version, tuple(layers), files.snapshots)

    def _covers(self, packed: str) -> Array:
        if not packed:
            return np.ones(self._slots, np.bool_)
        covers, named = np.zeros(self._slots, np.bool_), unpack_slots(packed)
        if len(named) and named[-1] >= self._slots:
            what = f"a version of step {self._step} in {self._store.uri}"
            damaged(what, f"it names slot {named[-1]}, but there are {self._slots} slots")
        covers[named] = True
        return covers

    def _segment(self, ref: Ref) -> SegmentFile:
        key = (ref.file, ref.checksum)
        segment = self._open.get(key)
        if segment is None:
            segment = self._open[key] = self._store.open_segment(ref, self._codec)
        return segment

    def _found(self, view: _View, keys: Keys) -> pa.Table:
        """The newest rows of these keys, which must be sorted by hash."""
        rows = Newest(self._schema, len(keys))
        slots = slots_of(keys.hashes, self._slots)
        left = np.arange(len(keys))
        for layer in view.layers:
            if len(left) == 0:
                break
            near = left[layer.covers[slots[left]]]
            if len(near) and self._look(layer.ref, keys, near, rows):
                left = left[~rows.settled(left)]
        for slot, lo, hi in stretches(slots[left]):
            snapshot = view.snapshots.get(slot)
            if snapshot is not None:
                self._look(snapshot, keys, left[lo:hi], rows)
        return rows.table()

    def _look(self, ref: Ref, keys: Keys, which: Array, rows: Newest) -> bool:
        segment = self._segment(ref)
        positions, matches = segment.find(keys, which)
        if len(positions) == 0:
            return False
        rows.put(positions, self._fitting(segment.take(matches), segment))
        return True

    def _piece(
        self, view: _View, slot: int, after: int | None, about_bytes: int
    ) -> tuple[pa.Table, int | None]:
        spans = []
        for ref, _ in view.files(np.array([slot])):
            segment = self._segment(ref)
            start, stop = segment.span(slot)
            if after is not None:
                start = max(start, segment.after(after))
            if start < stop:
                spans.append((segment, start, stop))
        size = sum((stop - start) * segment.row_bytes for segment, start, stop in spans)
        upto = None
        if size > about_bytes:
            segment, start, stop = max(spans, key=lambda span: span[2] - span[1])
            share = int((stop - start) * about_bytes / size)
            upto = segment.hash_at(min(stop - 1, start + share))
            ends = [min(stop, segment.after(upto)) for segment, _, stop in spans]
            if all(end == stop for end, (_, _, stop) in zip(ends, spans, strict=True)):
                upto = None
            spans = [(s, start, end) for (s, start, _), end in zip(spans, ends, strict=True)]
        tables = [self._fitting(s.between(start, stop), s) for s, start, stop in spans]
        return whole(newest(tables, self._schema, self._codec)), upto

    def _due(
        self, view: _View, slots: Array, limits: dict[str, int]
    ) -> tuple[pa.Table, dict[str, int]]:
        names = [HASH, KEY, SLOT, PRESENT, *limits]
        schema = pa.schema([self._schema.field(name) for name in names])
        entries, beyond = [no_rows(self._schema)], dict[str, int]()
        for some in slot_groups(slots, self._sizes(view), _AT_ONCE):
            tables = (self._in_slots(*file).select(names) for file in view.files(some))
            rows = newest(tables, schema, self._codec)
            rows = rows.filter(rows.column(PRESENT))
            due = np.zeros(rows.num_rows, np.bool_)
            for name, limit in limits.items():
                times = filled_values(one_chunk(rows.column(name)))
                due |= (times != 0) & (times <= limit)
                later = times[(times != 0) & (times > limit)]
                if len(later):
                    least = int(later.min())
                    beyond[name] = min(least, beyond.get(name, least))
            keys = stored_keys(rows.filter(fixed_array(due, pa.bool_())), self._codec)
            if len(keys):
                entries.append(whole(self._found(view, keys.take(hash_order(keys.hashes)))))
        return pa.concat_tables(entries), beyond

    def _sizes(self, view: _View) -> Array:
        """Approximate bytes of files for each slot."""
        sizes = np.zeros(self._slots)
        for layer in view.layers:
            sizes[layer.covers] += layer.ref.size / max(1, int(layer.covers.sum()))
        for slot, ref in view.snapshots.items():
            sizes[slot] += ref.size
        return sizes

    def _in_slots(self, ref: Ref, slots: Array) -> pa.Table:
        segment = self._segment(ref)
        return self._fitting(segment.in_slots(slots), segment)

    def _fitting(self, table: pa.Table, segment: SegmentFile) -> pa.Table:
        return fitting(table, self._schema, segment.name)
