"""Partitions of a live flow's sources, and the position to read each from."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.control.crew_size import Partition, dealt
from penstock.state.store.store import Manifest, Store
from penstock.wire.live import EpochPassed

_log = logging.getLogger("penstock.live")


class Partitioned(Protocol):
    """A live source, as the driver uses it."""

    def partitions(self) -> list[str]:
        """Names of its partitions."""
        ...

    def first(self, partitions: list[str]) -> dict[str, Any]:
        """First position of each of these partitions, when the flow first starts."""
        ...

    def appeared(self, partitions: list[str]) -> dict[str, Any]:
        """First position of each of these partitions, which were created after the flow had started."""
        ...


class SourcePositions:
    """The partitions of all sources, and the position of each at the newest version."""

    def __init__(
        self, sources: Sequence[Partitioned], store: Store, look_every_ms: float = 30_000
    ) -> None:
        self._sources, self._store, self._look_every_ms = sources, store, look_every_ms
        self.newest: dict[int, dict[str, Any]] = {}
        """Source -> partition -> position of its next row."""
        self.read: list[tuple[int, str]] = []
        """(source, partition) of all partitions that couriers read."""
        self._looked_ms: float | None = None
        self._looking = threading.Lock()
        self._unread: list[tuple[int, str]] = []
        """(source, partition) of new partitions that are not read yet."""

    def take_up(self, manifest: Manifest | None) -> None:
        """Continue from a manifest. New partitions begin where their source says."""
        known = None if manifest is None else manifest.positions
        self.newest = {int(source): dict(places) for source, places in (known or {}).items()}
        for number, source in enumerate(self._sources):
            self._add(number, source.partitions())

    def _add(self, number: int, partitions: Sequence[str]) -> None:
        """Add partitions of a source."""
        source, here = self._sources[number], self.newest.setdefault(number, {})
        facts = self._store.read_flow() or {}
        noted: dict[str, dict[str, Any]] = facts.get("positions", {})
        first = noted.setdefault(str(number), {})
        if fresh := [p for p in partitions if p not in here and p not in first]:
            # Stored before anything is read, so that a restart before the first manifest reads the same.
            first |= (source.appeared if here or first else source.first)(fresh)
            self._store.write_flow(facts | {"positions": noted})
        here |= {p: first[p] for p in partitions if p not in here}
        self.read += [(number, partition) for partition in partitions]

    def look(self, now_ms: float) -> None:
        """Look for new partitions from time to time, in another thread."""
        if self._looked_ms is None:
            self._looked_ms = now_ms
        if now_ms >= self._looked_ms + self._look_every_ms and self._looking.acquire(
            blocking=False
        ):
            self._looked_ms = now_ms
            threading.Thread(target=self._look, name="partitions", daemon=True).start()

    def _look(self) -> None:
        try:
            now = [(n, p) for n, source in enumerate(self._sources) for p in source.partitions()]
            read = set(self.read)
            self._unread = [partition for partition in now if partition not in read]
        except Exception as away:  # not fatal: couriers report a source that cannot be read
            _log.warning(
                "Could not look for new partitions of the sources: %s",
                away,
                extra={"reason": str(away)},
            )
        finally:
            self._looking.release()

    @property
    def grown(self) -> bool:
        """Whether there are partitions that no courier reads yet."""
        return bool(self._unread)

    def take_new(self) -> None:
        """Add the new partitions to those that are read."""
        new, self._unread = self._unread, []
        unread = [partition for partition in new if partition not in self.read]
        for number in sorted({number for number, _ in unread}):
            fresh = [partition for of, partition in unread if of == number]
            _log.info(
                "Source %d has new partitions, which are read from now on: %s",
                number,
                ", ".join(fresh),
                extra={"source": number, "partitions": fresh},
            )
            self._add(number, fresh)

    def deal(
        self, couriers: int, loads: Mapping[Partition, float] | None = None
    ) -> list[dict[int, dict[str, Any]]]:
        """Positions of the partitions of each courier, distributed by their loads if those are known."""
        parts = []
        for mine in dealt(self.read, couriers, loads):
            positions: dict[int, dict[str, Any]] = {}
            for source, partition in mine:
                positions.setdefault(source, {})[partition] = self.newest[source][partition]
            parts.append(positions)
        return parts

    def advance(self, passed: EpochPassed) -> None:
        """Take in the durable positions of a courier."""
        for source, places in passed.positions.items():
            self.newest[source] |= places
