"""The versions of a started flow: where it takes up, what each manifest says, upkeep behind them.

Both ways to run a flow, micro-batches and live, make versions by this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from penstock.state.store.store import DeltaRef, Manifest, Store
from penstock.wire.report import Seen

_log = logging.getLogger("penstock.epochs")

_PAUSE_S = 1.0
"""Pause before a run that comes after many that somebody could not be reached in."""

Positions = Mapping[int, Mapping[str, Any]]
"""Source, by number -> partition -> where its next row is, as the source tells it."""


class Versions:
    """Writes one manifest after the other. Used by one thread: the query's."""

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
        """Couriers of a `live` flow know the partitions of their sources without being told a column."""
        self._store, self._clock_ms, self._graph = store, clock_ms, flow.graph
        self._live = live
        times = (source.time for source in flow.sources)
        self._times = tuple(t and replace(t, by_partition=t.by_partition or live) for t in times)
        self.upkeep = Upkeep(store, fleet, settings)
        self.newest: int | None = None
        """The newest version that is durable; -1: there is none. None: not known yet."""
        self.base, self.layout = -1, ""
        """The layout that the next manifest builds on."""
        self.watermarks: dict[str, int | None] = {step.id: None for step in flow.keyed}
        self.event_times: watermarks.Known = {}
        self.time = EpochClock(clock_ms, steady_ms)
        self.started_ms = self.time.now_ms()

    def take_up(self, version: int) -> Manifest | None:
        """Go on from a version; returns its manifest, None if it is the one before the first."""
        manifest = None
        if version >= 0:
            manifest = self._store.chain(version).manifest
            self.base, self.layout = manifest.base, manifest.layout
            self.watermarks = dict(manifest.watermarks)
            if (manifest.positions is not None) == self._live:
                # else it was made in the other mode, which has other names for partitions
                self.event_times = watermarks.known_from(manifest.event_times)
            self.time.not_before(manifest.time_ms)
        with suppress(CheckpointError):  # damaged: that may be why it is run again
            # it was run before, perhaps with a clock that is ahead of this one
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
        """The epoch after the newest one that is durable."""
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
    ) -> None:
        """Make an epoch durable. `fired` is how far each step has come, where its hosts tell that."""
        if dead:
            self._store.write_dead_letters(epoch, dead)
        now_ms = self.time.now_ms()
        event_times, ahead = self._next_watermarks(seen, now_ms)
        layout = self.upkeep.newest_layout()
        if layout is not None:
            self.base, self.layout = layout
        ahead = ahead if fired is None else dict(fired)
        self._store.write_manifest(
            Manifest(
                epoch=epoch,
                run=run,
                base=self.base,
                layout=self.layout,
                deltas=tuple(delta for delta in deltas if delta.rows),
                routes={step: codec.to_plain(table) for step, table in routes.items()},
                watermarks=ahead,
                rows=sum(s.rows for s in seen),
                sealed_at_ms=int(self._clock_ms()),
                placements=placements,
                event_times=watermarks.known_rows(event_times),
                time_ms=now_ms,
                positions=None if positions is None else codec.to_plain(positions),
                runs=None if runs is None else list(runs),
            )
        )
        self.newest, self.watermarks, self.event_times = epoch, ahead, event_times

    def tidy(self, owners: Owners) -> None:
        """After a commit: begin the upkeep that is due."""
        assert self.newest is not None
        self.upkeep.committed(self.newest, self.base, owners)

    def _next_watermarks(
        self, seen: Sequence[Seen], now_ms: int
    ) -> tuple[watermarks.Known, dict[str, int | None]]:
        """How far the sources have come, and what that means for each step in the next epoch."""
        newest = [time for courier in seen for time in courier.event_ms]
        known = watermarks.advance(self._times, self.event_times, newest, now_ms)
        bounds = watermarks.source_watermarks(self._times, known, now_ms, self.started_ms)
        return known, watermarks.step_watermarks(self._graph, bounds, self.watermarks)


class Tries:
    """Counts the runs of an epoch that have failed, and says when to give up.

    `passing` are errors that the next run may not meet. While somebody cannot be reached, a run fails
    every few seconds: then it is time that counts, `patience_ms` of it, for a network to heal.
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
        """When the first run had failed."""
        self.failed = self._losses = 0

    def again(self, epoch: int, failed: Exception, told: Exception, lost: bool) -> None:
        """A run has failed, and perhaps lost a host. Raises, unless another one may do better."""
        now_ms = self._clock_ms()
        self._first_ms = now_ms if self._first_ms is None else self._first_ms
        self.failed += 1
        self._losses += lost
        if self._losses == self._most:
            raise HostLostError(
                f"each of the {self._losses} runs of epoch {epoch} lost a host: {told}",
                hint="see the executors' logs of the hosts' Spark jobs; if the system killed "
                f"them for lack of memory, {FEWER_ROWS}",
            ) from failed
        cut_off = isinstance(told, HostLostError) and now_ms - self._first_ms < self._patience_ms
        enough = self.failed >= self._most and not cut_off
        if enough or not (lost or isinstance(told, self._passing)):
            raise told from failed
        if self.failed >= self._most:
            time.sleep(_PAUSE_S)
        _log.warning(
            "Epoch %d is run again (run %d): %s",
            epoch,
            self.failed + 1,
            str(told),  # an error holds on to all that was going on
            extra={"epoch": epoch, "run": self.failed + 1, "reason": str(told)},
        )
