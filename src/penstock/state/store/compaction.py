"""Compaction: the files of many epochs are merged into few, so that a version is read quickly.

A host compacts the slots that it owns, in the background. The deltas since the last layout become
a run. Runs that are not much larger than what would lie above them are merged into it. So there are only
a few runs, each more than twice as large as the next, and an entry is rewritten only as often as the
state doubles. When the runs of a slot are larger than half of its snapshot, the slot gets a new snapshot,
without removed entries. The driver combines the parts of all hosts into a layout.

Nothing is changed in place: new files have new names, and old ones stay until no kept version needs them.
An interrupted compaction leaves files that no layout names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk
from penstock.state.keys.codec import KeyCodec
from penstock.state.store.files import no_rest
from penstock.state.store.manifest import (
    DeltaRef,
    Layout,
    SegmentRef,
    StepLayout,
    pack_slots,
    slot_groups,
    unpack_slots,
)
from penstock.state.store.merging import fitting, newest, whole
from penstock.state.store.segment import SegmentFile, hash_order, stretches
from penstock.state.store.store import MergedKind, SegmentGone, Store
from penstock.state.table.table import HASH, PRESENT, SLOT

Ref = DeltaRef | SegmentRef

LEAST_SNAPSHOT = 1 << 20
"""Bytes of runs up to which a slot gets no snapshot, since it is not worth a file."""
_AT_ONCE = 32 << 20
"""Bytes of files that are merged in memory at once, and so about the size of a run's file."""


@dataclass(frozen=True)
class Plan:
    """The plan of a compaction of some slots of a step."""

    runs: tuple[SegmentRef, ...]
    """Existing runs of these slots, newest first."""
    merged: int
    """Number of these runs that are merged into the new run or into snapshots."""
    run: Array
    """Slots whose changes go into the new run."""
    snapshots: Array
    """Slots that get a new snapshot."""
    sizes: Array
    """Slot -> approximate bytes to read."""


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction: the files of some slots of a step at a version."""

    step: str
    version: int
    slots: str
    """The slots, packed (see `pack_slots`)."""
    files: StepLayout
    written: int
    """Bytes of new files."""


def plan(
    files: StepLayout, deltas: Sequence[DeltaRef], slots: Array, least: int = LEAST_SNAPSHOT
) -> Plan:
    """Plan the compaction of these slots, from their files and the deltas since.

    >>> run = SegmentRef("step", "old", 10, 1000, 0, pack_slots([0, 1]), 2, upto=7)
    >>> delta = DeltaRef("step", "step/0", "new", 5, 600, 0, pack_slots([0]))
    >>> todo = plan(StepLayout(runs=(run,)), [delta], np.arange(2))
    >>> todo.merged, todo.run.tolist(), todo.snapshots.tolist()
    (1, [0, 1], [])
    """
    slots = np.unique(slots)
    trimmed = [ref for run in reversed(files.runs) if (ref := run.trimmed(slots)) is not None]
    above = np.zeros(int(slots.max(initial=0)) + 1)
    for delta in deltas:
        held = unpack_slots(delta.slots) if delta.slots else slots
        near = held[np.isin(held, slots)]
        above[near] += delta.size / len(held)
    merged, grown = 0, above.sum()
    for _, group in groupby(trimmed, key=lambda ref: ref.upto):
        refs = list(group)
        size = sum(ref.slot_bytes * len(unpack_slots(ref.slots)) for ref in refs)
        if size > 2 * grown:
            break
        merged += len(refs)
        grown += size
    for ref in trimmed:
        above[unpack_slots(ref.slots)] += ref.slot_bytes
    below = np.zeros_like(above)
    for slot, snapshot in files.snapshots.items():
        if slot < len(below):
            below[slot] = snapshot.size
    full = above[slots] > np.maximum(least, below[slots] / 2)
    sizes = above.copy()
    sizes[slots[full]] += below[slots[full]]
    return Plan(tuple(trimmed), merged, slots[~full], slots[full], sizes)


def compact(
    store: Store,
    step: str,
    codec: KeyCodec,
    schema: pa.Schema,
    slots: Array,
    upto: int,
    tag: str,
    check: Callable[[], None],
    least: int = LEAST_SNAPSHOT,
    rest: Callable[[], None] = no_rest,
) -> Compacted:
    """Compact the files of these slots to version `upto`. Writes new files, and changes none.

    `check` is called before each file is read or written, and may raise to cancel. `rest` is called between
    small steps, and may wait: epochs are more urgent. The tag must be new.
    Slots are processed in groups, so that only a part of the state is in memory.
    """
    chain = store.chain(upto)
    files, deltas = chain.step(step), [ref for _, ref in chain.deltas(step)]
    todo = plan(files, deltas, slots, least)
    work = _Work(store, step, codec, schema, upto, tag, check, rest)
    changes: list[Ref] = [*deltas[::-1], *todo.runs[: todo.merged]]
    snapshots = {
        slot: ref for slot, ref in files.snapshots.items() if slot in set(todo.run.tolist())
    }
    kept = [t for ref in todo.runs[todo.merged :] if (t := ref.trimmed(todo.run)) is not None]
    covered = [*snapshots, *(slot for ref in kept for slot in unpack_slots(ref.slots).tolist())]
    runs = [*kept[::-1]]
    for group in slot_groups(todo.run, todo.sizes, _AT_ONCE):
        runs += work.run(changes, group, np.setdiff1d(group, covered))
    for group in slot_groups(todo.snapshots, todo.sizes, _AT_ONCE):
        below = [files.snapshots[slot] for slot in group.tolist() if slot in files.snapshots]
        snapshots |= work.snapshots([*deltas[::-1], *todo.runs, *below], group)
    return Compacted(
        step, upto, pack_slots(slots), StepLayout(snapshots, tuple(runs)), work.written
    )


@dataclass
class _Work:
    """Reads and writes the files of one compaction."""

    store: Store
    step: str
    codec: KeyCodec
    schema: pa.Schema
    upto: int
    tag: str
    check: Callable[[], None]
    rest: Callable[[], None]
    written: int = 0
    """Bytes of new files."""
    open: dict[str, SegmentFile] = field(default_factory=dict)

    def run(self, refs: Sequence[Ref], slots: Array, lowest: Array) -> list[SegmentRef]:
        """Merge the changes to these slots into a run. In the slots `lowest`, which have no older files,
        removed entries are left out."""
        rows = self._merged(refs, slots)
        here = fixed_values(one_chunk(rows.column(SLOT)))
        present = fixed_values(one_chunk(rows.column(PRESENT)))
        kept = present | ~np.isin(here, lowest)
        if not kept.all():
            rows = rows.filter(fixed_array(kept, pa.bool_()))
        return [self._wrote("runs", rows)] if rows.num_rows else []

    def snapshots(self, refs: Sequence[Ref], slots: Array) -> dict[int, SegmentRef]:
        """Write a snapshot of each slot that has entries."""
        rows = whole(self._merged(refs, slots))
        order = hash_order(fixed_values(one_chunk(rows.column(HASH))))
        self.rest()
        rows = rows.take(fixed_array(order, pa.int64()))
        self.rest()
        return {
            slot: self._wrote("snapshots", rows.slice(lo, hi - lo))
            for slot, lo, hi in stretches(fixed_values(one_chunk(rows.column(SLOT))))
        }

    def _merged(self, refs: Sequence[Ref], slots: Array) -> pa.Table:
        parts = ((ref, _held(ref, slots)) for ref in refs)
        tables = (self._rows(ref, held) for ref, held in parts if len(held))
        return newest(tables, self.schema, self.codec)

    def _rows(self, ref: Ref, slots: Array) -> pa.Table:
        try:
            if ref.file not in self.open:
                self.check()
                self.open[ref.file] = self.store.open_segment(ref, self.codec)
            segment = self.open[ref.file]
            return fitting(segment.in_slots(slots, self.rest), self.schema, segment.name)
        except SegmentGone as gone:
            raise self.store.lacks(ref.file) from gone

    def _wrote(self, kind: MergedKind, rows: pa.Table) -> SegmentRef:
        self.check()
        ref = self.store.write_merged(kind, self.step, self.upto, self.tag, rows, self.rest)
        self.written += ref.size
        return ref


def merged_layout(old: Layout | None, parts: Sequence[Compacted], version: int, tag: str) -> Layout:
    """Combine the parts of all hosts into a layout. They must cover each slot of each step exactly once."""
    steps: dict[str, StepLayout] = {}
    for step in sorted({part.step for part in parts} | set(old.steps if old else ())):
        mine = [part for part in parts if part.step == step]
        slots = np.concatenate([np.empty(0, np.int32), *(unpack_slots(p.slots) for p in mine)])
        had = _slots_of(old.steps[step]) if old and step in old.steps else np.empty(0, np.int32)
        if len(np.unique(slots)) < len(slots) or len(np.setdiff1d(had, slots)):
            raise ProtocolError(
                f"the compacted parts of step {step} do not cover each slot of version {version} once",
                hint="compact every slot of the step once, at one version",
            )
        if any(part.version != version for part in mine):
            raise ProtocolError(
                f"a compacted part of step {step} is not of version {version}",
                hint="compact every slot of the step once, at one version",
            )
        steps[step] = _together([part.files for part in mine])
    return Layout(version, tag, steps)


def _together(files: Sequence[StepLayout]) -> StepLayout:
    snapshots = {slot: ref for part in files for slot, ref in sorted(part.snapshots.items())}
    runs: dict[str, SegmentRef] = {}
    for ref in (ref for part in files for ref in part.runs):
        known = runs.get(ref.file)
        before = "" if known is None else known.slots
        slots = np.union1d(unpack_slots(before), unpack_slots(ref.slots))
        runs[ref.file] = replace(ref, slots=pack_slots(slots))
    return StepLayout(snapshots, tuple(sorted(runs.values(), key=lambda r: (r.upto, r.file))))


def _slots_of(files: StepLayout) -> Array:
    """The slots that have a file."""
    held = [unpack_slots(ref.slots) for ref in files.runs]
    return np.unique(np.concatenate([np.array(list(files.snapshots), np.int32), *held]))


def _held(ref: Ref, slots: Array) -> Array:
    """Those of these slots that count in a file."""
    return np.intersect1d(unpack_slots(ref.slots), slots) if ref.slots else slots
