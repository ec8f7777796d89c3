"""Segments: the file format of state. Deltas, runs and snapshots are all segments.

A segment is an Arrow IPC file whose rows are sorted by key hash, and so also by slot, divided into blocks
of about 128 kB. Its schema contains an index of the blocks: the size, the first hash and the checksum of
each. So a key is found by reading a single block. If rows are large, the schema also contains all hashes.
Then no block is read for a key that is not in the file.

The checksum of a segment covers the index and all other bytes outside blocks. It is stored in the manifest
or layout that names the file. Together, the checksums cover every bit of a file: damage is detected when
the damaged part is used.

>>> codec = KeyCodec(pa.schema([("user", pa.int64())]))
>>> keys = codec.encode(pa.record_batch({"user": [7, 8]}))
>>> columns = {HASH: keys.hashes, KEY: codec.to_storage(keys), SLOT: pa.array([0, 0], pa.int32()),
...     "__present": [True, True], "total": [70, 80]}
>>> data, checksum = write_segment(pa.table(columns))
>>> segment = SegmentFile.open(data, "a file", codec, checksum)
>>> positions, rows = segment.find(keys, np.array([1]))
>>> segment.take(rows).column("total").to_pylist()
[80]
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.codec import decode, encode
from penstock.errors import ProtocolError
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, ranges
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.store import segment_kernels as kernels
from penstock.state.store.blocks import (
    HASHES,
    INDEX,
    Blocks,
    SegmentGone,
    damaged,
    frame_checksum,
    header_size,
)
from penstock.state.store.files import Bytes, no_rest
from penstock.state.table.table import HASH, KEY, SLOT

_BLOCK_BYTES, _BLOCK_ROWS = 1 << 17, 1 << 16
"""Approximate bytes, and maximum rows, of a block. Reading one entry reads and checks a whole block, so small
blocks speed up lookups of large entries. They do not measurably slow down writing."""
_LARGE_ROW = 1024
"""Average bytes of a row from which the schema contains all hashes. Arrow writes a schema twice, so they are
at most 2 % of the file."""


def write_segment(table: pa.Table, rest: Callable[[], None] = no_rest) -> tuple[pa.Buffer, int]:
    """Convert a table with a hash column to the bytes of a segment, and return them with their checksum.

    `rest` is called after each block.
    """
    batch = _by_hash(table)
    hashes, slots = (fixed_values(batch.column(name)) for name in (HASH, SLOT))
    cuts = _cuts(hashes, batch.nbytes)
    parts = [batch.slice(lo, hi - lo) for lo, hi in pairwise(cuts)]
    sizes, checksums = [], []
    for part in parts:
        message = part.serialize()
        sizes.append(message.size)
        checksums.append(zlib.crc32(message))
        rest()
    index = {
        "rows": [part.num_rows for part in parts],
        "hashes": hashes[cuts[:-1]].tolist(),
        "slots": slots[cuts[:-1]].tolist(),
        "sizes": sizes,
        "checksums": checksums,
    }
    sink = pa.BufferOutputStream()
    metadata = {INDEX: encode(index)}
    if batch.nbytes >= _LARGE_ROW * max(1, batch.num_rows):
        metadata[HASHES] = hashes.tobytes()
    schema = batch.schema.with_metadata(metadata)
    with pa.ipc.new_file(sink, schema) as writer:
        for part in parts:
            writer.write_batch(part)
            rest()
    data = sink.getvalue()
    return data, frame_checksum(data, header_size(data), sum(index["sizes"]))


def check_segment(data: Bytes, name: str, checksum: int | None) -> None:
    """Read a whole file, and raise a `CheckpointError` if it is damaged. Files of format 1 have no checksum
    and are not checked."""
    if checksum is not None:
        codec = KeyCodec(pa.schema([]))
        SegmentFile.open(data, name, codec, checksum).check()


class SegmentFile:
    """An open segment. Blocks are checked when they are first used. Thread-safe."""

    def __init__(self, name: str, schema: pa.Schema, blocks: Blocks, size: int) -> None:
        self.name, self.schema, self.size = name, schema, size
        self._blocks = blocks
        self._ends = np.cumsum(blocks.rows)
        self._starts: list[int] = (self._ends - blocks.rows).tolist()
        self.rows = int(self._ends[-1]) if len(self._ends) else 0

    @staticmethod
    def open(data: Bytes, name: str, codec: KeyCodec, checksum: int | None = None) -> SegmentFile:
        """Open a segment from its bytes. Without a checksum, only the blocks are checked."""
        try:
            head = header_size(data)
            schema = pa.ipc.read_schema(data.slice(8, head - 8))
            packed = (schema.metadata or {}).get(INDEX)
            if packed is None:
                data, checksum = _indexed(data, codec)
                return SegmentFile.open(data, name, codec, checksum)
            index = decode(packed, dict[str, list[int]])
            blocks = Blocks(data, name, schema, codec, head, index)
            actual = frame_checksum(data, head, sum(index["sizes"]))
        except FileNotFoundError as gone:
            raise SegmentGone(name) from gone
        except (
            ProtocolError,
            KeyError,
            ValueError,
            OverflowError,
            OSError,
            pa.ArrowException,
        ) as bad:
            damaged(name, f"{bad}", bad)
        if checksum is not None and actual != checksum:
            damaged(name, "its checksum does not match the one in its manifest or layout")
        return SegmentFile(name, schema.remove_metadata(), blocks, data.size)

    def check(self) -> None:
        """Check all blocks."""
        for block in range(len(self._starts)):
            self._blocks.checked(block)

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row in the file."""
        return self.size / max(1, self.rows)

    def find(self, keys: Keys, which: Array) -> tuple[Array, Array]:
        """Find keys: positions in `keys` of those that are in this file, and their rows, ascending.

        `which` are the positions in `keys` to search for, sorted by hash.
        """
        hashes, known = keys.hashes[which], self._blocks.all_hashes
        if known is not None and len(known):
            near = known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
            which, hashes = which[near], hashes[near]
        blocks = np.searchsorted(self._blocks.hashes, hashes, side="right") - 1
        positions, rows = [], []
        for block, lo, hi in stretches(blocks):
            if block >= 0:
                matches, at = self._find(block, keys, which[lo:hi], hashes[lo:hi])
                positions.append(matches)
                rows.append(at + self._starts[block])
        return _joined(positions), _joined(rows)

    def take(self, rows: Array) -> pa.Table:
        """The rows with these numbers, which must be ascending."""
        parts = []
        for block, lo, hi in stretches(np.searchsorted(self._ends, rows, side="right")):
            here = rows[lo:hi] - self._starts[block]
            parts.append(take_rows(self._blocks.read(block).rows, here))
        return pa.Table.from_batches(parts, self.schema)

    def between(self, start: int, stop: int) -> pa.Table:
        """The rows from `start` up to `stop`, as views of the file."""
        parts = []
        for block in range(int(np.searchsorted(self._ends, start, side="right")), len(self._ends)):
            first = self._starts[block]
            if first >= stop:
                break
            lo = max(0, start - first)
            parts.append(self._blocks.read(block).rows.slice(lo, stop - first - lo))
        return pa.Table.from_batches(parts, self.schema)

    def in_slots(self, slots: Array, rest: Callable[[], None] = no_rest) -> pa.Table:
        """The rows of these slots, which must be ascending. `rest` is called after each block.

        It reads much and each block once, so the cache of blocks is left to lookups.
        """
        parts = []
        last = len(self._ends) - 1
        for block in range(len(self._ends)):
            least, most = self._blocks.slots[block], self._blocks.slots[min(block + 1, last)]
            near = np.searchsorted(slots, least)
            if near == len(slots) or (block < last and slots[near] > most):
                continue
            rows = self._blocks.rows_of(block)
            held = fixed_values(rows.column(SLOT))
            wanted = slots.astype(np.int32)
            starts = np.searchsorted(held, wanted)
            counts = np.searchsorted(held, wanted, side="right") - starts
            parts.append(take_rows(rows, ranges(starts, counts)))
            rest()
        return pa.Table.from_batches(parts, self.schema)

    def span(self, slot: int) -> tuple[int, int]:
        """The first row of a slot, and the first row after it."""
        return self._row_at(SLOT, slot), self._row_at(SLOT, slot + 1)

    def after(self, hash: int) -> int:
        """The first row with a hash above this one."""
        return self.rows if hash == 2**64 - 1 else self._row_at(HASH, hash + 1)

    def hash_at(self, row: int) -> int:
        """The hash of a row."""
        return int(fixed_values(one_chunk(self.between(row, row + 1).column(HASH)))[0])

    def _row_at(self, column: str, value: int) -> int:
        """The first row whose value in a sorted column is not below this value."""
        firsts = self._blocks.hashes if column == HASH else self._blocks.slots
        block = int(np.searchsorted(firsts, firsts.dtype.type(value))) - 1
        if block < 0:
            return 0
        values = fixed_values(self._blocks.read(block).rows.column(column))
        return self._starts[block] + int(np.searchsorted(values, values.dtype.type(value)))

    def _find(self, block: int, keys: Keys, which: Array, hashes: Array) -> tuple[Array, Array]:
        """Positions of those of these keys that are in a block, and their rows within it."""
        there = self._blocks.read(block).keys
        at = np.searchsorted(there.hashes, hashes)
        positions, rows = [], []
        while len(which):
            near = there.hashes[np.minimum(at, len(there) - 1)] == hashes
            near &= at < len(there)
            which, hashes, at = which[near], hashes[near], at[near]
            same = _same(keys, which, there, at)
            positions.append(which[same])
            rows.append(at[same])
            which, hashes, at = which[~same], hashes[~same], at[~same] + 1
        if len(positions) == 1:
            return positions[0], rows[0]
        all_positions, all_rows = _joined(positions), _joined(rows)
        order = np.argsort(all_rows)
        return all_positions[order], all_rows[order]


def take_rows(rows: pa.RecordBatch | pa.Table, which: Array) -> pa.RecordBatch | pa.Table:
    """The rows with these numbers. Consecutive rows are returned as a view."""
    if len(which) == 0:
        return rows.slice(0, 0)
    if which[-1] - which[0] == len(which) - 1 and (which[1:] > which[:-1]).all():
        return rows.slice(int(which[0]), len(which))
    return rows.take(fixed_array(which, pa.int64()))


def stretches(numbers: Array) -> list[tuple[int, int, int]]:
    """Runs of equal numbers in an ascending array, each as (number, begin, end).

    >>> stretches(np.array([3, 3, 5]))
    [(3, 0, 2), (5, 2, 3)]
    """
    if len(numbers) == 0:
        return []
    if numbers[0] == numbers[-1]:
        return [(int(numbers[0]), 0, len(numbers))]
    cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    return [(int(numbers[lo]), lo, hi) for lo, hi in pairwise(bounds)]


def hash_order(hashes: Array) -> Array:
    """A stable ascending order of these hashes."""
    order: Array = kernels.hash_order(hashes)
    return order if len(order) == len(hashes) else np.argsort(hashes, kind="stable")


def _by_hash(table: pa.Table) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(
        [one_chunk(column) for column in table.columns], schema=table.schema.remove_metadata()
    )
    hashes = fixed_values(batch.column(HASH))
    if (hashes[1:] >= hashes[:-1]).all():
        return batch
    return batch.take(fixed_array(hash_order(hashes), pa.int64()))


def _cuts(hashes: Array, nbytes: int) -> list[int]:
    """The first row of each block, and the end. Rows of equal hashes stay in one block."""
    rows = len(hashes)
    if rows == 0:
        return [0]
    step = max(1, min(_BLOCK_ROWS, rows * _BLOCK_BYTES // max(1, nbytes)))
    starts = np.searchsorted(hashes, hashes[np.arange(0, rows, step)])
    return [*np.unique(starts).tolist(), rows]


def _same(keys: Keys, which: Array, there: Keys, at: Array) -> Array:
    same: Array
    if keys.ints is not None and there.ints is not None:
        same = keys.ints[which] == there.ints[at]
    else:
        same = kernels.same_keys(keys.offsets, keys.data, which, there.offsets, there.data, at)
    return same


def _indexed(data: Bytes, codec: KeyCodec) -> tuple[pa.Buffer, int]:
    """Convert a delta of format 1, which has no hashes and is not sorted, to a segment with its checksum."""
    table = pa.ipc.open_file(data.slice(0, data.size)).read_all()
    hashes = codec.from_storage(table.column(KEY)).hashes
    field = pa.field(HASH, pa.uint64(), nullable=False)
    return write_segment(table.add_column(0, field, fixed_array(hashes, pa.uint64())))


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
