"""The store: the contents of a checkpoint, by name and meaning.

    <root>/flow.json                          the flow that the state belongs to: steps, keys, schemas, slots
    <root>/owners/<generation>.json           who has started a flow on this checkpoint, and when
    <root>/deltas/<step>/<epoch>-<run>-<host>-<tag>.arrow   the entries that a host changed in an epoch
    <root>/runs/<step>/<version>-<tag>-<slot>.arrow       deltas of many epochs, merged
    <root>/snapshots/<step>/<version>-<tag>-<slot>.arrow  all entries of a slot
    <root>/layouts/<version>-<tag>.json       the snapshots and runs that make up a version
    <root>/manifests/<epoch>.json             a durable epoch: its deltas, routes, watermarks;
                                              <epoch>-<generation>.json from the second start on
    <root>/dead_letters/<epochs>.jsonl        rows set aside in one or more epochs (see `dead_letters`)
    <root>/journal/<time>-<number>.jsonl      decisions and actions of the control plane
    <root>/events/<start>/<number>.jsonl-gz   its input events, for `simulate --replay`
    <root>/moments/<start>/<number>.jsonl-gz  the query in each second, for `penstock dashboard` and `report`
    <root>/begun.json                         time of the current epoch, if its sink takes epochs once
    <root>/pace.json                          duration of epochs, if the SLA bounds what they read
    <root>/control.json                       address of the query that runs on this checkpoint

A manifest names the deltas of its own epoch and the layout that it builds on, so its size does not grow
with the age of a query. It is the commit point: files that are named neither by a manifest nor by its
layout are ignored.

A tag is a random word and the generation that wrote the file (`ownership`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from penstock import codec
from penstock.errors import CheckpointError, ProtocolError
from penstock.model import DeadLetter
from penstock.state.arrays import fixed_values, one_chunk
from penstock.state.keys.codec import KeyCodec
from penstock.state.store import ownership
from penstock.state.store.blocks import SegmentGone, damaged
from penstock.state.store.files import Files, PreparedFile, no_rest, sleep_about
from penstock.state.store.manifest import (
    FORMAT,
    READABLE,
    DeltaRef,
    Layout,
    Manifest,
    SegmentRef,
    StepLayout,
    VersionChain,
    checked,
    from_checked,
    pack_slots,
)
from penstock.state.store.places import Owner, Place
from penstock.state.store.segment import SegmentFile, check_segment, write_segment
from penstock.state.table.table import SLOT

__all__ = [
    "FORMAT",
    "READABLE",
    "DeltaRef",
    "Layout",
    "Manifest",
    "Place",
    "SegmentGone",
    "SegmentRef",
    "StepLayout",
    "Store",
    "VersionChain",
]

T = TypeVar("T")

MergedKind = Literal["runs", "snapshots"]
_CHECKED_BYTES = 256 << 20
"""Maximum bytes of files to read when a version is checked for damage, since the first epoch waits for it."""
_INCOMPLETE = "the folder is incomplete: restore it, or start from a new checkpoint folder"


class Store:
    """Reads and writes one checkpoint. Several processes may each have a store for the same root."""

    def __init__(self, place: Place | str, pause: Callable[[float], None] = sleep_about) -> None:
        self.place = Place(place) if isinstance(place, str) else place
        self.uri = self.place.uri
        self.files = Files(place, pause)
        self._pause = pause
        self._control: bytes | None = None
        """Contents of the control.json that this store has written."""

    # The flow that the checkpoint belongs to, and the query that runs on it

    @property
    def owner(self) -> Owner | None:
        """The start of a flow that uses this store; None: none, and ownership is not checked."""
        return self.place.owner

    def claim(self, now_ms: int) -> None:
        """Take over the checkpoint for a new start of a flow. Older starts stop."""
        self.place = replace(self.place, owner=ownership.claim(self.files, now_ms))

    def must_own(self) -> None:
        """Raise a `CheckpointError` if a newer start has taken over the checkpoint."""
        if self.owner is not None:
            ownership.must_own(self.files, self.owner)

    def must_see(self, host: str) -> None:
        """Raise a `SettingError`, in a host, if it does not see the store that the driver uses."""
        if self.owner is not None:
            ownership.must_see(self.files, self.owner, host, self._pause)

    def new_tag(self) -> str:
        """A new, unique tag for file names."""
        return ownership.new_tag(self.owner)

    def read_flow(self) -> dict[str, Any] | None:
        return self._read_json("flow.json")

    def write_flow(self, facts: dict[str, Any]) -> None:
        self.must_own()
        self.files.write("flow.json", codec.text(facts, indent=1).encode())

    def begin_closing(self, epoch: int) -> int:
        """Record that the flow's input has ended, and that windows close from this epoch on. If an epoch was
        recorded before, it stays. Returns the recorded epoch."""
        facts = self.read_flow() or {}
        if "closing" not in facts:
            self.write_flow(facts | {"closing": epoch})
        return int(facts.get("closing", epoch))

    @property
    def closing(self) -> bool:
        """Whether the flow's input has ended."""
        return "closing" in (self.read_flow() or {})

    def close_flow(self) -> None:
        """Record that the flow is closed, for good."""
        self.write_flow((self.read_flow() or {}) | {"closed": True})

    def read_begun(self) -> dict[str, int] | None:
        """Number and time of day of the newest epoch that has begun; None if it is not recorded."""
        return self._read_json("begun.json")

    def write_begun(self, facts: dict[str, int]) -> None:
        self.must_own()
        self.files.write("begun.json", codec.encode(facts))

    def read_pace(self) -> dict[str, float] | None:
        """Recorded duration of epochs; None if there is none."""
        return self._read_json("pace.json")

    def write_pace(self, facts: dict[str, float]) -> None:
        """Record the duration of epochs, for the next start."""
        self.files.write("pace.json", codec.encode(facts), durable=False)

    def read_control(self) -> dict[str, Any] | None:
        """Address of the running query; None if there is none."""
        return self._read_json("control.json")

    def write_control(self, facts: dict[str, Any]) -> None:
        """Record the address of the running query. Everybody who can read the checkpoint can read it, so it
        contains no token."""
        self._control = codec.encode(facts)
        self.files.write("control.json", self._control, durable=False)

    def remove_control(self) -> None:
        """Remove the address of this query when it ends. The address of another query stays."""
        if self._control is not None and self.files.read("control.json") == self._control:
            self.files.remove("control.json")

    # Segments

    def write_delta(
        self, epoch: int, run: int, step: str, host: str, table: pa.Table, tag: str = ""
    ) -> DeltaRef:
        """Write a delta atomically. An empty delta is not written.

        The tag keeps a host of an earlier start, which may still be running, from replacing it.
        """
        if table.num_rows == 0:
            return DeltaRef(step, host, "", 0, 0)
        who = "-".join(filter(None, (host.replace("/", "-"), tag)))
        name = f"deltas/{step}/{epoch:012d}-{run}-{who}.arrow"
        data, checksum = write_segment(table)
        self.files.write(name, data)
        slots = pack_slots(fixed_values(one_chunk(table.column(SLOT))))
        return DeltaRef(step, host, name, table.num_rows, data.size, checksum, slots)

    def write_merged(
        self,
        kind: MergedKind,
        step: str,
        version: int,
        tag: str,
        table: pa.Table,
        rest: Callable[[], None] = no_rest,
    ) -> SegmentRef:
        """Write a run, or the entries of one slot as its snapshot. There must be at least one row.

        The tag makes the name unique. `rest` is called between small steps.
        """
        slots = np.unique(fixed_values(one_chunk(table.column(SLOT))))
        name = f"{kind}/{step}/{version:012d}-{tag}-{slots[0]}.arrow"
        if self.files.exists(name):
            raise ProtocolError(
                f"{name} of {self.uri} already exists", hint="use a new tag for every compaction"
            )
        data, checksum = write_segment(table, rest)
        self.files.write(name, data, rest=rest)
        packed = pack_slots(slots)
        return SegmentRef(
            step, name, table.num_rows, data.size, checksum, packed, len(slots), version
        )

    def open_segment(self, ref: DeltaRef | SegmentRef, codec: KeyCodec) -> SegmentFile:
        """Open a file to search it. Raises `SegmentGone` if it was removed."""
        try:
            data = self.files.open(ref.file)
        except FileNotFoundError as gone:
            raise SegmentGone(ref.file) from gone
        except pa.ArrowException as unreadable:
            raise CheckpointError(
                f"cannot read {ref.file} of {self.uri}: {unreadable}",
                hint="restore this file from a backup, or start from a new checkpoint folder",
            ) from unreadable
        return SegmentFile.open(data, f"{ref.file} of {self.uri}", codec, ref.checksum)

    # Manifests and layouts

    def write_manifest(self, manifest: Manifest) -> None:
        """Commit an epoch by writing its manifest atomically."""
        self.must_own()
        self.files.write(ownership.manifest_file(manifest.epoch, self.owner), checked(manifest))

    def prepare_manifest(self, manifest: Manifest) -> PreparedFile:
        """Write the manifest of an epoch ahead. Nobody sees it, and it commits nothing."""
        name = ownership.manifest_file(manifest.epoch, self.owner)
        return self.files.prepare(name, checked(manifest))

    def publish_manifest(self, manifest: PreparedFile) -> None:
        """Commit an epoch whose manifest was prepared."""
        self.must_own()
        self.files.publish(manifest)

    def read_manifest(self, epoch: int, files: dict[int, str] | None = None) -> Manifest | None:
        """The manifest of an epoch; None if there is none. Passing the `files` of `manifest_files` saves a
        listing."""
        if files is None and self.owner is not None:
            mine = self._manifest_in(ownership.manifest_file(epoch, self.owner), epoch)
            if mine is not None:
                return mine
        file = (self.manifest_files() if files is None else files).get(epoch)
        return None if file is None else self._manifest_in(file, epoch)

    def _manifest_in(self, file: str, epoch: int) -> Manifest | None:
        manifest = self._read_checked(file, Manifest)
        if manifest is not None and manifest.epoch != epoch:
            damaged(f"{file} of {self.uri}", f"it belongs to epoch {manifest.epoch}")
        return manifest

    def manifest_files(self) -> dict[int, str]:
        """Epoch -> file of its manifest, in order."""
        return ownership.current(file.name for file in self.files.below("manifests"))

    def write_layout(self, layout: Layout) -> str:
        """Write a layout, and return the name by which manifests refer to it."""
        self.must_own()
        self.files.write(layout.file, checked(layout))
        return layout.file

    def read_layout(self, file: str) -> Layout:
        layout = self._read_checked(file, Layout)
        if layout is None:
            raise self.lacks(file)
        return layout

    def epochs(self) -> list[int]:
        """Epochs that have a manifest, in order."""
        return list(self.manifest_files())

    def chain(
        self,
        version: int,
        known: VersionChain | None = None,
        files: dict[int, str] | None = None,
    ) -> VersionChain:
        """Read the manifests and the layout that make up a version. An error names the file that is missing.

        Files of the chain `known`, read before, are not read again if they cannot have changed. The newest
        manifest may be replaced until a later one builds on it.
        """
        if files is None and known is None:
            files = self.manifest_files()
        newest = self.read_manifest(version, files)
        if newest is None:
            raise CheckpointError(
                f"{self.uri} has no manifest of epoch {version}",
                hint=_INCOMPLETE,
            )
        settled = {} if known is None else {m.epoch: m for m in known.manifests}
        settled.pop(-1 if known is None else known.version, None)
        manifests = []
        for epoch in range(newest.base + 1, version):
            manifest = settled.get(epoch) or self.read_manifest(epoch, files)
            if manifest is None:
                raise self.lacks(f"the manifest of epoch {epoch}, which epoch {version} builds on")
            manifests.append(manifest)
        layout = known.layout if known is not None else None
        if not newest.layout:
            layout = None
        elif layout is None or layout.file != newest.layout:
            layout = self.read_layout(newest.layout)
        return VersionChain(newest, layout, (*manifests, newest) if newest.base < version else ())

    def damage(self, version: int) -> str:
        """Describe damage to the files of a version, found by a cheap check; empty if there is none.

        All its files must exist in their full size. Files that the version added are read and checked.
        """
        try:
            chain = self.chain(version)
            layout = [] if chain.layout is None else chain.layout.refs()
            every: list[DeltaRef | SegmentRef] = [
                ref for manifest in chain.manifests for ref in manifest.deltas if ref.rows
            ]
            every += layout
            folders = {ref.file.split("/", 1)[0] for ref in every}
            sizes = {file.name: file.size for f in folders for file in self.files.below(f)}
            for ref in every:
                if ref.checksum is not None and sizes.get(ref.file) != ref.size:
                    return f"{ref.file} is {'cut off' if ref.file in sizes else 'missing'}"
            new: list[DeltaRef | SegmentRef] = [r for r in chain.manifest.deltas if r.rows]
            if self._adopts(chain.manifest):
                new += [ref for ref in layout if ref.upto == chain.manifest.base]
            left = _CHECKED_BYTES
            for ref in new:
                left -= ref.size
                if left >= 0:
                    check_segment(self.files.open(ref.file), ref.file, ref.checksum)
        except CheckpointError as wrong:
            return wrong.message
        except (FileNotFoundError, SegmentGone) as gone:
            return f"a file is missing: {gone}"
        return ""

    def _adopts(self, manifest: Manifest) -> bool:
        """Whether a manifest names another layout than the one before it, or may do so."""
        try:
            before = self.read_manifest(manifest.epoch - 1)
        except CheckpointError:
            return True
        return before is None or before.layout != manifest.layout

    # Dead letters

    def write_dead_letters(self, epoch: int, letters: Sequence[DeadLetter]) -> None:
        self.must_own()
        lines = [{"epoch": epoch} | codec.to_plain(letter) for letter in letters]
        self.files.write(f"dead_letters/{epoch:012d}.jsonl", codec.lines(lines))

    # The journal

    def write_journal(self, name: str, entries: Sequence[object]) -> None:
        """Write entries of the journal to a file. Files are read in the order of their names."""
        self.files.write(f"journal/{name}.jsonl", codec.lines(entries), durable=False)

    def journal_files(self) -> list[str]:
        """Names of the journal's files, oldest first."""
        return sorted(file.name for file in self.files.below("journal"))

    def journal_entries(self, kind: type[T], files: int = 1_000) -> list[T]:
        """Entries in the newest `files` files of the journal, as this type, oldest first."""
        return [
            self._decoded(line, name, kind)
            for name in self.journal_files()[-files:]
            for line in (self.files.read(name) or b"").splitlines()
        ]

    def lacks(self, file: str) -> CheckpointError:
        """The error to raise when a file of a version is missing."""
        return CheckpointError(f"{self.uri} lacks {file}", hint=_INCOMPLETE)

    def _read_checked(self, name: str, kind: type[T]) -> T | None:
        facts = self._read_json(name)
        return None if facts is None else from_checked(facts, f"{name} of {self.uri}", kind)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        data = self.files.read(name)
        return None if data is None else self._decoded(data, name, dict[str, Any])

    def _decoded(self, data: bytes, name: str, kind: type[T]) -> T:
        try:
            return codec.decode(data, kind)
        except ProtocolError as wrong:
            damaged(f"{name} of {self.uri}", wrong.message, wrong)
