"""The results of `penstock state`, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["snapshot", "run", "delta"]


@dataclass(frozen=True)
class FileSum:
    """Number and total size of some files."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StepOverview:
    """One step at the newest epoch."""

    id: str
    slots: int
    keys: dict[str, str]
    """Key column -> type."""
    state: dict[str, str]
    """State column -> type."""
    hosts: dict[str, int] = field(default_factory=dict)
    """Host -> number of slots that it owns."""
    entries: int | None = 0
    """Number of entries; None if they cannot be counted because files are damaged."""
    layout: int | None = None
    """Version of the layout; None before the first one."""
    snapshots: FileSum = FileSum()
    runs: FileSum = FileSum()
    deltas: FileSum = FileSum()
    """Deltas since the layout."""
    watermark_ms: int | None = None
    damaged: tuple[str, ...] = ()
    """Errors, one for each damaged file."""


@dataclass(frozen=True)
class Overview:
    """The result of `penstock state ls`."""

    checkpoint: str
    flow: str
    epoch: int | None
    """The newest sealed epoch; None before the first one."""
    sealed_at_ms: int | None
    steps: tuple[StepOverview, ...]


@dataclass(frozen=True)
class StateEntry:
    """One key with its state, host and file."""

    key: dict[str, Any]
    state: dict[str, Any]
    slot: int
    host: str
    """The host that owns the slot at the epoch shown."""
    kind: Kind
    """Kind of the newest file that contains the entry."""
    epoch: int
    """Epoch of that file. The entry changed in this epoch if the file is a delta, else then or before."""
    file: str


@dataclass(frozen=True)
class Entries:
    """Some entries of a step at an epoch, the smallest keys first."""

    step: str
    epoch: int
    total: int
    """Number of entries in the step, shown or not."""
    entries: tuple[StateEntry, ...]


@dataclass(frozen=True)
class Change:
    """A key's content in one file."""

    kind: Kind
    epoch: int
    file: str
    present: bool
    """Whether the entry exists; False if it was removed."""
    state: dict[str, Any]
    gone: dict[str, Any]
    """Removed parts of maps and lists for which the file has only changes: the removed keys of a map, or the
    number of elements removed from the front of a list."""
    same: tuple[str, ...] = ()
    """Columns that the file leaves out because their value had not changed."""


@dataclass(frozen=True)
class KeyHistory:
    """One key at an epoch, with its content in each file of that version, oldest first."""

    step: str
    epoch: int
    entry: StateEntry
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class SnapshotSum:
    """The snapshots of some slots."""

    slots: int
    """Number of slots that have a snapshot."""
    oldest: int | None
    """Version of the oldest snapshot."""
    newest: int | None
    """Version of the newest snapshot."""
    bytes: int


@dataclass(frozen=True)
class SlotGroup:
    """Slots that are on one host for the same reason, with their files in the store."""

    slots: str
    """Slot numbers, such as 0-15,20; empty for a host that owns no slots at present."""
    count: int
    host: str
    since: int | None
    """Version at which they moved here; None if the checkpoint does not record it, as in format 1."""
    why: str | None
    """Reason of the move; None if the checkpoint does not record it."""
    source: str | None
    """Host that sent their state; None if it came from the store."""
    home: str
    """Host that they are to move to; the same as `host` if they are in place."""
    snapshots: SnapshotSum
    runs: FileSum
    deltas: FileSum
    """Deltas since the layout. Files that contain other slots too count with a share of their bytes."""


@dataclass(frozen=True)
class Slots:
    """The result of `penstock state slots` for a step."""

    step: str
    epoch: int
    slots: int
    layout: int | None
    groups: tuple[SlotGroup, ...]
