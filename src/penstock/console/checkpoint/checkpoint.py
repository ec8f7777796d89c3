"""Read-only access to a checkpoint, without Spark or a running query: the core of `penstock state`.

It shows only versions that have a manifest, so a query may run on the folder at the same time.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock import codec
from penstock.console.checkpoint.facts import (
    Entries,
    KeyHistory,
    Overview,
    SlotGroup,
    Slots,
    StateEntry,
    StepOverview,
)
from penstock.console.checkpoint.files import (
    FRAME,
    StateFile,
    StepFiles,
    change,
    companions,
    states,
)
from penstock.errors import CheckpointError
from penstock.plan.epoch import RouteTable
from penstock.plan.placement import Placement, stored_placements
from penstock.plan.slots import slots_to_text
from penstock.state.keys.codec import KeyCodec
from penstock.state.keys.text import parse_key
from penstock.state.store import dead_letters
from penstock.state.store.manifest import check_flow
from penstock.state.store.merging import newest, whole
from penstock.state.store.places import below, open_filesystem
from penstock.state.store.store import (
    READABLE,
    Manifest,
    SegmentGone,
    Store,
    VersionChain,
)
from penstock.state.table.table import KEY

_TRIES = 3
"""Attempts at a read whose version may be removed meanwhile."""
_SORTED_AT_ONCE = 1 << 16
"""Rows collected beyond the limit before they are sorted and cut."""

T = TypeVar("T")


class Checkpoint:
    """A checkpoint folder, or the `penstock` folder inside one. Raises `CheckpointError` otherwise."""

    def __init__(self, folder: str) -> None:
        self._store, self._facts = open_checkpoint(folder)
        self._steps: dict[str, dict[str, Any]] = {s["id"]: s for s in self._facts["steps"]}

    @property
    def steps(self) -> list[str]:
        return list(self._steps)

    def letters(self) -> Iterator[bytes]:
        """The dead letters as lines of JSON, oldest first."""
        return dead_letters.letters(self._store)

    def chosen(self, step: str | None) -> str:
        """The step of this name; without a name, the flow's only step."""
        if step is None and len(self._steps) == 1:
            return next(iter(self._steps))
        if step not in self._steps:
            steps = "several steps" if step is None else f"no step {step!r}"
            raise CheckpointError(
                f"{self._store.uri} has {steps}",
                hint=f"give --step, one of: {', '.join(self._steps)}",
            )
        return step

    def overview(self) -> Overview:
        """All steps at the newest epoch. Reads every entry's key to count the entries."""
        if not self._store.epochs():
            steps = tuple(self._overview(step, None) for step in self._steps)
            return Overview(self._store.uri, self._facts["id"], None, None, steps)

        def work(chain: VersionChain) -> Overview:
            steps = tuple(self._overview(step, chain) for step in self._steps)
            sealed = chain.manifest.sealed_at_ms
            return Overview(self._store.uri, self._facts["id"], chain.version, sealed, steps)

        return self._reading(None, work)

    def entries(self, step: str, epoch: int | None = None, limit: int = 20) -> Entries:
        """The first `limit` entries of a step in key order, at an epoch or at the newest one."""
        self.chosen(step)

        def work(chain: VersionChain) -> Entries:
            files, total, first = self._files(step, chain), 0, list[pa.Table]()
            for piece in files.entries():
                total += piece.num_rows
                first.append(piece)
                if sum(table.num_rows for table in first) > limit + _SORTED_AT_ONCE:
                    first = [self._first(step, first, limit)]
            rows = self._first(step, first, limit) if total else None
            entries = () if rows is None else self._as_entries(step, chain, files, rows)
            return Entries(step, chain.version, total, entries)

        return self._reading(epoch, work)

    def history(self, step: str, key: Sequence[str], epoch: int | None = None) -> KeyHistory | None:
        """The entry of a key, given as texts, with the files that contain it; None if it has no entry."""
        self.chosen(step)
        codec = self._codec(step)
        wanted = parse_key(codec, key)

        def work(chain: VersionChain) -> KeyHistory | None:
            files = self._files(step, chain)
            pieces = [(file, rows) for file, _, rows in files.with_keys(wanted)]
            if not pieces:
                return None
            rows = whole(newest([rows for _, rows in pieces], files.schema, codec))
            if rows.num_rows == 0:
                return None
            (entry,) = self._as_entries(step, chain, files, rows)
            changes = tuple(change(file, rows) for file, rows in reversed(pieces))
            return KeyHistory(step, chain.version, entry, changes)

        return self._reading(epoch, work)

    def slots(self, step: str, epoch: int | None = None) -> Slots:
        """The hosts of a step's slots, the reasons for them, and the slots' files in the store."""
        self.chosen(step)

        def work(chain: VersionChain) -> Slots:
            files = self._files(step, chain)
            groups = tuple(_group(p, known, files) for p, known in _placed(chain.manifest, step))
            slots = self._steps[step]["slots"]
            return Slots(step, chain.version, slots, _layout_version(chain), groups)

        return self._reading(epoch, work)

    def _overview(self, step: str, chain: VersionChain | None) -> StepOverview:
        facts = self._steps[step]
        hidden = {*FRAME, *companions([name for name, _ in facts["state"]])}
        state = {name: type for name, type in facts["state"] if name not in hidden}
        empty = StepOverview(step, facts["slots"], dict(facts["keys"]), state)
        if chain is None:
            return empty
        files = self._files(step, chain)
        entries, damaged = files.count()
        return replace(
            empty,
            hosts=dict(Counter(_owners(chain.manifest, step))),
            entries=entries,
            layout=_layout_version(chain),
            snapshots=files.total("snapshot"),
            runs=files.total("run"),
            deltas=files.total("delta"),
            watermark_ms=chain.manifest.watermarks.get(step),
            damaged=damaged,
        )

    def _reading(self, epoch: int | None, work: Callable[[VersionChain], T]) -> T:
        """Call `work` with the files of an epoch, or of the newest one.

        A running query may remove them meanwhile. For the newest epoch the read is then repeated.
        """
        for _ in range(_TRIES if epoch is None else 1):
            version = self._version(epoch)
            try:
                return work(self._store.chain(version))
            except SegmentGone:
                continue
        raise CheckpointError(
            f"epoch {version} of {self._store.uri} was removed while it was read",
            hint="try again; Settings.keep_epochs is the number of epochs that a running query keeps",
        )

    def _version(self, epoch: int | None) -> int:
        epochs = self._store.epochs()
        if not epochs:
            raise CheckpointError(
                f"{self._store.uri} has no sealed epoch yet", hint="let the flow run an epoch"
            )
        if epoch is not None and epoch not in epochs:
            raise CheckpointError(
                f"{self._store.uri} does not have epoch {epoch}",
                hint=f"use one of the epochs {epochs[0]} to {epochs[-1]}",
            )
        return epochs[-1] if epoch is None else epoch

    def _files(self, step: str, chain: VersionChain) -> StepFiles:
        slots = self._steps[step]["slots"]
        return StepFiles(self._store, chain, step, self._codec(step), slots)

    def _codec(self, step: str) -> KeyCodec:
        try:
            packed = base64.b64decode(self._steps[step]["key_schema"])
            return KeyCodec(pa.ipc.read_schema(pa.py_buffer(packed)))
        except (KeyError, ValueError, pa.ArrowException) as damaged:
            raise CheckpointError(
                f"flow.json of {self._store.uri} lacks the key types of step {step}",
                hint="restore this file from a backup",
            ) from damaged

    def _first(self, step: str, tables: list[pa.Table], limit: int) -> pa.Table:
        table = pa.concat_tables(tables)
        return table.take(_order(self._codec(step), table)[:limit])

    def _as_entries(
        self, step: str, chain: VersionChain, files: StepFiles, rows: pa.Table
    ) -> tuple[StateEntry, ...]:
        codec, owners = self._codec(step), _owners(chain.manifest, step)
        keys, values = codec.from_storage(rows.column(KEY)), states(rows)
        slots = _routes(chain.manifest, step).slots.of(keys.hashes)
        newest_files: dict[int, StateFile] = {}
        for file, places, _ in files.with_keys(keys):
            for place in places.tolist():
                newest_files.setdefault(place, file)
        return tuple(
            StateEntry(
                key=dict(zip(codec.schema.names, key, strict=True)),
                state=values[at],
                slot=slot,
                host=owners[slot],
                kind=newest_files[at].kind,
                epoch=newest_files[at].epoch,
                file=newest_files[at].ref.file,
            )
            for at, (key, slot) in enumerate(
                zip(codec.as_tuples(keys), slots.tolist(), strict=True)
            )
        )


def open_checkpoint(folder: str) -> tuple[Store, dict[str, Any]]:
    """The store of a checkpoint folder, or of the `penstock` folder in one, and its flow.json."""
    files, path = open_filesystem(folder)
    if files.get_file_info(path).type == pafs.FileType.NotFound:
        raise CheckpointError(f"there is no folder {folder}", hint="check the path")
    for place in (below(folder, "penstock"), folder):
        store = Store(place, pause=lambda _: None)  # no retries: the user can run the command again
        facts = store.read_flow()
        if facts is None:
            continue
        if facts.get("format") not in READABLE:
            raise CheckpointError(
                f"{place} has state format {facts.get('format')}, "
                f"this Penstock reads {' and '.join(map(str, READABLE))}",
                hint="use the release that wrote it",
            )
        check_flow(facts, f"flow.json of {store.uri}")
        return store, facts
    raise CheckpointError(
        f"{folder} is not a Penstock checkpoint: there is no penstock/flow.json in it",
        hint="use the folder that was passed to start(checkpoint=...)",
    )


def _layout_version(chain: VersionChain) -> int | None:
    return None if chain.layout is None else chain.layout.version


def _owners(manifest: Manifest, step: str) -> list[str]:
    """The host of each slot."""
    routes = _routes(manifest, step)
    return [routes.hosts[owner] for owner in routes.owner.tolist()]


def _routes(manifest: Manifest, step: str) -> RouteTable:
    return codec.from_plain(manifest.routes[step], RouteTable)


def _placed(manifest: Manifest, step: str) -> list[tuple[Placement, bool]]:
    """The placements of slots, and whether their history is known: format 1 stored only the routes."""
    stored = manifest.placements.get(step)
    if stored:
        return [(placement, True) for placement in stored_placements(stored)]
    routes = _routes(manifest, step)
    return [
        (Placement(tuple(routes.slots_of(n).tolist()), host, -1, "start", None, host), False)
        for n, host in enumerate(routes.hosts)
    ]


def _group(placement: Placement, known: bool, files: StepFiles) -> SlotGroup:
    slots = np.array(placement.slots, np.int32)
    return SlotGroup(
        slots=slots_to_text(placement.slots),
        count=len(slots),
        host=placement.host,
        since=placement.since if known else None,
        why=placement.why if known else None,
        source=placement.source,
        home=placement.home,
        snapshots=files.snapshots(slots),
        runs=files.share("run", slots),
        deltas=files.share("delta", slots),
    )


def _order(codec: KeyCodec, table: pa.Table) -> pa.Array:
    """Indices that sort the rows by key, as far as Arrow can compare the key's types."""
    columns = codec.decode(codec.from_storage(table.column(KEY)))
    flat = [column for column in columns if not pa.types.is_nested(column.type)]
    if not flat:
        return pa.array(range(table.num_rows), pa.int64())
    names = [str(at) for at in range(len(flat))]
    by = [(name, "ascending") for name in names]
    return pc.sort_indices(pa.table(flat, names=names), sort_keys=by)
