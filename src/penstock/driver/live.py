"""A live flow, from the driver's side: runs of long-lived streams, with checkpoints and manifests.

A run is the time from one start, or recovery, of the flow's couriers to the next:

    begin ──► flowing ──────────────► over: the input has ended, or the query stops
      ▲          │  └── last checkpoint: a new run begins, and nothing is undone
      └── back ◄─┴── something is lost: hosts and sources go back to the newest manifest

Nothing blocks while rows flow. A checkpoint is a message to the couriers, and is complete when all hosts and
couriers have reported it. Slots move by messages that couriers put between their rows.

This module does not use Spark: the fleet and the crew know where hosts and couriers run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock import codec
from penstock.driver.awaiting import Awaiting
from penstock.driver.bill import Bill
from penstock.driver.checkpoints import Underway
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.couriers import CourierCrew
from penstock.driver.crew_scaling import CrewScaling
from penstock.driver.epochs import LateSink, late_counts
from penstock.driver.fleet import Fleet, SealedHost
from penstock.driver.live_counts import LiveCounts
from penstock.driver.live_run import HostSealed, LiveRun, RunParts
from penstock.driver.progress import (
    EpochProgress,
    host_progress,
    live_latency_of,
    migration_progress,
    summed_loads,
)
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.driver.source_positions import Partitioned, SourcePositions
from penstock.driver.versions import Tries, Versions
from penstock.errors import CheckpointError, HostLostError, ProtocolError
from penstock.exchange.aside import Aside, late_tables
from penstock.faults import point
from penstock.model import HostId
from penstock.plan import watermarks
from penstock.plan.steps import FlowPlan
from penstock.plan.topology import SlotsMark
from penstock.settings import Settings
from penstock.state.store.store import DeltaRef, Store
from penstock.wire.live import CourierCounts, EpochPassed, Guides, LiveOrder
from penstock.wire.report import Seen, added, offloaded_by_segment

Outcome = Literal["stopped", "finished"]

_LOOK_MS = 50
"""Milliseconds between checks for slots to move."""
_RUNS_TOLD = 8
"""Most earlier runs whose start is known to couriers."""
_PULSE_MS = 200
"""Milliseconds between pings of hosts and couriers."""
_UNDERWAY = 4
"""Most checkpoints in progress at a time; the next one is delayed while there are as many."""
_MOST_LATE = 4
"""Most checkpoint intervals by which a checkpoint is delayed while rows wait for hosts."""
_LAST_MS = 10_000
"""Most milliseconds for the last checkpoint of a query that is stopping."""


@dataclass(frozen=True)
class BrokenOff:
    """A run that cannot continue."""

    run: int


Report = BrokenOff | EpochPassed | CourierCounts | HostSealed
"""Reports from other threads to the query's thread."""
Inbox = queue.SimpleQueue[Report]


class LiveRunner:
    """Runs a live flow until it is stopped or its input has ended. Used by one thread: the query's."""

    def __init__(
        self,
        flow: FlowPlan,
        sources: Sequence[Partitioned],
        fleet: Fleet,
        couriers: CourierCrew,
        relocation: Relocation,
        registry: Registry,
        store: Store,
        settings: Settings,
        inbox: Inbox,
        *,
        checkpoint_ms: int = 1_000,
        close: bool = False,
        on_progress: Callable[[EpochProgress], None] = lambda progress: None,
        late_sink: LateSink = lambda epoch, rows: None,
        rewind: Callable[[int], None] = lambda version: None,
        keeps: bool = False,
        bill: Bill | None = None,
        scaling: CrewScaling | None = None,
        control: ControlLoop | None = None,
        clock_ms: Callable[[], float] = wall_ms,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """`rewind` makes the sink undo its writes since a version, if it can. A sink that `keeps` rows until
        they are durable delivers the undelivered ones then. `scaling` scales couriers with the load, and
        `control` scales hosts."""
        self._flow, self._settings = flow, settings
        self._fleet, self._couriers, self._relocation = fleet, couriers, relocation
        self._registry, self._store, self._inbox = registry, store, inbox
        self._checkpoint_ms, self._close, self._bill = checkpoint_ms, close, bill
        self._on_progress, self._late_sink = on_progress, late_sink
        self._rewind, self._keeps, self._scaling = rewind, keeps, scaling
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self.versions = Versions(flow, fleet, store, settings, clock_ms, steady_ms, live=True)
        self._positions = SourcePositions(sources, store, settings.live_partitions_ms)
        self._runs: tuple[tuple[int, int], ...] = ()
        """Start time in milliseconds and first epoch of each run, newest first, without those that were
        undone."""
        self._marks: Mapping[str, SlotsMark] | None = None
        """Owners of all slots at the newest version; None while slots are being assigned."""
        self._run = -1
        self._tries = self._new_tries()
        self._stage = Awaiting()
        self._parts = RunParts(
            flow, fleet, couriers, relocation, self.versions, clock_ms, inbox.put
        )
        self._awaited = -1
        """Epoch of the oldest checkpoint in progress; -1 if there is none."""
        self._control, self._counts = control, LiveCounts(flow.keyed)
        self._guided = b""
        """Last instructions sent to couriers, encoded."""

    # -- for users

    @property
    def waiting(self) -> str:
        """Description of the current wait, or "" if it has been short."""
        return str(self._stage)

    @property
    def upkeep_trouble(self) -> str:
        """Parts of the store's upkeep that failed the last time, with reasons; "" if none did."""
        return self.versions.upkeep.trouble

    def stop(self) -> None:
        """End upkeep and control, after the last commit."""
        self.versions.upkeep.stop()
        if self._control is not None:
            self._control.stop()

    def run(self, stopping: threading.Event) -> Outcome:
        """Run until all input has ended, or until `stopping` is set; then take a last checkpoint."""
        self._take_up()
        while True:
            try:
                outcome = self._flow_on(self._begin(), stopping)
                if outcome is None or self._keeps:
                    self._couriers.halt(self._run)
                if outcome is not None:
                    if self._keeps:
                        self._rewind(self._version)
                    return outcome
                self._roll_back()
            except Exception as failed:
                self._recover(failed)
                if stopping.is_set():
                    return "stopped"

    # -- start

    def _take_up(self) -> None:
        """Continue from the newest sound manifest."""
        manifest = self.versions.take_up(self._sound_version())
        self._relocation.begin(manifest)
        self._positions.take_up(manifest)
        self._runs = tuple((manifest and manifest.runs) or ())

    def _sound_version(self) -> int:
        """The newest version, or the one before it if the newest is damaged."""
        newest = max(self._store.epochs(), default=-1)
        if newest < 0 or not (wrong := self._store.damage(newest)):
            return newest
        if newest > 0 and self._store.damage(newest - 1):
            raise CheckpointError(
                f"version {newest} of {self._store.uri} is damaged: {wrong}",
                hint="restore this file from a backup, or start from a new checkpoint folder",
            )
        return newest - 1

    # -- runs

    def _begin(self) -> LiveRun:
        """Begin a run: give every slot an owner and every partition a courier."""
        version, first = self._version, self._run < 0
        self._run += 1
        self._registry.must_be_served()
        self._registry.expect(
            version + 1, self._run, on_passed=self._inbox.put, on_counted=self._inbox.put
        )
        self._waits("hosts to take their slots")
        self._marks = None
        self._relocation.settle(version, version + 1, self._tries.failed)
        self._tell_losses(version + 1)
        self._marks = self._relocation.mark()
        self._waits("couriers to come up")
        if first:
            self._couriers.wait_for(self._couriers.names, len(self._couriers.names))
        names = self._couriers.muster()
        if self._scaling is not None:
            self._scaling.begun()
        self._positions.take_new()
        run = LiveRun(self._run, len(names), self._parts)
        slots = {step: len(mark.routes.owner) for step, mark in self._marks.items()}
        self._counts.begin(self._run, len(names), slots)
        self._rewind(version)
        point("driver.begin", epoch=run.epoch, run=run.number)
        self._registry.recovery.begin(run.epoch)
        self._couriers.begin(dict(zip(names, self._orders(run), strict=True)))
        self._awaited = -1
        self._stage.goes_on()
        return run

    def _tell_losses(self, epoch: int) -> None:
        """Report lost and replaced hosts to control."""
        lost, leaving = self._relocation.take_lost(), self._relocation.take_leaving()
        if self._control is not None:
            self._control.lost_and_leaving(lost, leaving, epoch)

    def _orders(self, run: LiveRun) -> list[LiveOrder]:
        """The order for each courier of this run."""
        steps, now_ms = run.steps(), self.versions.time.now_ms()
        known = watermarks.known_rows(self.versions.event_times)
        earlier = [(began, first) for began, first in self._runs if first < run.epoch]
        self._runs = ((now_ms, run.epoch), *earlier[:_RUNS_TOLD])
        place, earlier_runs = (run.couriers, run.epoch, steps), self._runs[1:]
        count_ms = 0 if self._control is None else int(self._control.delta_ms)
        loads = None if self._scaling is None else self._scaling.loads
        return [
            LiveOrder(run.number, number, *place, positions, known, now_ms, earlier_runs, count_ms)
            for number, positions in enumerate(self._positions.deal(run.couriers, loads))
        ]

    def _roll_back(self) -> bool:
        """Roll hosts and slots back to the newest version. Returns whether a host was lost."""
        if self._marks is None:
            # No rows have flowed since the slots moved, so they can stay where they are.
            return self._fleet.roll_back(self._version, self._run)
        owned = {
            HostId(host): frozenset(mark.routes.slots_of(number).tolist())
            for mark in self._marks.values()
            for number, host in enumerate(mark.routes.hosts)
        }
        lost = self._fleet.roll_back(self._version, self._run, owned)
        self._relocation.go_back(self._marks)
        return lost

    def _recover(self, failed: Exception) -> None:
        """End a failed run and roll back. Raises if the next run would fail for the same reason."""
        cause = self._registry.trouble() or failed
        self._store.must_own()  # else a newer driver has caused the failure
        self._waits("couriers and hosts to go back")
        lost = self._couriers.missing
        self._couriers.halt(self._run)
        self._fleet.judge(self._registry.complaints())
        lost = self._roll_back() or lost
        self._tries.again(self._version + 1, failed, cause, lost)
        self._registry.recovery.run_again(self._version + 1)

    # -- while rows flow

    def _flow_on(self, run: LiveRun, stopping: threading.Event) -> Outcome | None:
        """Commit checkpoints until the flow ends. Returns None if another run should begin."""
        now = self._steady_ms()
        due, pulse_due, last_by = now + self._checkpoint_ms, now, float("inf")
        delta_ms = float("inf") if self._control is None else self._control.delta_ms
        look_due = now + delta_ms
        while True:
            self._take_in(run, min(_LOOK_MS, max(look_due - now, 0.0)))
            now = self._steady_ms()
            for whole in run.checkpoints.take():
                self._commit(run, whole)
                if whole.ended and (whole.closed or not self._close):
                    return "finished"
                if whole.message.last:
                    return "stopped" if stopping.is_set() else None
                if whole.ended and not run.closing and not run.ending:
                    run.closing = True
                    run.checkpoint(last=False)
            if now >= pulse_due:
                pulse_due = now + _PULSE_MS
                self._pulse(run)
            if run.ending:
                if now > last_by and stopping.is_set():
                    raise HostLostError(f"the last checkpoint took more than {_LAST_MS} ms")
                continue
            if self._control is not None and now >= look_due:
                look_due = max(look_due + delta_ms, now)
                self._control.time_slot(self._counts.sample(self._clock_ms()))
                self._guide(run, self._control.guides)
            last = stopping.is_set() or (self._must_renew() and not run.closing)
            if not last and not run.closing:
                run.move()
                run.part()
            ready = len(run.checkpoints) < _UNDERWAY and not self._put_off(now - due)
            if last or (now >= due and ready):
                due, last_by = now + self._checkpoint_ms, now + _LAST_MS
                run.checkpoint(last)

    def _put_off(self, late_ms: float) -> bool:
        """Whether to delay a checkpoint that is `late_ms` late. Rows before a checkpoint stay with their
        host, so rows that wait for a busy one could no longer move to another."""
        waited_ms = self._counts.waiting_ms
        return waited_ms > self._checkpoint_ms / 2 and late_ms < _MOST_LATE * self._checkpoint_ms

    def _take_in(self, run: LiveRun, most_ms: float) -> None:
        """Take in all reports from the inbox, waiting up to `most_ms` milliseconds for the first one."""
        try:
            report = self._inbox.get(timeout=most_ms / 1000)
            while True:
                self._note(run, report)
                report = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _guide(self, run: LiveRun, guides: Guides) -> None:
        """Send instructions to couriers, if they have changed."""
        encoded = codec.encode(guides)
        if encoded != self._guided:
            self._guided = encoded
            self._couriers.guide(run.number, guides)

    def _note(self, run: LiveRun, report: Report) -> None:
        if report.run != run.number:
            return
        match report:
            case CourierCounts():
                self._counts.note(report, self._clock_ms())
            case EpochPassed():
                run.checkpoints.passed(report, self._clock_ms())
            case HostSealed(host=SealedHost() as host):
                run.checkpoints.seal(report.epoch, host)
            case _:
                failed = report.failed if isinstance(report, HostSealed) else None
                raise failed or self._registry.trouble() or HostLostError("the run was broken off")

    def _pulse(self, run: LiveRun) -> None:
        """Look for lost members and new partitions, without blocking."""
        self._fleet.pulse(run.hosts)
        if not self._flow.one_host and not run.closing:
            self._relocation.replace_leaving()
            self._tell_losses(run.epoch)
        self._couriers.replace_leaving()
        self._couriers.pulse(self._couriers.names)
        if self._couriers.missing:
            raise HostLostError("a courier was lost")
        self._await_checkpoint(run.checkpoints.oldest)
        self._positions.look(self._steady_ms())
        self._fleet.revive(h for step in self._flow.keyed for h in self._relocation.hosts(step.id))
        self._couriers.revive(self._couriers.names)

    def _await_checkpoint(self, oldest: Underway | None) -> None:
        """Report a checkpoint that takes long, as when a sink does not respond. Raises after a timeout."""
        most_ms = self._settings.rpc_timeout_ms
        if oldest is None:
            self._awaited = -1
            self._stage.goes_on()
            return
        if self._clock_ms() - oldest.sent_ms > most_ms:
            raise HostLostError(f"a checkpoint took more than {most_ms} ms")
        if self._awaited != oldest.message.epoch:
            self._awaited = oldest.message.epoch
            self._stage.waits(
                f"epoch {self._awaited}: waiting for hosts and the sink to make it durable"
            )

    def _must_renew(self) -> bool:
        """Whether a new run should begin. Only that stops rows for the migration "pause", splits slots,
        assigns new partitions to couriers, and moves partitions between them."""
        pauses = self._relocation.migration.kind == "pause"
        moves = pauses and self._relocation.could_move(self._version)
        scales = self._scaling is not None and self._scaling.must_renew
        splits = self._relocation.could_split()
        return moves or splits or scales or self._couriers.idle or self._positions.grown

    # -- commits

    def _commit(self, run: LiveRun, whole: Underway) -> None:
        """Make an epoch durable, and do what follows from that."""
        epoch, marks = whole.message.epoch, whole.marks
        where = {"epoch": epoch, "run": self._run}
        point("driver.sealed", **where)
        passed = [whole.passed[number] for number in sorted(whole.passed)]
        sealed = [whole.sealed[host] for host in sorted(whole.sealed)]
        seen = [codec.from_plain(report.seen, Seen) for report in passed]
        asides = [codec.from_plain(r.aside, Aside) for r in passed if r.aside is not None]
        dead = [letter for aside in asides for letter in aside.dead]
        if late := late_tables(asides):
            self._late_sink(epoch, late)
        for report in passed:
            self._positions.advance(report)
        self.versions.commit(
            epoch,
            self._run,
            _in_order(sealed),
            {step: mark.routes for step, mark in marks.items()},
            {step: mark.placements for step, mark in marks.items()},
            seen,
            dead,
            self._positions.newest,
            self._runs,
            run.fired(sealed),
        )
        point("driver.committed", **where)
        self._registry.recovery.durable(epoch)
        self._registry.recovery.begin(epoch + 1)
        if self._keeps:
            self._couriers.release(run.number, epoch)
        runs, self._tries = self._tries.failed + 1, self._new_tries()
        self._marks = marks
        self._relocation.sealed(epoch, sealed)
        if self._control is not None:
            self._control.counted_keys(epoch, seen)
        run.committed(whole)
        if self._scaling is not None and not run.ending:
            self._scaling.take_in(whole)
        self.versions.tidy(self._relocation.owners())
        first = self._flow.keyed[0].id if self._flow.keyed else None
        self._on_progress(
            EpochProgress(
                epoch=epoch,
                runs=runs,
                rows=sum(s.rows for s in seen),
                partitions=len(self._positions.read),
                started_ms=int(whole.began_ms),
                sink_ms=whole.passed_ms - whole.began_ms,
                seal_ms=self._clock_ms() - whole.passed_ms,
                latency=live_latency_of(seen),
                watermark_ms=self.versions.watermarks[first] if first else None,
                dead_letters=len(dead),
                late_rows=late_counts(seen),
                hosts=tuple(host_progress(s.host, s.vitals) for s in sealed),
                functions=added(offloaded_by_segment(seen).values()),
                migration=migration_progress(self._relocation.taken(), [s.vitals for s in sealed]),
                money=None if self._bill is None else self._bill.money,
                loads=summed_loads(seen),
            )
        )

    @property
    def backlog(self) -> int:
        """Number of records that have arrived and that no host has applied, as far as couriers know."""
        return self._counts.backlog

    @property
    def _version(self) -> int:
        assert self.versions.newest is not None
        return self.versions.newest

    def _new_tries(self) -> Tries:
        settings, passing = self._settings, (HostLostError, ProtocolError)
        return Tries(settings.epoch_runs, settings.rpc_timeout_ms, self._steady_ms, passing)

    def _waits(self, what: str) -> None:
        self._stage.waits(f"run {self._run + 1}: waiting for {what}")


def _in_order(sealed: Iterable[SealedHost]) -> list[DeltaRef]:
    """The deltas of an epoch. Those of slots that moved in it come first, since the new owners have changed
    the same entries later."""
    deltas = [ref for host in sealed for ref in host.deltas if ref.rows]
    return sorted(deltas, key=lambda ref: not ref.away)
