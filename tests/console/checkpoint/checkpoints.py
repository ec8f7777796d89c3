"""Checkpoints for tests, written with the store and the table alone, without Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import codec
from penstock.cli import app as cli
from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.model import HostId
from penstock.plan.epoch import RouteTable
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.store.compaction import compact, merged_layout
from penstock.state.store.store import FORMAT, DeltaRef, Manifest, Store
from penstock.state.table.columns import Column
from penstock.state.table.table import HASH, ColumnTable

HOSTS = [HostId("words/0"), HostId("words/1")]
SLOTS = 8
SEALED = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)

Epoch = dict[Any, int | None] | list[tuple[Any, int | None]]
"""Keys with the amounts added to their totals; None removes the key."""


class Writer:
    """Writes a checkpoint of one step on two hosts, epoch by epoch, as hosts and driver do."""

    def __init__(self, folder: Path, keys: pa.Schema, format: int = FORMAT) -> None:
        self.store = Store(f"{folder}/penstock")
        self.codec = KeyCodec(keys)
        self.format = format
        self.base, self.layout = -1, ""
        self.placements: list[dict[str, Any]] = []
        columns = [Column("total", pa.int64()), Column("name", pa.string())]
        self.tables = [ColumnTable(self.codec, columns, SLOTS) for _ in HOSTS]
        self.routes = RouteTable.even(HOSTS, SLOTS)
        self.epoch = 0
        self.store.write_flow(
            {
                "format": format,
                "id": "f00d",
                "steps": [
                    {
                        "id": "words",
                        "slots": SLOTS,
                        "keys": [[f.name, str(f.type)] for f in keys],
                        "key_schema": base64.b64encode(keys.serialize()).decode(),
                        "state": [
                            [f.name, str(f.type)] for f in self.tables[0].schema if f.name != HASH
                        ],
                    }
                ],
            }
        )

    def seal(self, changes: Epoch) -> None:
        for key, plus in changes.items() if isinstance(changes, dict) else changes:
            keys = self.codec.from_values(key if isinstance(key, tuple) else (key,))
            table = self.tables[self.owner(keys)]
            if plus is None:
                table.remove(table.find(keys))
            else:
                entry = table.upsert(keys)
                table.column("total")[entry] += plus
                table.column("name")[entry] = f"after {self.epoch}"
        refs = [self.delta(h, t.delta()) for h, t in zip(HOSTS, self.tables, strict=True)]
        for table in self.tables:
            table.seal()
        self.commit(*(ref for ref in refs if ref.rows))

    def delta(self, host: str, table: pa.Table) -> DeltaRef:
        if self.format == FORMAT:
            return self.store.write_delta(self.epoch, 0, "words", host, table)
        table = table.drop_columns([HASH])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        name = f"deltas/words/{self.epoch:012d}-0-{host.replace('/', '-')}.arrow"
        self.store.files.write(name, sink.getvalue())
        return DeltaRef("words", host, name, table.num_rows, sink.getvalue().size)

    def commit(self, *deltas: DeltaRef) -> None:
        manifest = Manifest(
            epoch=self.epoch,
            run=0,
            base=self.base,
            layout=self.layout,
            deltas=deltas,
            routes={"words": codec.to_plain(self.routes)},
            watermarks={"words": None},
            rows=len(deltas),
            sealed_at_ms=SEALED,
            placements={"words": self.placements},
        )
        if self.format == FORMAT:
            self.store.write_manifest(manifest)
        else:
            facts = asdict(manifest) | {"format": 1, "base": 0}
            del facts["layout"], facts["placements"]
            for ref in facts["deltas"]:
                del ref["checksum"], ref["slots"]
            name = f"manifests/{self.epoch:012d}.json"
            self.store.files.write(name, json.dumps(facts).encode())
        self.epoch += 1

    def compact(self, least: int = 1 << 20, schema: pa.Schema | None = None) -> None:
        """Compact the state of both hosts; later epochs build on it."""
        upto, tag = self.epoch - 1, f"t{self.epoch}"
        schema = self.tables[0].schema if schema is None else schema
        parts = [
            compact(
                self.store, "words", self.codec, schema, self.routes.slots_of(host), upto, tag,
                lambda: None, least,
            )
            for host in range(len(HOSTS))
        ]  # fmt: skip
        layout = merged_layout(self.store.chain(upto).layout, parts, upto, tag)
        self.layout, self.base = self.store.write_layout(layout), upto

    def owner(self, keys: Keys) -> int:
        return int(self.routes.owner[slots_of(keys.hashes, SLOTS)[0]])


WORD = pa.schema([("word", pa.string())])
THREE: tuple[Epoch, ...] = ({"a": 1, "b": 10, "c": 100}, {"a": 1, "b": None}, {"a": 1, "d,e": 7})


Make = Callable[..., tuple[Writer, Checkpoint]]


def making(folder: Path) -> Make:
    """A function that makes a checkpoint in a folder, from the types of its keys and some epochs."""

    def made(keys: pa.Schema, *epochs: Epoch) -> tuple[Writer, Checkpoint]:
        writer = Writer(folder, keys)
        for changes in epochs:
            writer.seal(changes)
        return writer, Checkpoint(str(folder))

    return made


def run(*arguments: str) -> int:
    """Run a command; returns its exit code."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code
