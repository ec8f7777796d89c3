"""Where a live flow's sources are read: which partitions there are, and where each goes on."""

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
    """What the driver asks of a live source."""

    def partitions(self) -> list[str]:
        """The names of its partitions."""
        ...

    def first(self, partitions: list[str]) -> dict[str, Any]:
        """Where to begin in these partitions."""
        ...

    def appeared(self, partitions: list[str]) -> dict[str, Any]:
        """Where to begin in these partitions, which came to be after the flow had begun."""
        ...


class SourcePositions:
    """The partitions of all sources, and where each goes on from the newest version."""

    def __init__(
        self, sources: Sequence[Partitioned], store: Store, look_every_ms: float = 30_000
    ) -> None:
        self._sources, self._store, self._look_every_ms = sources, store, look_every_ms
        self.newest: dict[int, dict[str, Any]] = {}
        """Source -> partition -> where it goes on."""
        self.read: list[tuple[int, str]] = []
        """(source, partition) of all that couriers read."""
        self._looked_ms: float | None = None
        self._looking = threading.Lock()
        self._unread: list[tuple[int, str]] = []
        """Partitions that came to be since."""

    def take_up(self, manifest: Manifest | None) -> None:
        """Go on from a manifest; in partitions that are new, where their source says."""
        told = None if manifest is None else manifest.positions
        self.newest = {int(source): dict(places) for source, places in (told or {}).items()}
        for number, source in enumerate(self._sources):
            self._add(number, source.partitions())

    def _add(self, number: int, partitions: Sequence[str]) -> None:
        """Read these partitions, too."""
        source, here = self._sources[number], self.newest.setdefault(number, {})
        facts = self._store.read_flow() or {}
        noted: dict[str, dict[str, Any]] = facts.get("positions", {})
        first = noted.setdefault(str(number), {})
        if fresh := [p for p in partitions if p not in here and p not in first]:
            # Noted before anything is read, so that a crash before the first manifest reads the same.
            first |= (source.appeared if here or first else source.first)(fresh)
            self._store.write_flow(facts | {"positions": noted})
        here |= {p: first[p] for p in partitions if p not in here}
        self.read += [(number, partition) for partition in partitions]

    def look(self, now_ms: float) -> None:
        """Look from time to time, in another thread, whether a source has more partitions."""
        if self._looked_ms is None:
            self._looked_ms = now_ms
        if now_ms >= self._looked_ms + self._look_every_ms and self._looking.acquire(
            blocking=False
        ):
            self._looked_ms = now_ms
            threading.Thread(target=self._look, name="partitions", daemon=True).start()

    def _look(self) -> None:
        try:
            found = [(n, p) for n, source in enumerate(self._sources) for p in source.partitions()]
            read = set(self.read)
            self._unread = [one for one in found if one not in read]
        except Exception as away:  # couriers tell if it cannot be read: this is no reason to stop
            _log.warning(
                "Could not look for new partitions of the sources: %s",
                away,
                extra={"reason": str(away)},
            )
        finally:
            self._looking.release()

    @property
    def grown(self) -> bool:
        """Whether there are partitions that nobody reads yet."""
        return bool(self._unread)

    def take_new(self) -> None:
        """Have the partitions that came to be read, too."""
        found, self._unread = self._unread, []
        unread = [one for one in found if one not in self.read]
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
        """What each courier of a run reads, and from where; by the partitions' loads, if they are known."""
        parts = []
        for mine in dealt(self.read, couriers, loads):
            positions: dict[int, dict[str, Any]] = {}
            for source, partition in mine:
                positions.setdefault(source, {})[partition] = self.newest[source][partition]
            parts.append(positions)
        return parts

    def go_on(self, passed: EpochPassed) -> None:
        """A courier has read so far, and that is durable."""
        for source, places in passed.positions.items():
            self.newest[source] |= places
