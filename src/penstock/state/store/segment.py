"""Segments: the files that hold state. Deltas, runs and snapshots are all in this one form.

A segment is an Arrow IPC file whose rows are sorted by key hash, which is also by slot, cut into
blocks of about a megabyte. Its schema carries an index of the blocks: where each one starts, what
its first hash is, and the checksum of its bytes. So a key is found by reading the block it must
be in, and nothing else of the file.

The checksum of a whole segment covers the index and whatever else is not a block, and stands in
the manifest or layout that names the file. By it the blocks are known to be the ones that were
written: whatever bit of a file is damaged, it is noticed when that part is used.

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
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.codec import decode, encode
from penstock.errors import ProtocolError
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, ranges
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.store import segment_kernels as kernels
from penstock.state.store.blocks import (
    INDEX,
    Blocks,
    SegmentGone,
    damaged,
    frame_checksum,
    header_size,
)
from penstock.state.store.files import Bytes
from penstock.state.table.table import HASH, KEY, SLOT

_BLOCK_BYTES, _BLOCK_ROWS = 1 << 17, 1 << 16
"""About the size of a block. Whoever wants one entry reads and checks a block: small ones let large
entries be found quickly, and cost nothing that can be measured when a segment is written."""


def write_segment(table: pa.Table) -> tuple[pa.Buffer, int]:
    """A table with a hash column as the bytes of a segment, and the segment's checksum."""
    batch = _by_hash(table)
    hashes, slots = (fixed_values(batch.column(name)) for name in (HASH, SLOT))
    cuts = _cuts(hashes, batch.nbytes)
    parts = [batch.slice(lo, hi - lo) for lo, hi in pairwise(cuts)]
    messages = [part.serialize() for part in parts]
    index = {
        "rows": [part.num_rows for part in parts],
        "hashes": hashes[cuts[:-1]].tolist(),
        "slots": slots[cuts[:-1]].tolist(),
        "sizes": [message.size for message in messages],
        "checksums": [zlib.crc32(message) for message in messages],
    }
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata({INDEX: encode(index)})
    with pa.ipc.new_file(sink, schema) as writer:
        for part in parts:
            writer.write_batch(part)
    data = sink.getvalue()
    return data, frame_checksum(data, header_size(data), sum(index["sizes"]))


def check_segment(data: Bytes, name: str, checksum: int | None) -> None:
    """Read a whole file, and refuse it if a byte of it is damaged. One of format 1 cannot be checked."""
    if checksum is not None:
        codec = KeyCodec(pa.schema([]))
        SegmentFile.open(data, name, codec, checksum).check()


class SegmentFile:
    """One file of state, opened to be searched. Blocks are checked when they are first used.

    May be read by several threads.
    """

    def __init__(self, name: str, schema: pa.Schema, blocks: Blocks, size: int) -> None:
        self.name, self.schema, self.size = name, schema, size
        self._blocks = blocks
        self._ends = np.cumsum(blocks.rows)
        self._starts: list[int] = (self._ends - blocks.rows).tolist()
        self.rows = int(self._ends[-1]) if len(self._ends) else 0

    @staticmethod
    def open(data: Bytes, name: str, codec: KeyCodec, checksum: int | None = None) -> SegmentFile:
        """Look at the bytes of a file. Without a checksum, only the blocks are checked."""
        try:
            head = header_size(data)
            schema = pa.ipc.read_schema(data.slice(8, head - 8))
            packed = (schema.metadata or {}).get(INDEX)
            if packed is None:
                data, checksum = _indexed(data, codec)
                return SegmentFile.open(data, name, codec, checksum)
            index = decode(packed, dict[str, list[int]])
            blocks = Blocks(data, name, schema.remove_metadata(), codec, head, index)
            found = frame_checksum(data, head, sum(index["sizes"]))
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
        if checksum is not None and found != checksum:
            damaged(name, "its checksum is not the one it was written with")
        return SegmentFile(name, schema.remove_metadata(), blocks, data.size)

    def check(self) -> None:
        """Check all blocks."""
        for block in range(len(self._starts)):
            self._blocks.checked(block)

    @property
    def row_bytes(self) -> float:
        """What a row takes in the file, on average."""
        return self.size / max(1, self.rows)

    def find(self, keys: Keys, which: Array) -> tuple[Array, Array]:
        """Which of these keys are here: their places in `keys`, and their rows, which ascend.

        `which` are the places to look at; the keys there must be in order of their hashes.
        """
        hashes = keys.hashes[which]
        blocks = np.searchsorted(self._blocks.hashes, hashes, side="right") - 1
        places, rows = [], []
        for block, lo, hi in stretches(blocks):
            if block >= 0:
                found, at = self._find(block, keys, which[lo:hi], hashes[lo:hi])
                places.append(found)
                rows.append(at + self._starts[block])
        return _joined(places), _joined(rows)

    def take(self, rows: Array) -> pa.Table:
        """These rows, given in ascending order."""
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

    def in_slots(self, slots: Array) -> pa.Table:
        """The rows of these slots, which are in ascending order."""
        parts = []
        last = len(self._ends) - 1
        for block in range(len(self._ends)):
            least, most = self._blocks.slots[block], self._blocks.slots[min(block + 1, last)]
            near = np.searchsorted(slots, least)
            if near == len(slots) or (block < last and slots[near] > most):
                continue
            rows = self._blocks.read(block).rows
            held = fixed_values(rows.column(SLOT))
            wanted = slots.astype(np.int32)
            starts = np.searchsorted(held, wanted)
            counts = np.searchsorted(held, wanted, side="right") - starts
            parts.append(take_rows(rows, ranges(starts, counts)))
        return pa.Table.from_batches(parts, self.schema)

    def span(self, slot: int) -> tuple[int, int]:
        """The first row of a slot, and the first one behind it."""
        return self._row_at(SLOT, slot), self._row_at(SLOT, slot + 1)

    def after(self, hash: int) -> int:
        """The first row with a hash above this one."""
        return self.rows if hash == 2**64 - 1 else self._row_at(HASH, hash + 1)

    def hash_at(self, row: int) -> int:
        """The hash of a row."""
        return int(fixed_values(one_chunk(self.between(row, row + 1).column(HASH)))[0])

    def _row_at(self, column: str, value: int) -> int:
        """The first row where a column by which the file is sorted is not below this value."""
        firsts = self._blocks.hashes if column == HASH else self._blocks.slots
        block = int(np.searchsorted(firsts, firsts.dtype.type(value))) - 1
        if block < 0:
            return 0
        values = fixed_values(self._blocks.read(block).rows.column(column))
        return self._starts[block] + int(np.searchsorted(values, values.dtype.type(value)))

    def _find(self, block: int, keys: Keys, which: Array, hashes: Array) -> tuple[Array, Array]:
        """Which of these keys are in a block, and the row of each within it."""
        there = self._blocks.read(block).keys
        at = np.searchsorted(there.hashes, hashes)
        places, rows = [], []
        while len(which):
            near = there.hashes[np.minimum(at, len(there) - 1)] == hashes
            near &= at < len(there)
            which, hashes, at = which[near], hashes[near], at[near]
            same = _same(keys, which, there, at)
            places.append(which[same])
            rows.append(at[same])
            which, hashes, at = which[~same], hashes[~same], at[~same] + 1
        if len(places) == 1:
            return places[0], rows[0]
        found, held = _joined(places), _joined(rows)
        order = np.argsort(held)
        return found[order], held[order]


def take_rows(rows: pa.RecordBatch | pa.Table, which: Array) -> pa.RecordBatch | pa.Table:
    """These rows; a view where they follow one another."""
    if len(which) == 0:
        return rows.slice(0, 0)
    if which[-1] - which[0] == len(which) - 1 and (which[1:] > which[:-1]).all():
        return rows.slice(int(which[0]), len(which))
    return rows.take(fixed_array(which, pa.int64()))


def stretches(numbers: Array) -> list[tuple[int, int, int]]:
    """Each number with its first place and the first behind it; numbers are in ascending order.

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
    """The places of these hashes in ascending order, equal ones as they come."""
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
    """The rows where blocks start, and the end; rows of equal hashes stay together."""
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
    """A delta of format 1, without hashes and in another order, as `write_segment` gives it."""
    table = pa.ipc.open_file(data.slice(0, data.size)).read_all()
    hashes = codec.from_storage(table.column(KEY)).hashes
    field = pa.field(HASH, pa.uint64(), nullable=False)
    return write_segment(table.add_column(0, field, fixed_array(hashes, pa.uint64())))


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
