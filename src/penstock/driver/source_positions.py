"""Where a live flow's sources are read: which partitions there are, and where each goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.driver.couriers import dealt
from penstock.state.store.store import Manifest, Store
from penstock.wire.live import EpochPassed


class Partitioned(Protocol):
    """What the driver asks of a live source."""

    def partitions(self) -> list[str]:
        """The names of its partitions."""
        ...

    def first(self, partitions: list[str]) -> dict[str, Any]:
        """Where to begin in these partitions."""
        ...


class SourcePositions:
    """The partitions of all sources, and where each goes on from the newest version."""

    def __init__(self, sources: Sequence[Partitioned], store: Store) -> None:
        self._sources, self._store = sources, store
        self.newest: dict[int, dict[str, Any]] = {}
        """Source -> partition -> where it goes on."""
        self.read: list[tuple[int, str]] = []
        """(source, partition) of all that couriers read."""

    def take_up(self, manifest: Manifest | None) -> None:
        """Go on from a manifest; in partitions that are new, where their source says."""
        told = None if manifest is None else manifest.positions
        known = {int(source): dict(places) for source, places in (told or {}).items()}
        facts = self._store.read_flow() or {}
        noted: dict[str, dict[str, Any]] = facts.get("positions", {})
        for number, source in enumerate(self._sources):
            first, here = noted.setdefault(str(number), {}), known.setdefault(number, {})
            partitions = source.partitions()
            if fresh := [p for p in partitions if p not in here and p not in first]:
                # Noted before anything is read, so that a crash before the first manifest reads the same.
                first |= source.first(fresh)
                self._store.write_flow(facts | {"positions": noted})
            here |= {p: first[p] for p in partitions if p not in here}
            self.read += [(number, partition) for partition in partitions]
        self.newest = known

    def deal(self, couriers: int) -> list[dict[int, dict[str, Any]]]:
        """What each courier of a run reads, and from where."""
        parts = []
        for mine in dealt(self.read, couriers):
            positions: dict[int, dict[str, Any]] = {}
            for source, partition in mine:
                positions.setdefault(source, {})[partition] = self.newest[source][partition]
            parts.append(positions)
        return parts

    def go_on(self, passed: EpochPassed) -> None:
        """A courier has read so far, and that is durable."""
        for source, places in passed.positions.items():
            self.newest[source] |= places
