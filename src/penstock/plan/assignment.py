"""The driver's message to a host when slots move: the slots it owns, and where to fetch the new ones."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.state.keys.slot_map import Split


@dataclass(frozen=True)
class Incoming:
    """Slots that move to a host, and the host that holds a frozen copy of them."""

    slots: tuple[int, ...]
    location: str | None
    """Flight location of the previous host; None: fetch the state from the store."""


@dataclass(frozen=True)
class Assignment:
    """The slots that one host owns from an epoch on."""

    version: int
    """Last epoch under the old owners, and so the version of the state to fetch."""
    owned: tuple[int, ...]
    incoming: tuple[Incoming, ...] = ()
    whole: bool = False
    """Whether rows of an incoming slot wait for the whole slot. If not, they wait only for their own keys."""
    trickle_mb_s: float = 0.0
    """Most megabytes per second at which the host fetches the rest of incoming slots in the background; 0: it
    fetches only what rows need."""
    splits: tuple[Split, ...] = ()
    """The splits of slots from this epoch on. `owned` and `incoming` may name their extra slots."""
