"""A live flow, from the driver's side: runs of lasting streams, checkpoints in them, manifests behind those.

A run is the time from one start, or recovery, of the flow's couriers to the next:

    begin ──► flowing ──────────────► over: the input has ended, or the query is to stop
      ▲          │  └── last checkpoint: a new run without anything undone
      └── back ◄─┴── anything is lost: hosts go back to the newest manifest, sources with them

While it flows nothing waits for anything: checkpoints are told to couriers and complete when hosts and
couriers have told of them, slots change hands by messages that couriers put between their rows.

Free of Spark: where hosts and couriers run comes in with the fleet and the crew.
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
from penstock.state.store.manifest import unpack_slots
from penstock.state.store.store import DeltaRef, Store
from penstock.wire.live import CourierCounts, EpochPassed, Guides, LiveOrder
from penstock.wire.report import Seen, added, offloaded_by_segment

Outcome = Literal["stopped", "finished"]

_LOOK_MS = 50
"""Milliseconds between looks at what is to move, and whether all are there."""
_RUNS_TOLD = 8
"""Earlier runs that rows tell of at most."""
_PULSE_MS = 200
"""Milliseconds between questions to hosts and couriers whether they are there."""
_UNDERWAY = 4
"""Checkpoints that may be under way; the next one is put off while there are so many."""
_MOST_LATE = 4
"""Checkpoint intervals by which a checkpoint is put off at most while rows wait for hosts."""
_LAST_MS = 10_000
"""Milliseconds that the last checkpoint of a query that is to stop may take."""


@dataclass(frozen=True)
class BrokenOff:
    """A run cannot go on."""

    run: int


Told = BrokenOff | EpochPassed | CourierCounts | HostSealed
"""What other threads tell the query's."""
Inbox = queue.SimpleQueue[Told]


class LiveRunner:
    """Runs a live flow until it is stopped or its input has ended. Called by one thread: the query's."""

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
        """`rewind` has the sink take back what it was given since a version, where it can. One that `keeps`
        rows until they are durable delivers then what couriers have not. `scaling` lets couriers follow the
        load, `control` hosts."""
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
        """When runs began and with which epoch, newest first; without those that a later one goes before."""
        self._marks: Mapping[str, SlotsMark] | None = None
        """Where slots are at the newest version; None while hosts are being told of their slots."""
        self._run = -1
        self._tries = self._new_tries()
        self._stage = Awaiting()
        self._parts = RunParts(
            flow, fleet, couriers, relocation, self.versions, clock_ms, inbox.put
        )
        self._awaited = -1
        """The epoch whose checkpoint is waited for."""
        self._control, self._counts = control, LiveCounts(flow.keyed)
        self._guided = b""
        """What couriers were last told to do with rows."""

    # -- from outside

    @property
    def waiting(self) -> str:
        """What has been waited for, if for long; else empty."""
        return str(self._stage)

    @property
    def upkeep_trouble(self) -> str:
        """What of the store's upkeep failed the last time, and why; empty if nothing did."""
        return self.versions.upkeep.trouble

    def stop(self) -> None:
        """Nothing more will be committed."""
        self.versions.upkeep.stop()
        if self._control is not None:
            self._control.stop()

    def run(self, stopping: threading.Event) -> Outcome:
        """Run until `stopping` is set, after a last checkpoint, or until all input has ended."""
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

    # -- where it begins

    def _take_up(self) -> None:
        """Go on from the newest manifest."""
        manifest = self.versions.take_up(self._sound_version())
        self._relocation.begin(manifest)
        self._positions.take_up(manifest)
        self._runs = tuple((manifest and manifest.runs) or ())

    def _sound_version(self) -> int:
        """The newest version, or the one before it if that is damaged."""
        newest = max(self._store.epochs(), default=-1)
        if newest < 0 or not (wrong := self._store.damage(newest)):
            return newest
        if newest > 0 and self._store.damage(newest - 1):
            raise CheckpointError(
                f"version {newest} of {self._store.uri} is damaged: {wrong}",
                hint="restore this file from a backup, or start from a new checkpoint folder",
            )
        return newest - 1

    # -- a run begins and ends

    def _begin(self) -> LiveRun:
        """Have every slot owned and every partition read, and let rows flow."""
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
        self._counts.begin(self._run, len(names))
        self._rewind(version)
        point("driver.begin", epoch=run.epoch, run=run.number)
        self._registry.recovery.begin(run.epoch)
        self._couriers.begin(dict(zip(names, self._orders(run), strict=True)))
        self._awaited = -1
        self._stage.goes_on()
        return run

    def _tell_losses(self, epoch: int) -> None:
        """Let control know of hosts that died, or were replaced."""
        lost, leaving = self._relocation.take_lost(), self._relocation.take_leaving()
        if self._control is not None:
            self._control.lost_and_leaving(lost, leaving, epoch)

    def _orders(self, run: LiveRun) -> list[LiveOrder]:
        """What each courier is to do in this run."""
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
        """Take hosts and slots to the newest version; returns whether a host was lost."""
        if self._marks is None:
            # No rows have flowed since some slots changed hands: those stay, and the rest follows.
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
        """End a run that has failed, and go back; raises what the next one would fail of, too."""
        told = self._registry.trouble() or failed
        self._store.must_own()  # else whatever failed is the newer driver's doing
        self._waits("couriers and hosts to go back")
        lost = self._couriers.missing
        self._couriers.halt(self._run)
        self._fleet.judge(self._registry.complaints())
        lost = self._roll_back() or lost
        self._tries.again(self._version + 1, failed, told, lost)
        self._registry.recovery.run_again(self._version + 1)

    # -- while it flows

    def _flow_on(self, run: LiveRun, stopping: threading.Event) -> Outcome | None:
        """Commit one checkpoint after the other; None: this run is over, and another one is to begin."""
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
                if whole.told.last:
                    return "stopped" if stopping.is_set() else None
                if whole.ended and not run.closing and not run.ending:
                    run.closing = True
                    run.checkpoint(last=False)
            if now >= pulse_due:
                pulse_due = now + _PULSE_MS
                self._pulse(run)
            if run.ending:
                if now > last_by and stopping.is_set():
                    raise HostLostError("the last checkpoint does not come through")
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
        """Whether a checkpoint should come later. It takes all rows before it along, so that those which wait
        for a host could no longer go to another one."""
        waited_ms = self._counts.waiting_ms
        return waited_ms > self._checkpoint_ms / 2 and late_ms < _MOST_LATE * self._checkpoint_ms

    def _take_in(self, run: LiveRun, most_ms: float) -> None:
        """Note what others tell; waits for the first of it."""
        try:
            told = self._inbox.get(timeout=most_ms / 1000)
            while True:
                self._note(run, told)
                told = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _guide(self, run: LiveRun, guides: Guides) -> None:
        """Let couriers know what to do with rows, if that is news."""
        told = codec.encode(guides)
        if told != self._guided:
            self._guided = told
            self._couriers.guide(run.number, guides)

    def _note(self, run: LiveRun, told: Told) -> None:
        if told.run != run.number:
            return
        match told:
            case CourierCounts():
                self._counts.note(told, self._clock_ms())
            case EpochPassed():
                run.checkpoints.passed(told, self._clock_ms())
            case HostSealed(host=SealedHost() as host):
                run.checkpoints.seal(told.epoch, host)
            case _:
                failed = told.failed if isinstance(told, HostSealed) else None
                raise failed or self._registry.trouble() or HostLostError("the run was broken off")

    def _pulse(self, run: LiveRun) -> None:
        """Notice who died, without waiting for anybody."""
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
        """Tell users of a checkpoint that takes long, as it does when a sink is away; give up in the end."""
        most_ms = self._settings.rpc_timeout_ms
        if oldest is None:
            self._awaited = -1
            self._stage.goes_on()
            return
        if self._clock_ms() - oldest.sent_ms > most_ms:
            raise HostLostError(f"a checkpoint is under way for {most_ms} ms")
        if self._awaited != oldest.told.epoch:
            self._awaited = oldest.told.epoch
            self._stage.waits(
                f"epoch {self._awaited}: waiting for hosts and the sink to make it durable"
            )

    def _must_renew(self) -> bool:
        """Whether another run should begin in good order: nobody else stops rows while slots move by
        "pause", gives partitions that are new to a courier, or has them go from one courier to another."""
        pauses = self._relocation.migration.kind == "pause"
        moves = pauses and self._relocation.could_move(self._version)
        scales = self._scaling is not None and self._scaling.must_renew
        return moves or scales or self._couriers.idle or self._positions.grown

    # -- what is durable

    def _commit(self, run: LiveRun, whole: Underway) -> None:
        """Make an epoch durable, and do what had to wait for that."""
        epoch, marks = whole.told.epoch, whole.marks
        where = {"epoch": epoch, "run": self._run}
        point("driver.sealed", **where)
        passed = [whole.passed[number] for number in sorted(whole.passed)]
        sealed = [whole.sealed[host] for host in sorted(whole.sealed)]
        seen = [codec.from_plain(one.seen, Seen) for one in passed]
        asides = [codec.from_plain(one.aside, Aside) for one in passed if one.aside is not None]
        dead = [letter for aside in asides for letter in aside.dead]
        if late := late_tables(asides):
            self._late_sink(epoch, late)
        for one in passed:
            self._positions.go_on(one)
        self.versions.commit(
            epoch,
            self._run,
            _in_order(sealed, marks),
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
            )
        )

    @property
    def _version(self) -> int:
        assert self.versions.newest is not None
        return self.versions.newest

    def _new_tries(self) -> Tries:
        settings, passing = self._settings, (HostLostError, ProtocolError)
        return Tries(settings.epoch_runs, settings.rpc_timeout_ms, self._steady_ms, passing)

    def _waits(self, what: str) -> None:
        self._stage.waits(f"run {self._run + 1}: waiting for {what}")


def _in_order(sealed: Iterable[SealedHost], marks: Mapping[str, SlotsMark]) -> list[DeltaRef]:
    """The deltas of an epoch, those of slots that were given away in it first: their new owners have changed
    the same entries since."""
    deltas = [ref for host in sealed for ref in host.deltas if ref.rows]

    def is_own(ref: DeltaRef) -> bool:
        routes = marks[ref.step].routes
        return bool(routes.hosts[routes.owner[unpack_slots(ref.slots)[0]]] == ref.host)

    return sorted(deltas, key=is_own)
