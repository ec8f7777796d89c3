"""The blocks of a segment's file and the frame around them: positions and checksums.

See `segment` for the file format.
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

INDEX, HASHES = b"penstock", b"penstock.hashes"
"""Names of metadata of a segment's schema: the index of its blocks, and the hashes of all its rows."""
_MAGIC = b"ARROW1"
_PREFIX = struct.Struct("<II")
"""Start of an Arrow IPC message: a marker, and the length of the metadata."""
_KEPT_BYTES = 128 << 20
"""Bytes of large files' blocks in a process's cache. A lookup in the cache takes a third of the time of
reading, checking and decoding a block."""

_numbers = itertools.count()


class SegmentGone(Exception):
    """A file was removed because its version is no longer kept. Read a newer version instead."""


class Block(NamedTuple):
    """A block in memory: its rows and their keys."""

    rows: pa.RecordBatch
    keys: Keys


class _Kept:
    """A cache of recently used blocks of large files. Thread-safe."""

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
    """The blocks of a segment, with their index: rows, first hashes, first slots."""

    def __init__(
        self,
        data: Bytes,
        name: str,
        schema: pa.Schema,
        codec: KeyCodec,
        head: int,
        index: dict[str, list[int]],
    ) -> None:
        hashes = (schema.metadata or {}).get(HASHES)
        schema = schema.remove_metadata()
        _check(index, schema, codec, data.size - head)
        if hashes is not None and len(hashes) != 8 * sum(index["rows"]):
            raise ValueError("it does not have the hashes of all its rows")
        self.all_hashes = None if hashes is None else np.frombuffer(hashes, np.uint64)
        """Hash of each row, ascending; None if the file does not have them."""
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
        """Read a block. Raises `SegmentGone` if the file was removed meanwhile."""
        key = (self._number, block)
        known = self._read.get(block) if self._views else _kept.get(key)
        if known is None:
            rows = self.rows_of(block)
            known = Block(rows, stored_keys(rows, self._codec))
            if self._views:
                self._read[block] = known
            else:
                _kept.put(key, known)
        return known

    def rows_of(self, block: int) -> pa.RecordBatch:
        """Read the rows of a block, past the cache."""
        message = self.checked(block)
        try:
            rows = pa.ipc.read_record_batch(message, self._schema)
            rows.validate()
        except (pa.ArrowException, OSError) as wrong:
            damaged(self._name, f"block {block} cannot be read: {wrong}", wrong)
        if rows.num_rows != self.rows[block]:
            damaged(self._name, f"block {block} has {rows.num_rows} rows, not {self.rows[block]}")
        return rows

    def checked(self, block: int) -> pa.Buffer:
        """Read the bytes of a block, and verify their checksum."""
        try:
            message = self._data.slice(self._starts[block], self._sizes[block])
        except FileNotFoundError as gone:
            raise SegmentGone(self._name) from gone
        if zlib.crc32(message) != self._checksums[block]:
            damaged(self._name, f"the checksum of block {block} does not match")
        return message


def _check(index: dict[str, list[int]], schema: pa.Schema, codec: KeyCodec, room: int) -> None:
    """Raise a `ValueError` if an index or schema is not that of a segment."""
    lists = [index[name] for name in ("rows", "hashes", "slots", "sizes", "checksums")]
    if any(len(part) != len(lists[0]) for part in lists) or any(
        n < 0 for part in lists for n in part
    ):
        raise ValueError("its index of blocks is invalid")
    if sum(index["sizes"]) > room or sum(index["rows"]) >= 1 << 62:
        raise ValueError("it is truncated")
    types = {HASH: pa.uint64(), SLOT: pa.int32()}
    if len(codec.schema):  # else keys are not searched
        types[KEY] = codec.storage_type
    for name, type in types.items():
        if schema.field(name).type != type:
            raise ValueError(f"its column {name} has type {schema.field(name).type}, not {type}")


def stored_keys(rows: pa.RecordBatch | pa.Table, codec: KeyCodec) -> Keys:
    """The keys of rows of state, with the stored hashes."""
    return codec.from_storage(rows.column(KEY), fixed_values(one_chunk(rows.column(HASH))))


def header_size(data: Bytes) -> int:
    """Number of bytes before the first block: the magic word and the schema. Raises a `ValueError` if the
    data is not an Arrow file."""
    if data.size < 32 or data.slice(0, 6).to_pybytes() != _MAGIC:
        raise ValueError("it is not an Arrow file")
    if data.slice(data.size - 6, 6).to_pybytes() != _MAGIC:
        raise ValueError("it is truncated")
    mark, length = _PREFIX.unpack(data.slice(8, 8).to_pybytes())
    if mark != 0xFFFFFFFF or length > data.size:
        raise ValueError("it does not start with a schema")
    return 16 + int(length)


def frame_checksum(data: Bytes, head: int, blocks: int) -> int:
    """The checksum of all bytes that are not in a block: the magic word, the schema and the footer."""
    behind = head + blocks
    if behind > data.size:
        raise ValueError("it is truncated")
    return zlib.crc32(data.slice(behind, data.size - behind), zlib.crc32(data.slice(0, head)))


def damaged(name: str, how: str, cause: BaseException | None = None) -> NoReturn:
    """Raise a `CheckpointError` about a damaged file."""
    raise CheckpointError(
        f"{name} is damaged: {how}",
        hint="restore this file from a backup, or start from a new checkpoint folder",
    ) from cause
