"""Metrics that a host reports for each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from penstock.spans import Span


@dataclass(frozen=True, kw_only=True)
class MovedState:
    """Cost of moved slots, recovery and evicted entries in one epoch."""

    fetched_keys: int = 0
    """Number of entries fetched from other hosts or the store, on demand or in the background."""
    fetched_bytes: int = 0
    """Bytes of those entries."""
    fetches: int = 0
    """Number of round trips for entries that rows waited for."""
    wait_ms: float = 0.0
    """Milliseconds that channels waited for state, summed over channels."""
    partial_slots: int = 0
    """Number of owned slots that may still have entries elsewhere."""
    left_behind: int = 0
    """Number of entries in slots that have left which nobody has asked for, and which never had to move."""
    evicted: int = 0
    """Number of clean entries dropped for lack of memory."""
    helped_rows: int = 0
    """Number of rows of the epoch that other hosts applied for their owner, in the middle of the epoch."""

    def plus(self, **counts: float) -> Self:
        """Return a copy with these amounts added."""
        return replace(self, **{name: getattr(self, name) + more for name, more in counts.items()})


@dataclass(frozen=True, kw_only=True)
class HostVitals(MovedState):
    """Metrics of a host for one epoch, reported when it seals the epoch."""

    rows: int
    """Number of rows (or partial states) applied during the epoch."""
    useful_ms: float
    """Milliseconds spent on them: reading, applying and answering channels, without waiting."""
    entries: int
    """Number of entries in the table, without copies of slots that have left."""
    state_bytes: int
    """Bytes of the table."""
    workers: int = 1
    """Number of workers in use at the end of the epoch."""
    awaited_slots: int = 0
    """Number of partial slots whose previous host is still needed. The store has all of the others."""
    closed_ms: dict[int, float] = field(default_factory=dict)
    """Partition -> time at which its channel was applied, in milliseconds since 1970. Empty in a live run,
    where couriers measure latency."""
    watermark_ms: int | None = None
    """Watermark of a live host at the end of the epoch, in milliseconds since 1970; None if unknown."""
    spans: tuple[Span, ...] = ()
    """What the host did in the epoch, channel by channel. Empty in a live run."""
