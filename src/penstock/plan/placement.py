"""Where slots are, how they came there, and their changing hands: the values `Topology` deals in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from penstock import codec
from penstock.errors import CheckpointError, ProtocolError, SettingError
from penstock.model import HostId, StepId
from penstock.plan.slots import slots_from_text, slots_to_text

Why = Literal["start", "move", "scale", "host lost", "host is back"]

MOST_SLOTS = 32_768
"""Slots that a step may have."""


@dataclass(frozen=True)
class Handover:
    """Slots that change hands at an epoch boundary."""

    step: StepId
    slots: tuple[int, ...]
    source: HostId | None
    """A ready host that has their state at the boundary's version; None: only the store has it."""
    target: HostId
    why: Why


@dataclass(frozen=True)
class Placement:
    """Slots that are on one host for the same reason.

    >>> a, b = HostId("a"), HostId("b")
    >>> Placement((0, 1, 2), b, 7, "move", source=a, home=b).as_stored()
    {'slots': '0-2', 'host': 'b', 'since': 7, 'why': 'move', 'source': 'a', 'home': 'b'}
    """

    slots: tuple[int, ...]
    """None for a host that owns nothing now but may be given slots."""
    host: HostId
    since: int
    """The version at which they came: the host has worked on them from the epoch after it on."""
    why: Why
    source: HostId | None
    home: HostId
    """The host they are meant for; `host`, unless they wait for another one (or for their turn)."""

    def as_stored(self) -> dict[str, Any]:
        """JSON values for manifests and `penstock ctl`, with the slots as text such as 0-3,7."""
        return {**codec.to_plain(self), "slots": slots_to_text(self.slots)}


def stored_placements(facts: Iterable[dict[str, Any]]) -> list[Placement]:
    """Undo `Placement.as_stored`, for several."""
    return [_stored_placement(one) for one in facts]


def _stored_placement(facts: dict[str, Any]) -> Placement:
    try:
        slots = slots_from_text(facts["slots"], MOST_SLOTS)
        return codec.from_plain(facts | {"slots": slots}, Placement)
    except (AttributeError, KeyError, TypeError, ProtocolError, SettingError) as wrong:
        raise CheckpointError(
            f"a manifest holds a placement that makes no sense: {facts}",
            hint="start from an earlier checkpoint, or restore this one",
        ) from wrong
