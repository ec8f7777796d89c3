"""What a host must have before it can go on with a channel, and does not have."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.host.residence import FrozenCopy
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys


@dataclass(frozen=True)
class NeedKeys:
    """Entries of these keys, which may exist at a source, or else in the store."""

    parts: tuple[tuple[FrozenCopy | None, Keys], ...]
    changes: int
    """What the residence counted when it was asked: an answer to an older count is worthless."""
    version: int
    """The store is asked for this version."""


@dataclass(frozen=True)
class NeedDue:
    """Entries of these slots whose columns are not zero and at most the limit."""

    parts: tuple[tuple[FrozenCopy | None, Array], ...]
    limits: dict[str, int]
    changes: int
    version: int


@dataclass(frozen=True)
class NeedSlots:
    """These slots, complete: they are being brought already."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """A slot to be brought whole, in the background."""

    slot: int
    source: FrozenCopy | None
    changes: int
    version: int


Need = NeedKeys | NeedDue | NeedSlots
