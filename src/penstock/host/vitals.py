"""What a host tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, kw_only=True)
class MovedState:
    """What moving slots, recovering and reading evicted entries cost in one epoch."""

    fetched_keys: int = 0
    """Entries that came from other hosts or the store, because rows needed them or by trickle."""
    fetched_bytes: int = 0
    fetches: int = 0
    """Round trips for entries that rows needed."""
    wait_ms: float = 0.0
    """How long channels waited for those, added up over channels."""
    partial_slots: int = 0
    """Owned slots of which entries may still be elsewhere."""
    left_behind: int = 0
    """Entries of slots given away that nobody has asked for: they never had to move."""
    evicted: int = 0
    """Clean entries dropped for lack of memory."""

    def plus(self, **counts: float) -> Self:
        """The same with these added to what was counted."""
        return replace(self, **{name: getattr(self, name) + more for name, more in counts.items()})


@dataclass(frozen=True, kw_only=True)
class HostVitals(MovedState):
    """What a host tells of itself with a seal."""

    rows: int
    """Rows (or partial states) taken in during the epoch."""
    useful_ms: float
    """Milliseconds spent on them: reading, applying and answering channels, and no waiting."""
    entries: int
    state_bytes: int
    awaited_slots: int = 0
    """Partial slots that a previous host is asked for; of the others the store has everything."""
    watermark_ms: int | None = None
    """What a host of a live flow had fired up to when the epoch ended; None: nothing, or it does not tell."""
