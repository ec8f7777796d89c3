"""A checkpoint with a history, and a plain dict of its expected contents at every version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.store.compaction import LEAST_SNAPSHOT, compact, merged_layout
from penstock.state.store.reader import StateReader
from penstock.state.store.store import DeltaRef, Manifest, Store
from penstock.state.table.table import HASH, KEY, PRESENT, SLOT

SLOTS = 8
INTS = KeyCodec(pa.schema([("id", pa.int64())]))
TEXTS = KeyCodec(pa.schema([("name", pa.string())]))
_tags = count()

Model = dict[Any, tuple[int, str]]
"""key -> (total, name)"""


def schema_of(codec: KeyCodec) -> pa.Schema:
    return pa.schema(
        [
            pa.field(HASH, pa.uint64(), nullable=False),
            pa.field(KEY, codec.storage_type, nullable=False),
            pa.field(SLOT, pa.int32(), nullable=False),
            pa.field(PRESENT, pa.bool_(), nullable=False),
            pa.field("total", pa.int64()),
            pa.field("name", pa.string()),
        ]
    )


def keys_of(codec: KeyCodec, keys: Iterable[Any]) -> Keys:
    name = codec.schema.names[0]
    column = pa.array(list(keys), codec.schema.field(name).type)
    return codec.encode(pa.record_batch([column], names=[name]))


def rows_of(codec: KeyCodec, changes: Mapping[Any, tuple[int, str] | None]) -> pa.Table:
    """Rows in the format of a delta, in any order. None is a removed entry."""
    keys = keys_of(codec, changes)
    values = list(changes.values())
    columns = [
        pa.array(keys.hashes),
        codec.to_storage(keys),
        pa.array(slots_of(keys.hashes, SLOTS)),
        pa.array([value is not None for value in values]),
        pa.array([None if value is None else value[0] for value in values], pa.int64()),
        pa.array([None if value is None else value[1] for value in values], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=schema_of(codec))


def entries_of(codec: KeyCodec, table: pa.Table) -> Model:
    """Rows in the format of the model. All must be present, and each key at most once."""
    assert all(table.column(PRESENT).to_pylist())
    keys = [key for (key,) in codec.as_tuples(codec.from_storage(table.column(KEY)))]
    assert len(set(keys)) == len(keys)
    values = zip(table.column("total").to_pylist(), table.column("name").to_pylist(), strict=True)
    return dict(zip(keys, values, strict=True))


@dataclass
class History:
    """Epochs, compactions and readers on one store, with one step."""

    store: Store
    codec: KeyCodec = INTS
    versions: list[Model] = field(default_factory=list)
    base: int = -1
    layout: str = ""
    schema: pa.Schema | None = None
    step: str = "step"

    @property
    def newest(self) -> int:
        return len(self.versions) - 1

    def epoch(self, changes: Mapping[Any, tuple[int, str] | None], hosts: int = 2) -> None:
        """Seal an epoch in which each host writes a delta of its share of the slots."""
        epoch = len(self.versions)
        table = rows_of(self.codec, changes)
        owner = np.array(table.column(SLOT)) % hosts
        deltas: list[DeltaRef] = []
        for host in range(hosts):
            part = table.filter(pa.array(owner == host))
            deltas.append(self.store.write_delta(epoch, 0, self.step, f"{self.step}/{host}", part))
        self.store.write_manifest(self.manifest(epoch, *deltas))
        now = dict(self.versions[-1]) if self.versions else {}
        for key, value in changes.items():
            now.pop(key, None)
            if value is not None:
                now[key] = value
        self.versions.append(now)

    def manifest(self, epoch: int, *deltas: DeltaRef) -> Manifest:
        return Manifest(epoch, 0, self.base, self.layout, deltas, {}, {self.step: None}, 0, 0)

    def compact(
        self, *groups: Iterable[int], upto: int | None = None, least: int = LEAST_SNAPSHOT
    ) -> None:
        """Compact as hosts that own these slots would. Later epochs build on it."""
        upto = self.newest if upto is None else upto
        tag = f"t{next(_tags)}"
        parts = [
            compact(
                self.store, self.step, self.codec, self.schema or schema_of(self.codec),
                np.array(list(slots), np.int32), upto, tag, lambda: None, least,
            )
            for slots in groups or (range(SLOTS),)
        ]  # fmt: skip
        old = self.store.chain(upto).layout
        layout = merged_layout(old, parts, upto, tag)
        self.layout, self.base = self.store.write_layout(layout), upto

    def reader(self, version: int | None = None) -> StateReader:
        reader = StateReader(self.store, self.step, self.codec, schema_of(self.codec), SLOTS)
        reader.refresh(self.newest if version is None else version)
        return reader

    def found(self, reader: StateReader, keys: Iterable[Any]) -> Model:
        return entries_of(self.codec, reader.find(keys_of(self.codec, keys)))

    def scanned(self, reader: StateReader, about_bytes: int = 1 << 20) -> Model:
        pieces = [
            entries_of(self.codec, piece)
            for slot in range(SLOTS)
            for piece in pieces_of(reader, slot, about_bytes)
        ]
        whole: Model = {}
        for piece in pieces:
            assert not whole.keys() & piece.keys()
            whole |= piece
        return whole

    def check(self, version: int | None = None) -> None:
        """Check that a version equals the model, by scan and by keys."""
        version = self.newest if version is None else version
        reader, model = self.reader(version), self.versions[version]
        assert self.scanned(reader) == model
        asked = {key for known in self.versions for key in known}
        assert self.found(reader, asked) == model


def pieces_of(reader: StateReader, slot: int, about_bytes: int) -> Iterator[pa.Table]:
    after: int | None = None
    while True:
        piece, upto = reader.scan(slot, after, about_bytes)
        yield piece
        if upto is None:
            return
        assert after is None or upto > after
        after = upto
