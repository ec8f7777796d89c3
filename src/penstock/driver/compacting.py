"""One compaction of the store, from the driver's side: its parts run on hosts and are watched from here.

A part is a set of slots of one step. It reads files and writes files, so any host of the step can do it, and
its result stays valid if a host is lost later. A part goes to another host if its host fails, is lost,
stalls, or no longer owns any of the slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from threading import Event

from penstock import codec
from penstock.driver.fleet import Fleet
from penstock.errors import HostLostError, PenstockError
from penstock.faults import point
from penstock.host.compactor import CompactionStanding, CompactOrder
from penstock.model import HostId
from penstock.state.store.compaction import Compacted, merged_layout
from penstock.state.store.store import Store

Owners = list[tuple[str, HostId, list[int]]]
"""(step, host, its slots)."""

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds between checks of the parts; the last value repeats."""


class Stopped(Exception):
    """The query is stopping, so the work is abandoned."""


@dataclass
class _Part:
    """A set of slots of one step, with the progress of its compaction."""

    step: str
    slots: frozenset[int]
    host: HostId | None = None
    """Host that works on it; None while it waits for one."""
    tag: str = ""
    """Tag of the order that this host received."""
    steps: int = -1
    """Number of its steps at the last check."""
    since: float = 0.0
    """Time of its last progress, in seconds of a steady clock."""
    tried: set[HostId] = field(default_factory=set)
    """Hosts that have failed at it in this attempt."""
    failed: PenstockError | None = None
    done: Compacted | None = None

    @property
    def open(self) -> bool:
        return self.done is None and self.failed is None


class Compaction:
    """Merges the deltas of all slots up to a version. If an attempt fails, the next one keeps the finished
    parts."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        version: int,
        owners: Owners,
        stalled_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = version
        self.tag = store.new_tag()
        """Part of the names of all its files."""
        self._store, self._fleet, self._clock = store, fleet, clock
        self._stalled_s = stalled_ms / 1000
        self._parts = [_Part(step, frozenset(slots)) for step, _, slots in owners if slots]
        self._orders = count()

    def attempt(self, soft: bool, stopping: Event) -> tuple[int, str]:
        """Run all unfinished parts. Returns the version and the file of the new layout."""
        parts = [part for part in self._parts if part.done is None]
        for part in parts:
            part.tried, part.failed, part.since = set(), None, self._clock()
        pauses = _pauses()
        while any(part.open for part in parts):
            for part in parts:
                if part.open and part.host is None:
                    self._begin(part, soft)
                elif part.open:
                    self._look_after(part)
            if stopping.wait(next(pauses)):
                raise Stopped
        for part in parts:
            if part.failed is not None:
                raise part.failed
        done = [part.done for part in self._parts if part.done is not None]
        layout = merged_layout(self._store.chain(self.version).layout, done, self.version, self.tag)
        file = self._store.write_layout(layout)
        point("driver.layout", version=self.version)
        return self.version, file

    def _begin(self, part: _Part, soft: bool) -> None:
        """Start the part on the free host that owns most of it and has not failed at it."""
        owned = self._fleet.owned_by_step(part.step)
        left = [host for host in owned if host not in part.tried]
        if not left:
            lost = HostLostError(f"step {part.step} has no host that can compact its slots")
            if part.tried or self._clock() - part.since > self._stalled_s:
                part.failed = part.failed or lost
            return
        busy = {other.host for other in self._parts if other.open}
        free = [host for host in left if host not in busy]
        if not free:
            return
        host = max(free, key=lambda host: len(owned[host] & part.slots))
        part.host, part.tag = host, f"{self.tag}.{next(self._orders)}"
        part.steps, part.since = -1, self._clock()
        order = CompactOrder(tuple(sorted(part.slots)), self.version, part.tag, soft)
        try:
            self._fleet.ask(host, "compact", order=order)
        except PenstockError as refused:
            self._give_up(part, refused)

    def _look_after(self, part: _Part) -> None:
        assert part.host is not None
        try:
            facts = self._fleet.ask(part.host, "compaction", tag=part.tag)
            standing = codec.from_plain(facts, CompactionStanding)
        except PenstockError as failed:
            return self._give_up(part, failed)
        part.done = standing.part
        if part.done is not None:
            return None
        if standing.steps > part.steps:
            part.steps, part.since = standing.steps, self._clock()
        if self._clock() - part.since > self._stalled_s:
            return self._give_up(
                part,
                HostLostError(
                    f"host {part.host} made no progress with a compaction for {self._stalled_s:g} s",
                    hint="check how fast the store is, or raise Settings.compact_stalled_ms",
                ),
            )
        if not self._fleet.owned(part.host) & part.slots:
            self._give_up(part, None)
        return None

    def _give_up(self, part: _Part, why: PenstockError | None) -> None:
        """Take the part away from its host. A host that failed does not get it again in this attempt."""
        host, part.host = part.host, None
        assert host is not None
        if why is not None:
            part.tried.add(host)
        with suppress(PenstockError):
            self._fleet.ask(host, "cancel_compaction", tag=part.tag)
        if why is not None and not set(self._fleet.owned_by_step(part.step)) - part.tried:
            part.failed = why


def _pauses() -> Iterator[float]:
    yield from _PAUSES_S
    while True:
        yield _PAUSES_S[-1]
