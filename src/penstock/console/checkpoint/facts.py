"""What `penstock state` tells of a checkpoint, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["snapshot", "run", "delta"]


@dataclass(frozen=True)
class FileSum:
    """How many files, and how many bytes."""

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
    """Host -> how many slots it owns."""
    entries: int | None = 0
    """None if files are damaged: then they cannot be counted."""
    layout: int | None = None
    """The version of the layout; None before the first one."""
    snapshots: FileSum = FileSum()
    runs: FileSum = FileSum()
    deltas: FileSum = FileSum()
    """Since the layout."""
    watermark_ms: int | None = None
    damaged: tuple[str, ...] = ()
    """What is wrong with which file."""


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
class StateEntry:
    """One key with its state, and where they are."""

    key: dict[str, Any]
    state: dict[str, Any]
    slot: int
    host: str
    """Owns the slot at the epoch shown."""
    kind: Kind
    """The kind of the newest file that tells of it."""
    epoch: int
    """The file's epoch. A delta's entries changed in it, those of others then or before."""
    file: str


@dataclass(frozen=True)
class Entries:
    """Some entries of a step at an epoch, the smallest keys first."""

    step: str
    epoch: int
    total: int
    """How many entries there are, shown or not."""
    entries: tuple[StateEntry, ...]


@dataclass(frozen=True)
class Change:
    """What one file says of a key."""

    kind: Kind
    epoch: int
    file: str
    present: bool
    """False: the entry was removed."""
    state: dict[str, Any]
    gone: dict[str, Any]
    """What was taken away of columns of which the file tells only a part: keys of a map, or how many of
    the first elements of a list."""


@dataclass(frozen=True)
class KeyHistory:
    """One key at an epoch, with every file of that version that tells of it, oldest first."""

    step: str
    epoch: int
    entry: StateEntry
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class SnapshotSum:
    """The snapshots of some slots."""

    slots: int
    """How many of the slots have one."""
    oldest: int | None
    newest: int | None
    """Their versions."""
    bytes: int


@dataclass(frozen=True)
class SlotGroup:
    """Slots that are on one host for the same reason, and what the store has of them."""

    slots: str
    """Such as 0-15,20; empty for a host that owns nothing now but may be given slots."""
    count: int
    host: str
    since: int | None
    """The version at which they came; None if the checkpoint does not tell, as in format 1."""
    why: str | None
    source: str | None
    """The host that gave their state; None if the store did."""
    home: str
    """The host that they are meant for."""
    snapshots: SnapshotSum
    runs: FileSum
    deltas: FileSum
    """Since the layout. Bytes of files that hold other slots too are shared out."""


@dataclass(frozen=True)
class Slots:
    """What `penstock state slots` tells of a step."""

    step: str
    epoch: int
    slots: int
    layout: int | None
    groups: tuple[SlotGroup, ...]
