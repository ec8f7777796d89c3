"""The files of one step at one version, and their merged content.

Like the store's `reader`, but for inspecting a checkpoint from outside: rows always belong to the requested
version, each row is known with its file, and the columns come from the files, since there is no flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.console.checkpoint.facts import Change, FileSum, Kind, SnapshotSum
from penstock.errors import CheckpointError
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.store.manifest import (
    DeltaRef,
    SegmentRef,
    VersionChain,
    slot_groups,
    unpack_slots,
)
from penstock.state.store.merging import fitting, newest, whole
from penstock.state.store.segment import SegmentFile
from penstock.state.store.store import SegmentGone, Store
from penstock.state.table.patches import GONE, PATCH, same_companions
from penstock.state.table.table import HASH, KEY, PRESENT, SLOT, ColumnTable

FRAME = (HASH, KEY, SLOT, PRESENT)
"""Columns that every step has."""
_AT_ONCE = 64 << 20
"""Bytes of files merged in memory at once."""


@dataclass(frozen=True)
class StateFile:
    """One file of a step in a version."""

    kind: Kind
    epoch: int
    """Epoch of a delta; for runs and snapshots, the newest epoch that they include."""
    ref: DeltaRef | SegmentRef
    slots: Array
    """Slots for which the file is valid in this version, ascending."""

    @property
    def slot_bytes(self) -> float:
        """Average bytes per slot in the file."""
        if isinstance(self.ref, SegmentRef):
            return self.ref.slot_bytes
        return self.ref.size / max(1, len(self.slots))


class StepFiles:
    """One step at one version."""

    def __init__(
        self, store: Store, chain: VersionChain, step: str, codec: KeyCodec, slots: int
    ) -> None:
        self._store, self._version, self._codec, self._slots = store, chain.version, codec, slots
        self.files = _files(chain, step, slots)
        """The files, oldest first."""
        self._open: dict[str, SegmentFile] = {}

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the returned rows: the newest file's. Older files may lack patch columns."""
        return self._segment(self.files[-1]).schema

    def total(self, kind: Kind) -> FileSum:
        """Number and size of the files of a kind."""
        sizes = [file.ref.size for file in self.files if file.kind == kind]
        return FileSum(len(sizes), sum(sizes))

    def share(self, kind: Kind, slots: Array) -> FileSum:
        """Number of files of a kind that contain some of these slots, and these slots' bytes in them."""
        held = [(f, np.isin(f.slots, slots).sum()) for f in self.files if f.kind == kind]
        size = sum(float(count) * file.slot_bytes for file, count in held)
        return FileSum(sum(1 for _, count in held if count), round(size))

    def snapshots(self, slots: Array) -> SnapshotSum:
        """The snapshots of these slots."""
        mine = set(slots.tolist())
        held = [f for f in self.files if f.kind == "snapshot" and int(f.slots[0]) in mine]
        epochs = [file.epoch for file in held]
        size = sum(file.ref.size for file in held)
        return SnapshotSum(len(held), min(epochs, default=None), max(epochs, default=None), size)

    def count(self) -> tuple[int | None, tuple[str, ...]]:
        """Number of entries and no errors; or None, and an error for each damaged file."""
        schema = ColumnTable(self._codec, (), self._slots).schema  # the columns that every step has
        total, damaged = 0, dict[str, str]()
        for slots in self._groups():
            tables = []
            for file, near in self._near(slots):
                try:
                    rows = self._segment(file).in_slots(near).select(schema.names)
                    tables.append(fitting(rows, schema, file.ref.file))
                except CheckpointError as problem:
                    damaged[file.ref.file] = problem.message
            total += pc.sum(newest(tables, schema, self._codec).column(PRESENT)).as_py() or 0
        return (None if damaged else total), tuple(damaged.values())

    def entries(self) -> Iterator[pa.Table]:
        """All entries with their full state, in tables of bounded size."""
        for slots in self._groups():
            tables = (
                fitting(self._segment(file).in_slots(near), self.schema, file.ref.file)
                for file, near in self._near(slots)
            )
            yield whole(newest(tables, self.schema, self._codec))

    def with_keys(self, keys: Keys) -> Iterator[tuple[StateFile, Array, pa.Table]]:
        """The files that contain some of these keys, newest first, each with those keys' indices and rows."""
        order = np.argsort(keys.hashes, kind="stable")
        slots = slots_of(keys.hashes, self._slots)
        for file in reversed(self.files):
            near = order[np.isin(slots[order], file.slots)]
            if len(near):
                segment = self._segment(file)
                places, rows = segment.find(keys, near)
                if len(places):
                    yield file, places, fitting(segment.take(rows), self.schema, file.ref.file)

    def _groups(self) -> list[Array]:
        """The slots that have files, in groups small enough to be merged in memory."""
        sizes = np.zeros(self._slots)
        for file in self.files:
            sizes[file.slots] += file.slot_bytes
        return slot_groups(np.flatnonzero(sizes), sizes, _AT_ONCE)

    def _near(self, slots: Array) -> Iterator[tuple[StateFile, Array]]:
        """The files of these slots, newest first, each with the slots for which it is valid."""
        for file in reversed(self.files):
            near = np.intersect1d(file.slots, slots)
            if len(near):
                yield file, near

    def _segment(self, file: StateFile) -> SegmentFile:
        """An opened file. Raises `SegmentGone` if the whole version has been removed."""
        name = file.ref.file
        if name not in self._open:
            try:
                self._open[name] = self._store.open_segment(file.ref, self._codec)
            except SegmentGone as gone:
                if self._store.read_manifest(self._version) is None:
                    raise
                raise self._store.lacks(name) from gone
        return self._open[name]


def companions(names: list[str]) -> set[str]:
    """The columns among these that mark which part of a map or list a row contains, or that a value is the
    one before.

    >>> sorted(companions(["m.__map", "m.__map~patch", "m.__map~gone", "v.a~patch", "v.__same~b"]))
    ['m.__map~gone', 'm.__map~patch', 'v.__same~b']
    """
    patched = [n for n in names if n.partition(".")[2][:2] == "__" and n + PATCH in names]
    marks = {name + suffix for name in patched for suffix in (PATCH, GONE)}
    return marks | set(same_companions(names).values())


def change(file: StateFile, row: pa.Table) -> Change:
    """A key's content in a file, from its one row there."""
    values, names = row.to_pylist()[0], row.schema.names
    parts = [n.removesuffix(PATCH) for n in companions(names) if n.endswith(PATCH) and values[n]]
    gone = {name: values[name + GONE] for name in names if name in parts}
    same = tuple(name for name, mark in same_companions(names).items() if values[mark])
    present = values[PRESENT]
    return Change(file.kind, file.epoch, file.ref.file, present, states(row)[0], gone, same)


def states(rows: pa.Table) -> list[dict[str, Any]]:
    """The state of each row, by column."""
    hidden = {*FRAME, *companions(rows.schema.names)}
    names = [name for name in rows.schema.names if name not in hidden]
    values: list[dict[str, Any]] = rows.select(names).to_pylist()
    return values if names else [{} for _ in range(rows.num_rows)]


def _files(chain: VersionChain, step: str, slots: int) -> list[StateFile]:
    layout = chain.step(step)
    everywhere = np.arange(slots, dtype=np.int32)
    files = [
        StateFile("snapshot", ref.upto, ref, np.array([slot], np.int32))
        for slot, ref in sorted(layout.snapshots.items())
    ]
    files += [StateFile("run", ref.upto, ref, unpack_slots(ref.slots)) for ref in layout.runs]
    for epoch, ref in chain.deltas(step):
        held = unpack_slots(ref.slots) if ref.slots else everywhere
        files.append(StateFile("delta", epoch, ref, held))
    return files
