"""What a host tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostVitals:
    """What a host tells of itself with a seal."""

    rows: int
    """Rows (or partial states) taken in during the epoch."""
    busy_ms: float
    """Time spent applying channels during the epoch."""
    entries: int
    state_bytes: int
    fetched_keys: int = 0
    """Entries that came from other hosts or the store during the epoch, asked for or trickled."""
    fetched_bytes: int = 0
    fetches: int = 0
    """Round trips for missing keys."""
    wait_ms: float = 0.0
    """Time that channels waited for missing state."""
    partial_slots: int = 0
    """Owned slots of which entries may still be elsewhere."""
    left_behind: int = 0
    """Entries of slots given away that nobody has asked for: they never had to move."""
    evicted: int = 0
    """Clean entries dropped for lack of memory."""


@dataclass
class Moved:
    """What state came here, or was dropped, since the last seal was told."""

    keys: int = 0
    nbytes: int = 0
    fetches: int = 0
    wait_ms: float = 0.0
    evicted: int = 0
