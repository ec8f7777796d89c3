"""The blocks of a segment's file, and the frame around them: where they are, and whether they are whole.

See `segment` for what lies in a file, and why.
"""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from collections import OrderedDict
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointError
from penstock.state.arrays import fixed_values, one_chunk
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.store.files import Bytes
from penstock.state.table.table import HASH, KEY, SLOT

INDEX = b"penstock"
_MAGIC = b"ARROW1"
_PREFIX = struct.Struct("<II")
"""What a message of Arrow IPC begins with: a mark, and the length of its description."""
_KEPT_BYTES = 128 << 20
"""Bytes of large files' blocks that a process keeps: asked for again, a block is not read, checked and
decoded again, which takes three times as long."""

_numbers = itertools.count()


class SegmentGone(Exception):
    """A file of a version that is no longer kept. Whoever reads it goes on to a newer version."""


class Block(NamedTuple):
    """A block that was read: its rows, and their keys."""

    rows: pa.RecordBatch
    keys: Keys


class _Kept:
    """The blocks of large files that were used last. Safe to use in several threads."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int]) -> Block | None:
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
            return self._blocks.get(key)

    def put(self, key: tuple[int, int], block: Block) -> None:
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self._bytes += block.rows.nbytes
            while self._bytes > _KEPT_BYTES and len(self._blocks) > 1:
                self._bytes -= self._blocks.popitem(last=False)[1].rows.nbytes


_kept = _Kept()


class Blocks:
    """The blocks of a segment, and what is known of them without reading them."""

    def __init__(
        self,
        data: Bytes,
        name: str,
        schema: pa.Schema,
        codec: KeyCodec,
        head: int,
        index: dict[str, list[int]],
    ) -> None:
        _check(index, schema, codec, data.size - head)
        self.rows = np.array(index["rows"], np.int64)
        self.hashes = np.array(index["hashes"], np.uint64)
        self.slots = np.array(index["slots"], np.int32)
        self._data, self._name, self._schema, self._codec = data, name, schema, codec
        self._sizes, self._checksums = index["sizes"], index["checksums"]
        self._starts = (np.cumsum([0, *self._sizes]) + head).tolist()
        self._number = next(_numbers)
        self._views = isinstance(data, pa.Buffer)
        self._read: dict[int, Block] = {}

    def read(self, block: int) -> Block:
        """A block. `SegmentGone` if the file was removed before it was read."""
        key = (self._number, block)
        known = self._read.get(block) if self._views else _kept.get(key)
        if known is None:
            rows = self._rows(block)
            known = Block(rows, stored_keys(rows, self._codec))
            if self._views:
                self._read[block] = known
            else:
                _kept.put(key, known)
        return known

    def _rows(self, block: int) -> pa.RecordBatch:
        message = self.checked(block)
        try:
            rows = pa.ipc.read_record_batch(message, self._schema)
            rows.validate()
        except (pa.ArrowException, OSError) as wrong:
            damaged(self._name, f"block {block} cannot be read: {wrong}", wrong)
        if rows.num_rows != self.rows[block]:
            damaged(self._name, f"block {block} has {rows.num_rows} rows")
        return rows

    def checked(self, block: int) -> pa.Buffer:
        """The bytes of a block, which are those that were written."""
        try:
            message = self._data.slice(self._starts[block], self._sizes[block])
        except FileNotFoundError as gone:
            raise SegmentGone(self._name) from gone
        if zlib.crc32(message) != self._checksums[block]:
            damaged(self._name, f"the checksum of block {block} does not match")
        return message


def _check(index: dict[str, list[int]], schema: pa.Schema, codec: KeyCodec, room: int) -> None:
    """Refuse an index that is not one of blocks in a file, or columns that no state has."""
    lists = [index[name] for name in ("rows", "hashes", "slots", "sizes", "checksums")]
    if any(len(one) != len(lists[0]) for one in lists) or any(n < 0 for one in lists for n in one):
        raise ValueError("its index is no list of blocks")
    if sum(index["sizes"]) > room or sum(index["rows"]) >= 1 << 62:
        raise ValueError("it is cut off")
    types = {HASH: pa.uint64(), SLOT: pa.int32()}
    if len(codec.schema):  # else nobody looks for keys
        types[KEY] = codec.storage_type
    for name, type in types.items():
        if schema.field(name).type != type:
            raise ValueError(f"its column {name} is of type {schema.field(name).type}")


def stored_keys(rows: pa.RecordBatch | pa.Table, codec: KeyCodec) -> Keys:
    """The keys of rows of state, with the hashes that stand beside them."""
    return codec.from_storage(rows.column(KEY), fixed_values(one_chunk(rows.column(HASH))))


def header_size(data: Bytes) -> int:
    """The bytes before the first block: a magic word and the schema. Refuses what is no file."""
    if data.size < 32 or data.slice(0, 6).to_pybytes() != _MAGIC:
        raise ValueError("it is no Arrow file")
    if data.slice(data.size - 6, 6).to_pybytes() != _MAGIC:
        raise ValueError("it is cut off")
    mark, length = _PREFIX.unpack(data.slice(8, 8).to_pybytes())
    if mark != 0xFFFFFFFF or length > data.size:
        raise ValueError("it does not begin with a schema")
    return 16 + int(length)


def frame_checksum(data: Bytes, head: int, blocks: int) -> int:
    """The checksum of what is not a block: the magic word and the schema, the footer."""
    behind = head + blocks
    if behind > data.size:
        raise ValueError("it is cut off")
    return zlib.crc32(data.slice(behind, data.size - behind), zlib.crc32(data.slice(0, head)))


def damaged(name: str, how: str, cause: BaseException | None = None) -> NoReturn:
    raise CheckpointError(
        f"{name} is damaged: {how}",
        hint="restore this file from a backup, or start from a new checkpoint folder",
    ) from cause
