"""What the driver tells a host when slots change hands: the slots it owns, and where the new ones are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Incoming:
    """Slots that come to a host, and who holds a frozen copy of them."""

    slots: tuple[int, ...]
    location: str | None
    """The previous host's Flight location; None: only the store has them."""


@dataclass(frozen=True)
class Assignment:
    """The slots of one host from an epoch on."""

    version: int
    """The last epoch under the old owners: what has to be fetched is of this version."""
    owned: tuple[int, ...]
    incoming: tuple[Incoming, ...] = ()
    whole: bool = False
    """Rows of an incoming slot wait until all of the slot is there; else until their own keys are."""
    trickle_mb_s: float = 0.0
    """How fast the rest of incoming slots is brought in the background; 0: not at all."""
