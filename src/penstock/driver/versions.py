"""The versions of a started flow: where it continues, its manifests, and the store's upkeep.

Micro-batches and live flows both use this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock import codec
from penstock.driver.clock import EpochClock, wall_ms
from penstock.driver.compacting import Owners
from penstock.driver.fleet import Fleet
from penstock.driver.upkeep import Upkeep
from penstock.errors import (
    FEWER_ROWS,
    ChangedInputError,
    CheckpointError,
    DeliveryError,
    HostLostError,
    PenstockError,
    StaleRunError,
)
from penstock.model import DeadLetter
from penstock.plan import watermarks
from penstock.plan.epoch import RouteTable
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.state.store.files import PreparedFile
from penstock.state.store.store import DeltaRef, Manifest, Store
from penstock.wire.report import Seen

_log = logging.getLogger("penstock.epochs")

_PAUSE_S = 1.0
"""Seconds to pause before another run, after many runs in which a host could not be reached."""

Positions = Mapping[int, Mapping[str, Any]]
"""Number of a source -> partition -> position of its next row."""


@dataclass(frozen=True)
class MadeOf:
    """What the manifest of an epoch is made of."""

    epoch: int
    run: int
    deltas: tuple[DeltaRef, ...]
    routes: Mapping[str, RouteTable]
    placements: Mapping[str, list[dict[str, Any]]]
    seen: tuple[Seen, ...]

    def is_like(self, other: MadeOf) -> bool:
        """Whether both make the same manifest. Routes and reports must be the same objects."""
        return (
            (self.epoch, self.run, self.deltas) == (other.epoch, other.run, other.deltas)
            and self.placements == other.placements
            and self.routes.keys() == other.routes.keys()
            and all(table is other.routes[step] for step, table in self.routes.items())
            and len(self.seen) == len(other.seen)
            and all(one is another for one, another in zip(self.seen, other.seen, strict=True))
        )


@dataclass(frozen=True)
class ReadyManifest:
    """A manifest that was written ahead, and commits nothing before it is published."""

    made_of: MadeOf
    manifest: Manifest
    event_times: watermarks.Known
    file: PreparedFile

    def fits(self, made_of: MadeOf) -> bool:
        """Whether the epoch's manifest would be the same now, but for its times."""
        return self.made_of.is_like(made_of)


class Versions:
    """Writes the manifest of each epoch. Used by one thread: the query's."""

    def __init__(
        self,
        flow: FlowPlan,
        fleet: Fleet,
        store: Store,
        settings: Settings,
        clock_ms: Callable[[], float] = wall_ms,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        live: bool = False,
    ) -> None:
        """Couriers of a `live` flow always know their sources' partitions; others only by a column."""
        self._store, self._clock_ms, self._graph = store, clock_ms, flow.graph
        self._live = live
        times = (source.time for source in flow.sources)
        self._times = tuple(t and replace(t, by_partition=t.by_partition or live) for t in times)
        self.upkeep = Upkeep(store, fleet, settings)
        self.newest: int | None = None
        """Newest durable version; -1 if there is none, None if it is not known yet."""
        self.base, self.layout = -1, ""
        """Version and file of the layout for the next manifest."""
        self.watermarks: dict[str, int | None] = {step.id: None for step in flow.keyed}
        self.event_times: watermarks.Known = {}
        self.time = EpochClock(clock_ms, steady_ms)
        self.started_ms = self.time.now_ms()

    def take_up(self, version: int) -> Manifest | None:
        """Continue from a version. Returns its manifest, or None for version -1."""
        manifest = None
        if version >= 0:
            manifest = self._store.chain(version).manifest
            self.base, self.layout = manifest.base, manifest.layout
            self.watermarks = dict(manifest.watermarks)
            if (manifest.positions is not None) == self._live:
                # else it was made in the other mode, where partitions have other names
                self.event_times = watermarks.known_from(manifest.event_times)
            self.time.not_before(manifest.time_ms)
        with suppress(CheckpointError):  # a damaged one may be the reason to run it again
            # It may have been run before, with a clock that was ahead of this one.
            replaced = self._store.read_manifest(version + 1)
            self.time.not_before(None if replaced is None else replaced.time_ms)
        self.started_ms = self.time.now_ms()
        self.newest = version
        if manifest is not None:
            _log.info(
                "Continues after epoch %d of %s.",
                version,
                self._store.uri,
                extra={"epoch": version, "checkpoint": self._store.uri},
            )
        return manifest

    def next_epoch(self) -> int:
        """Number of the epoch after the newest durable one."""
        newest = max(self._store.epochs(), default=-1) if self.newest is None else self.newest
        return newest + 1

    def commit(
        self,
        epoch: int,
        run: int,
        deltas: Iterable[DeltaRef],
        routes: Mapping[str, RouteTable],
        placements: dict[str, list[dict[str, Any]]],
        seen: Sequence[Seen],
        dead: Sequence[DeadLetter],
        positions: Positions | None = None,
        runs: Sequence[tuple[int, int]] | None = None,
        fired: Mapping[str, int | None] | None = None,
        ready: ReadyManifest | None = None,
    ) -> None:
        """Write the manifest of an epoch. `fired` is the watermark of each step, if its hosts report it.
        `ready` is its manifest as it was prepared, which is used if nothing has changed since."""
        made_of = MadeOf(epoch, run, tuple(deltas), routes, placements, tuple(seen))
        if dead:
            self._store.write_dead_letters(epoch, dead)
        layout = self.upkeep.newest_layout()
        if layout is not None:
            self.base, self.layout = layout
        if ready is not None and (dead or layout is not None or not ready.fits(made_of)):
            self.discard(ready)
            ready = None
        if ready is None:
            manifest, event_times = self._manifest(made_of, positions, runs, fired)
            self._store.write_manifest(manifest)
        else:
            manifest, event_times = ready.manifest, ready.event_times
            self._store.publish_manifest(ready.file)
        self.newest, self.watermarks, self.event_times = epoch, manifest.watermarks, event_times

    def prepare(self, made_of: MadeOf) -> ReadyManifest:
        """Write the manifest of an epoch ahead, while its sink still works. Any thread may call this while
        the query's thread waits for the sink."""
        manifest, event_times = self._manifest(made_of)
        return ReadyManifest(made_of, manifest, event_times, self._store.prepare_manifest(manifest))

    def discard(self, ready: ReadyManifest) -> None:
        """Forget a prepared manifest: its run has failed, or something has changed."""
        self._store.files.discard(ready.file)

    def _manifest(
        self,
        of: MadeOf,
        positions: Positions | None = None,
        runs: Sequence[tuple[int, int]] | None = None,
        fired: Mapping[str, int | None] | None = None,
    ) -> tuple[Manifest, watermarks.Known]:
        """The manifest of an epoch, and the event times after it."""
        now_ms = self.time.now_ms()
        event_times, ahead = self._next_watermarks(of.seen, now_ms)
        manifest = Manifest(
            epoch=of.epoch,
            run=of.run,
            base=self.base,
            layout=self.layout,
            deltas=tuple(delta for delta in of.deltas if delta.rows),
            routes={step: codec.to_plain(table) for step, table in of.routes.items()},
            watermarks=ahead if fired is None else dict(fired),
            rows=sum(s.rows for s in of.seen),
            sealed_at_ms=int(self._clock_ms()),
            placements=dict(of.placements),
            event_times=watermarks.known_rows(event_times),
            time_ms=now_ms,
            positions=None if positions is None else codec.to_plain(positions),
            runs=None if runs is None else list(runs),
        )
        return manifest, event_times

    def tidy(self, owners: Owners) -> None:
        """Start the upkeep that is due. Call this after a commit."""
        assert self.newest is not None
        self.upkeep.committed(self.newest, self.base, owners)

    def _next_watermarks(
        self, seen: Sequence[Seen], now_ms: int
    ) -> tuple[watermarks.Known, dict[str, int | None]]:
        """Event times of the sources after this epoch, and each step's watermark for the next one."""
        newest = [time for courier in seen for time in courier.event_ms]
        known = watermarks.advance(self._times, self.event_times, newest, now_ms)
        bounds = watermarks.source_watermarks(self._times, known, now_ms, self.started_ms)
        return known, watermarks.step_watermarks(self._graph, bounds, self.watermarks)


class Tries:
    """Counts the failed runs of an epoch, and decides when the query fails.

    `passing` are errors that may not happen in the next run. Most runs of an epoch are `most`. While a host
    cannot be reached, runs fail every few seconds. Then the limit is `patience_ms` milliseconds instead, so
    that a network can recover.
    """

    def __init__(
        self,
        most: int,
        patience_ms: float,
        clock_ms: Callable[[], float],
        passing: tuple[type[PenstockError], ...] = (
            HostLostError,
            StaleRunError,
            ChangedInputError,
            DeliveryError,
        ),
    ) -> None:
        self._most, self._passing = most, passing
        self._clock_ms, self._patience_ms = clock_ms, patience_ms
        self._first_ms: float | None = None
        """Time of the first failure in milliseconds; None if there was none."""
        self.failed = self._losses = 0

    def again(self, epoch: int, failed: Exception, cause: Exception, lost: bool) -> None:
        """Take in a failed run. Raises `cause`, unless another run may succeed. `lost` says whether a host
        was lost."""
        now_ms = self._clock_ms()
        self._first_ms = now_ms if self._first_ms is None else self._first_ms
        self.failed += 1
        self._losses += lost
        if self._losses == self._most:
            raise HostLostError(
                f"each of the {self._losses} runs of epoch {epoch} lost a host: {cause}",
                hint="read the executors' logs of the hosts' Spark jobs; if the system killed "
                f"them for lack of memory, {FEWER_ROWS}",
            ) from failed
        cut_off = isinstance(cause, HostLostError) and now_ms - self._first_ms < self._patience_ms
        enough = self.failed >= self._most and not cut_off
        if enough or not (lost or isinstance(cause, self._passing)):
            raise cause from failed
        if self.failed >= self._most:
            time.sleep(_PAUSE_S)
        _log.warning(
            "Epoch %d is run again (run %d): %s",
            epoch,
            self.failed + 1,
            str(cause),  # the error itself would keep its frames alive
            extra={"epoch": epoch, "run": self.failed + 1, "reason": str(cause)},
        )
