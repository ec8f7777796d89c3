"""A checkpoint seen from outside: no Spark, no running query, and nothing in it is changed.

`penstock state` is made of this. Whatever is shown is a version that a manifest vouches for, so a
query may well be running on the folder meanwhile.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock.errors import CheckpointError
from penstock.plan.epoch import RouteTable
from penstock.state.key_index import key_index
from penstock.state.key_text import parse_key
from penstock.state.keys import KeyCodec, slots_of
from penstock.state.store import FORMAT, DeltaRef, Manifest, Store, open_filesystem
from penstock.state.table import KEY, PRESENT, SLOT

_EPOCH, _FILE = "__epoch", "__file"


@dataclass(frozen=True)
class StepOverview:
    """One step at the newest epoch."""

    id: str
    slots: int
    keys: dict[str, str]
    """Key column -> type."""
    state: dict[str, str]
    """State column -> type."""
    hosts: dict[str, int]
    """Host -> how many slots it owns."""
    entries: int
    deltas: int
    """Delta files that restore this version."""
    bytes: int
    """Of those files."""
    watermark_ms: int | None


@dataclass(frozen=True)
class Overview:
    """What `penstock state ls` tells."""

    checkpoint: str
    flow: str
    epoch: int | None
    """The newest sealed epoch; None before the first."""
    sealed_at_ms: int | None
    steps: tuple[StepOverview, ...]


@dataclass(frozen=True)
class Entry:
    """One key with its state, and where they are."""

    key: dict[str, Any]
    state: dict[str, Any]
    slot: int
    host: str
    """Owns the slot at the epoch shown."""
    epoch: int
    """Changed it last."""
    file: str
    """The delta that it stands in."""


@dataclass(frozen=True)
class Entries:
    """Some entries of a step at an epoch, the smallest keys first."""

    step: str
    epoch: int
    total: int
    """How many entries there are, shown or not."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Change:
    """What one delta says of a key."""

    epoch: int
    file: str
    present: bool
    """False: the entry was removed."""
    state: dict[str, Any]


@dataclass(frozen=True)
class History:
    """One key at an epoch, with every delta of the chain that tells of it, oldest first."""

    step: str
    epoch: int
    entry: Entry
    changes: tuple[Change, ...]


class Checkpoint:
    """A checkpoint folder, or the `penstock` folder inside one. Refuses at once what is neither."""

    def __init__(self, folder: str) -> None:
        self._store, self._facts = _opened(folder)
        self._steps: dict[str, dict[str, Any]] = {s["id"]: s for s in self._facts["steps"]}

    def chosen(self, step: str | None) -> str:
        """The step of that name; without a name, the only step there is."""
        if step is None and len(self._steps) == 1:
            return next(iter(self._steps))
        if step not in self._steps:
            what = "several steps" if step is None else f"no step {step!r}"
            raise CheckpointError(
                f"{self._store.uri} has {what}",
                hint=f"give --step, one of: {', '.join(self._steps)}",
            )
        return step

    def overview(self) -> Overview:
        """All steps at the newest epoch. Reads the keys of every entry to count them."""
        chain = self._store.chain(newest) if (newest := self._newest()) is not None else []
        steps = tuple(self._overview(step, chain) for step in self._steps)
        sealed = chain[-1].sealed_at_ms if chain else None
        return Overview(self._store.uri, self._facts["id"], newest, sealed, steps)

    def entries(self, step: str, epoch: int | None = None, limit: int = 20) -> Entries:
        """The first entries of a step by key, at an epoch or at the newest one."""
        chain = self._chain(step, epoch)
        codec = self._codec(step)
        table = self._merged(step, chain)
        order = _order(codec, table)[:limit]
        entries = self._as_entries(step, chain[-1], table.take(order)) if len(order) else ()
        return Entries(step, chain[-1].epoch, table.num_rows, entries)

    def history(self, step: str, key: Sequence[str], epoch: int | None = None) -> History | None:
        """One key, given as texts, with the deltas that tell of it; None if it has no entry."""
        chain = self._chain(step, epoch)
        codec = self._codec(step)
        wanted = parse_key(codec, key)
        slot = int(slots_of(wanted.hashes, self._steps[step]["slots"])[0])
        stored = codec.to_storage(wanted)[0]
        changes, last = [], None
        for at, ref in _deltas(step, chain):
            table = self._store.read_delta(ref)
            row = table.filter(pc.equal(table.column(KEY), stored)).slice(0, 1)
            if row.num_rows:
                present = bool(row.column(PRESENT)[0].as_py())
                state = _state(row)[0]
                changes.append(Change(at, ref.file, present, state))
                last = Change(at, ref.file, present, state) if present else None
        if last is None:
            return None
        host = _owners(chain[-1], step)[slot]
        named = dict(zip(codec.schema.names, codec.one(wanted, 0), strict=True))
        entry = Entry(named, last.state, slot, host, last.epoch, last.file)
        return History(step, chain[-1].epoch, entry, tuple(changes))

    def _overview(self, step: str, chain: list[Manifest]) -> StepOverview:
        facts = self._steps[step]
        refs = [ref for _, ref in _deltas(step, chain)]
        owners = _owners(chain[-1], step) if chain else []
        return StepOverview(
            id=step,
            slots=facts["slots"],
            keys=dict(facts["keys"]),
            state={n: t for n, t in facts["state"] if n not in (KEY, SLOT, PRESENT)},
            hosts=dict(Counter(owners)),
            entries=self._merged(step, chain, [KEY, PRESENT]).num_rows,
            deltas=len(refs),
            bytes=sum(ref.size for ref in refs),
            watermark_ms=chain[-1].watermarks.get(step) if chain else None,
        )

    def _newest(self) -> int | None:
        return max(self._store.epochs(), default=None)

    def _chain(self, step: str, epoch: int | None) -> list[Manifest]:
        self.chosen(step)
        epochs = self._store.epochs()
        if not epochs:
            raise CheckpointError(
                f"{self._store.uri} holds no sealed epoch yet", hint="let the flow run an epoch"
            )
        if epoch is not None and epoch not in epochs:
            raise CheckpointError(
                f"{self._store.uri} does not hold epoch {epoch}",
                hint=f"the epochs there are {epochs[0]} to {epochs[-1]}",
            )
        return self._store.chain(epochs[-1] if epoch is None else epoch)

    def _codec(self, step: str) -> KeyCodec:
        try:
            packed = base64.b64decode(self._steps[step]["key_schema"])
            return KeyCodec(pa.ipc.read_schema(pa.py_buffer(packed)))
        except (KeyError, ValueError, pa.ArrowException) as damaged:
            raise CheckpointError(
                f"flow.json of {self._store.uri} does not tell the key types of step {step}",
                hint="restore this file from a backup",
            ) from damaged

    def _merged(
        self, step: str, chain: list[Manifest], columns: list[str] | None = None
    ) -> pa.Table:
        """The entries present at the end of the chain, with the epoch and delta of each.

        Newest delta first: what is known of a key by then is the newest, be it that it is gone.
        """
        codec = self._codec(step)
        seen = key_index(codec.layout)
        parts = []
        for epoch, ref in reversed(_deltas(step, chain)):
            table = self._store.read_delta(ref)
            before = seen.size
            entries = seen.upsert(codec.from_storage(table.column(KEY)))
            table = table.select(columns) if columns else table
            rows = table.take(pa.array(np.flatnonzero(entries >= before)))
            rows = rows.filter(rows.column(PRESENT))
            rows = rows.append_column(_EPOCH, pa.repeat(pa.scalar(epoch), rows.num_rows))
            parts.append(rows.append_column(_FILE, pa.repeat(ref.file, rows.num_rows)))
        return (
            pa.concat_tables(parts) if parts else pa.table({KEY: pa.array([], codec.storage_type)})
        )

    def _as_entries(self, step: str, manifest: Manifest, rows: pa.Table) -> tuple[Entry, ...]:
        codec, owners = self._codec(step), _owners(manifest, step)
        keys = codec.as_tuples(codec.from_storage(rows.column(KEY)))
        slots, epochs, files = (rows.column(n).to_pylist() for n in (SLOT, _EPOCH, _FILE))
        return tuple(
            Entry(
                dict(zip(codec.schema.names, key, strict=True)), state, slot, owners[slot], at, file
            )
            for key, state, slot, at, file in zip(
                keys, _state(rows), slots, epochs, files, strict=True
            )
        )


def _opened(folder: str) -> tuple[Store, dict[str, Any]]:
    files, path = open_filesystem(folder)
    if files.get_file_info(path).type == pafs.FileType.NotFound:
        raise CheckpointError(f"there is no folder {folder}", hint="check the path")
    for place in (f"{folder.rstrip('/')}/penstock", folder):
        store = Store(place)
        facts = store.read_flow()
        if facts is None:
            continue
        if facts.get("format") != FORMAT:
            raise CheckpointError(
                f"{place} has state format {facts.get('format')}, this Penstock reads {FORMAT}",
                hint="look at it with the release that wrote it",
            )
        return store, facts
    raise CheckpointError(
        f"{folder} is not a Penstock checkpoint: there is no penstock/flow.json in it",
        hint="give the folder that was given to start(checkpoint=...)",
    )


def _deltas(step: str, chain: list[Manifest]) -> list[tuple[int, DeltaRef]]:
    """The deltas of a step with their epochs, oldest first."""
    return [(m.epoch, ref) for m in chain for ref in m.deltas if ref.step == step and ref.rows]


def _owners(manifest: Manifest, step: str) -> list[str]:
    """The host of each slot."""
    routes = RouteTable.from_json(manifest.routes[step])
    return [routes.hosts[owner] for owner in routes.owner.tolist()]


def _state(rows: pa.Table) -> list[dict[str, Any]]:
    names = [n for n in rows.schema.names if n not in (KEY, SLOT, PRESENT, _EPOCH, _FILE)]
    found: list[dict[str, Any]] = rows.select(names).to_pylist()
    return found if names else [{} for _ in range(rows.num_rows)]


def _order(codec: KeyCodec, table: pa.Table) -> pa.Array:
    """The rows by key, as far as Arrow can compare the key's types."""
    if table.num_rows:
        columns = codec.decode(codec.from_storage(table.column(KEY)))
        flat = [column for column in columns if not pa.types.is_nested(column.type)]
        if flat:
            names = [str(at) for at in range(len(flat))]
            by = [(name, "ascending") for name in names]
            return pc.sort_indices(pa.table(flat, names=names), sort_keys=by)
    return pa.array(range(table.num_rows), pa.int64())
