"""When the records of an epoch arrived, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.control.examine.vitals import Floats


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Records of one step in one epoch."""

    first_m: int
    """The time slot of the first row of `counts`: time slot m is ((m-1)*delta, m*delta]."""
    counts: Floats
    """By time slot and slot."""
    horizon_ms: float
    """All that arrived until then is known."""
    age_ms: float
    """Average time since arrival when the epoch began."""
    waited_ms: Floats
    """By slot: the same, added up over its records."""

    @property
    def by_slot(self) -> Floats:
        found: Floats = self.counts.sum(axis=0)
        return found
