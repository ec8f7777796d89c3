"""What the driver tells a host when slots change hands: the slots it owns, and where the new ones are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Incoming:
    """Slots that come to a host, and who holds a frozen copy of them."""

    slots: tuple[int, ...]
    location: str | None
    """The previous host's Flight location; None: only the store has them."""


@dataclass(frozen=True)
class Assignment:
    """The slots of one host from an epoch on.

    >>> order = Assignment(7, (0, 1), (Incoming((1,), None),), whole=False, trickle_mb_s=16.0)
    >>> Assignment.from_json(order.to_json()) == order
    True
    """

    version: int
    """The last epoch under the old owners: what has to be fetched is of this version."""
    owned: tuple[int, ...]
    incoming: tuple[Incoming, ...] = ()
    whole: bool = False
    """Rows of an incoming slot wait until all of the slot is there; else until their own keys are."""
    trickle_mb_s: float = 0.0
    """How fast the rest of incoming slots is brought in the background; 0: not at all."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(facts: dict[str, Any]) -> Assignment:
        incoming = tuple(Incoming(tuple(i["slots"]), i["location"]) for i in facts["incoming"])
        return Assignment(
            facts["version"],
            tuple(facts["owned"]),
            incoming,
            facts["whole"],
            facts["trickle_mb_s"],
        )
