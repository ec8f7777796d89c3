"""Values that `Topology` works with: placements of slots on hosts, and handovers between hosts."""

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
"""Maximum number of slots of a step."""


@dataclass(frozen=True)
class Handover:
    """Slots that move from one host to another at an epoch boundary."""

    step: StepId
    slots: tuple[int, ...]
    source: HostId | None
    """Ready host that holds their state at the boundary's version; None: only the store holds it."""
    target: HostId
    why: Why


@dataclass(frozen=True)
class Placement:
    """A set of slots that are on one host for the same reason.

    >>> a, b = HostId("a"), HostId("b")
    >>> Placement((0, 1, 2), b, 7, "move", source=a, home=b).as_stored()
    {'slots': '0-2', 'host': 'b', 'since': 7, 'why': 'move', 'source': 'a', 'home': 'b'}
    """

    slots: tuple[int, ...]
    """The slots; empty for a host that owns nothing now but may get slots."""
    host: HostId
    since: int
    """Version at which they moved here. The host has processed them since the epoch after it."""
    why: Why
    source: HostId | None
    """Host they came from; None if their state came from the store."""
    home: HostId
    """Host they should be on. Differs from `host` while they wait for that host or for their turn to move."""

    def as_stored(self) -> dict[str, Any]:
        """JSON values for manifests and `penstock ctl`, with slots as text such as 0-3,7."""
        return {**codec.to_plain(self), "slots": slots_to_text(self.slots)}


def stored_placements(facts: Iterable[dict[str, Any]]) -> list[Placement]:
    """Restore placements from what `Placement.as_stored` returned."""
    return [_stored_placement(stored) for stored in facts]


def _stored_placement(facts: dict[str, Any]) -> Placement:
    try:
        slots = slots_from_text(facts["slots"], MOST_SLOTS)
        return codec.from_plain(facts | {"slots": slots}, Placement)
    except (AttributeError, KeyError, TypeError, ProtocolError, SettingError) as wrong:
        raise CheckpointError(
            f"a manifest contains an invalid placement of slots: {facts}",
            hint="start from an earlier checkpoint, or restore this one",
        ) from wrong
