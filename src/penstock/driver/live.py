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
from itertools import count
from typing import Any, Literal, Protocol

from penstock import codec
from penstock.driver.awaiting import Awaiting
from penstock.driver.bill import Bill
from penstock.driver.checkpoints import Checkpoints, Underway
from penstock.driver.clock import wall_ms
from penstock.driver.couriers import CourierCrew, dealt
from penstock.driver.epochs import LateSink, late_counts
from penstock.driver.fleet import Fleet, SealedHost
from penstock.driver.progress import (
    EpochProgress,
    host_progress,
    live_latency_of,
    migration_progress,
)
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.driver.versions import Tries, Versions
from penstock.errors import CheckpointError, HostLostError, ProtocolError
from penstock.exchange.aside import Aside, late_tables
from penstock.faults import point
from penstock.model import HostId, StepId
from penstock.plan import watermarks
from penstock.plan.migration import TRICKLE_MB_S
from penstock.plan.placement import Handover
from penstock.plan.steps import FlowPlan
from penstock.plan.topology import SlotsMark
from penstock.settings import Settings
from penstock.state.store.manifest import unpack_slots
from penstock.state.store.store import DeltaRef, Manifest, Store
from penstock.wire.live import (
    CheckpointMessage,
    EpochPassed,
    Handing,
    HostPlace,
    LiveOrder,
    LiveStep,
    Message,
    Part,
    Reroute,
)
from penstock.wire.report import Seen

Outcome = Literal["stopped", "finished"]

_LOOK_MS = 50
"""Milliseconds between looks at what is to move, and whether all are there."""
_RUNS_TOLD = 8
"""Earlier runs that rows tell of at most."""
_PULSE_MS = 200
"""Milliseconds between questions to hosts and couriers whether they are there."""
_UNDERWAY = 4
"""Checkpoints that may be under way; the next one is put off while there are so many."""
_LAST_MS = 10_000
"""Milliseconds that the last checkpoint of a query that is to stop may take."""


class Partitioned(Protocol):
    """What the driver asks of a live source."""

    def partitions(self) -> list[str]:
        """The names of its partitions."""
        ...

    def first(self, partitions: list[str]) -> dict[str, Any]:
        """Where to begin in these partitions."""
        ...


@dataclass(frozen=True)
class BrokenOff:
    """A run cannot go on."""

    run: int


@dataclass(frozen=True)
class _Sealed:
    """A host has told of its part of a checkpoint, or could not."""

    run: int
    epoch: int
    host: SealedHost | None
    failed: BaseException | None


Inbox = queue.SimpleQueue[BrokenOff | EpochPassed | _Sealed]
"""What other threads tell the query's."""


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
        bill: Bill | None = None,
        clock_ms: Callable[[], float] = wall_ms,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """`rewind` has the sink take back what it was given since a version, where it can."""
        self._flow, self._sources, self._settings = flow, sources, settings
        self._fleet, self._couriers, self._relocation = fleet, couriers, relocation
        self._registry, self._store, self._inbox = registry, store, inbox
        self._checkpoint_ms, self._close, self._bill = checkpoint_ms, close, bill
        self._on_progress, self._late_sink, self._rewind = on_progress, late_sink, rewind
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self.versions = Versions(flow, fleet, store, settings, clock_ms, steady_ms, live=True)
        self._positions: dict[int, dict[str, Any]] = {}
        """Where each partition of each source goes on from the newest version."""
        self._runs: tuple[tuple[int, int], ...] = ()
        """When runs began and with which epoch, newest first; without those that a later one goes before."""
        self._read: list[tuple[int, str]] = []
        """(source, partition) of all that couriers read."""
        self._marks: Mapping[str, SlotsMark] = {}
        """Where slots are at the newest version."""
        self._run = -1
        self._tries = self._new_tries()
        self._stage = Awaiting()
        # Of the run under way:
        self._hosts: dict[HostId, str] = {}
        """Hosts that wait for streams of this run, and the steps that they serve."""
        self._reached: set[HostId] = set()
        """Hosts among them that couriers were told of."""
        self._joined_by = 0
        """Couriers of the run."""
        self._parted: dict[HostId, int] = {}
        """Hosts that couriers were told to leave, and the message that said so."""
        self._numbers = count()
        self._checkpoints = Checkpoints()
        self._epoch = 0
        """The epoch that rows belong to which are read now."""
        self._awaited = -1
        """The epoch whose checkpoint is waited for."""
        self._began_ms = 0.0
        self._ending = self._closing = False
        """Whether the run's last checkpoint was told; whether couriers were told that windows close."""

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

    def run(self, stopping: threading.Event) -> Outcome:
        """Run until `stopping` is set, after a last checkpoint, or until all input has ended."""
        self._take_up()
        while True:
            try:
                self._begin()
                outcome = self._flow_on(stopping)
                if outcome is not None:
                    return outcome
                self._couriers.halt(self._run)
                self._roll_back()
            except Exception as failed:
                self._recover(failed)
                if stopping.is_set():
                    return "stopped"

    # -- where it begins

    def _take_up(self) -> None:
        """Go on from the newest manifest; in partitions that are new, where their source says."""
        manifest = self.versions.take_up(self._sound_version())
        self._relocation.begin(manifest)
        known = _positions(manifest)
        self._runs = tuple((manifest and manifest.runs) or ())
        facts = self._store.read_flow() or {}
        noted: dict[str, dict[str, Any]] = facts.get("positions", {})
        for number, source in enumerate(self._sources):
            told, here = noted.setdefault(str(number), {}), known.setdefault(number, {})
            partitions = source.partitions()
            if fresh := [p for p in partitions if p not in here and p not in told]:
                # Noted before anything is read, so that a crash before the first manifest reads the same.
                told |= source.first(fresh)
                self._store.write_flow(facts | {"positions": noted})
            here |= {p: told[p] for p in partitions if p not in here}
            self._read += [(number, partition) for partition in partitions]
        self._positions = known

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

    def _begin(self) -> None:
        """Have every slot owned and every partition read, and let rows flow."""
        version, first = self._version, self._run < 0
        self._run += 1
        self._registry.must_be_served()
        self._registry.expect(version + 1, self._run, on_passed=self._inbox.put)
        self._waits("hosts to take their slots")
        self._relocation.settle(version, version + 1, self._tries.failed)
        self._relocation.take_lost()
        self._marks = self._relocation.mark()
        self._waits("couriers to come up")
        if first:
            self._couriers.wait_for(self._couriers.names, len(self._couriers.names))
        names = self._couriers.muster()
        self._numbers, self._checkpoints, self._parted = count(), Checkpoints(), {}
        self._epoch, self._began_ms = version + 1, self._clock_ms()
        self._ending = self._closing = False
        self._hosts, self._joined_by = {}, len(names)
        self._admit()
        self._reached = set(self._hosts)
        self._rewind(version)
        point("driver.begin", epoch=self._epoch, run=self._run)
        self._couriers.begin(dict(zip(names, self._orders(len(names)), strict=True)))
        self._awaited = -1
        self._stage.goes_on()

    def _orders(self, couriers: int) -> list[LiveOrder]:
        """What each courier is to do in this run."""
        steps = tuple(
            LiveStep(
                step.id,
                self._relocation.routes(step.id),
                tuple(HostPlace(h, self._at(h)) for h, of in self._hosts.items() if of == step.id),
                self.versions.watermarks[step.id],
            )
            for step in self._flow.keyed
        )
        known, now_ms = (
            watermarks.known_rows(self.versions.event_times),
            self.versions.time.now_ms(),
        )
        earlier = [(began, first) for began, first in self._runs if first < self._epoch]
        self._runs = ((now_ms, self._epoch), *earlier[:_RUNS_TOLD])
        orders = []
        for number, mine in enumerate(dealt(self._read, couriers)):
            positions: dict[int, dict[str, Any]] = {}
            for source, partition in mine:
                positions.setdefault(source, {})[partition] = self._positions[source][partition]
            orders.append(
                LiveOrder(
                    self._run,
                    number,
                    couriers,
                    self._epoch,
                    steps,
                    positions,
                    known,
                    now_ms,
                    self._runs[1:],
                )
            )
        return orders

    def _roll_back(self) -> bool:
        """Take hosts and slots to the newest version; returns whether a host was lost."""
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

    # -- while it flows

    def _flow_on(self, stopping: threading.Event) -> Outcome | None:
        """Commit one checkpoint after the other; None: this run is over, and another one is to begin."""
        now = self._steady_ms()
        due, pulse_due, last_by = now + self._checkpoint_ms, now, float("inf")
        while True:
            self._take_in(_LOOK_MS)
            now = self._steady_ms()
            for whole in self._checkpoints.take():
                self._commit(whole)
                if whole.ended and (whole.closed or not self._close):
                    return "finished"
                if whole.told.last:
                    return "stopped" if stopping.is_set() else None
                if whole.ended and not self._closing and not self._ending:
                    self._closing = True
                    self._checkpoint(last=False)
            if now >= pulse_due:
                pulse_due = now + _PULSE_MS
                self._pulse()
            if self._ending:
                if now > last_by and stopping.is_set():
                    raise HostLostError("the last checkpoint does not come through")
                continue
            last = stopping.is_set() or (self._must_renew() and not self._closing)
            if not last and not self._closing:
                self._move()
                self._part()
            if last or (now >= due and len(self._checkpoints) < _UNDERWAY):
                due, last_by = now + self._checkpoint_ms, now + _LAST_MS
                self._checkpoint(last)

    def _take_in(self, most_ms: float) -> None:
        """Note what others tell; waits for the first of it."""
        try:
            told = self._inbox.get(timeout=most_ms / 1000)
            while True:
                self._note(told)
                told = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _note(self, told: BrokenOff | EpochPassed | _Sealed) -> None:
        if told.run != self._run:
            return
        match told:
            case EpochPassed():
                self._checkpoints.passed(told, self._clock_ms())
            case _Sealed(host=SealedHost() as host):
                self._checkpoints.seal(told.epoch, host)
            case _:
                failed = told.failed if isinstance(told, _Sealed) else None
                raise failed or self._registry.trouble() or HostLostError("the run was broken off")

    def _pulse(self) -> None:
        """Notice who died, without waiting for anybody."""
        self._fleet.pulse(self._hosts)
        self._couriers.pulse(self._couriers.names)
        if self._couriers.missing:
            raise HostLostError("a courier was lost")
        self._await_checkpoint()
        self._fleet.revive(h for step in self._flow.keyed for h in self._relocation.hosts(step.id))
        self._couriers.revive(self._couriers.names)

    def _await_checkpoint(self) -> None:
        """Tell users of a checkpoint that takes long, as it does when a sink is away; give up in the end."""
        oldest, most_ms = self._checkpoints.oldest, self._settings.rpc_timeout_ms
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
        "pause", or gives partitions to a courier that came back."""
        pauses = self._relocation.migration.kind == "pause"
        return (pauses and self._relocation.could_move(self._version)) or self._couriers.idle

    def _tell(self, **message: CheckpointMessage | Reroute | Part) -> None:
        point("driver.message", epoch=self._epoch, run=self._run)
        self._couriers.tell(self._run, Message(**message))  # type: ignore[arg-type]
        point("driver.told", epoch=self._epoch, run=self._run)

    def _checkpoint(self, last: bool) -> None:
        """Tell couriers that an epoch ends here, and have its hosts tell when they have written it."""
        hosts = [host for host in self._reached if host not in self._parted]
        epoch, run, now_ms = self._epoch, self._run, self._clock_ms()
        told = CheckpointMessage(next(self._numbers), epoch, self._version, last, self._closing)
        marks = self._relocation.mark()
        self._checkpoints.begin(
            Underway(told, frozenset(hosts), self._joined_by, marks, self._began_ms, now_ms)
        )
        self._epoch, self._began_ms, self._ending = epoch + 1, now_ms, last
        self._tell(checkpoint=told)
        for host in hosts:
            sealing = self._fleet.sealing(host, epoch, run)

            def done(future: Any = sealing) -> None:
                failed = future.exception()
                sealed = None if failed is not None else future.result()
                self._inbox.put(_Sealed(run, epoch, sealed, failed))

            sealing.add_done_callback(done)

    def _admit(self) -> None:
        """Let hosts into the run that are ready and not in it."""
        for step in self._flow.keyed:
            wanted = [*self._relocation.hosts(step.id), *self._relocation.leaving(step.id)]
            fresh = [h for h in self._fleet.ready(wanted) if h not in self._hosts]
            if fresh:
                self._fleet.admit(fresh, self._version)
                self._fleet.join(
                    fresh,
                    self._run,
                    self._joined_by,
                    time_ms=self.versions.time.now_ms(),
                    watermark_ms=self.versions.watermarks[step.id],
                )
                self._hosts |= dict.fromkeys(fresh, step.id)

    def _move(self) -> None:
        """Let slots change hands that are to, and whose new hosts are there."""
        self._admit()
        if not self._relocation.pending or self._relocation.migration.kind == "pause":
            return
        there = [host for host in self._hosts if host not in self._parted]
        by_step: dict[StepId, list[Handover]] = {}
        for handover in self._relocation.reroute(self._epoch - 1, there, self._version):
            by_step.setdefault(handover.step, []).append(handover)
        migration = self._relocation.migration
        for step, handovers in by_step.items():
            trickle, leaving = migration.trickle_mb_s, self._relocation.leaving(step)
            if not migration.whole and any(h.source in leaving for h in handovers):
                trickle = max(trickle, TRICKLE_MB_S)  # a host that is to end is not left for ever
            pace = (migration.whole, trickle)
            handings = []
            for one in handovers:
                assert one.source is not None
                self._reached.add(one.target)
                self._fleet.handed(one.source, one.target, one.slots, pace)
                places = (one.source, self._at(one.source), one.target, self._at(one.target))
                handings.append(Handing(one.slots, *places))
            self._tell(reroute=Reroute(next(self._numbers), step, tuple(handings), *pace))

    def _part(self) -> None:
        """Let couriers leave hosts that are not needed any more."""
        for step, host in self._relocation.retired():
            if host not in self._reached:
                self._hosts.pop(host, None)
                self._relocation.end(step, host)
            elif host not in self._parted:
                self._parted[host] = number = next(self._numbers)
                self._tell(part=Part(number, step, host))

    def _at(self, host: HostId) -> str:
        (location,) = self._fleet.endpoints((host,))
        return location

    # -- what is durable

    def _commit(self, whole: Underway) -> None:
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
            for source, places in one.positions.items():
                self._positions[source] |= places
        self.versions.commit(
            epoch,
            self._run,
            _in_order(sealed, marks),
            {step: mark.routes for step, mark in marks.items()},
            {step: mark.placements for step, mark in marks.items()},
            seen,
            dead,
            self._positions,
            self._runs,
            self._fired(sealed),
        )
        point("driver.committed", **where)
        runs, self._tries = self._tries.failed + 1, self._new_tries()
        self._marks = marks
        self._relocation.sealed(epoch, sealed)
        for host in [h for h, number in self._parted.items() if number < whole.told.number]:
            # All couriers have left it: they have passed a later message.
            self._relocation.end(self._hosts.pop(host), host)
            self._reached.discard(host)
            del self._parted[host]
        self.versions.tidy(self._relocation.owners())
        first = self._flow.keyed[0].id if self._flow.keyed else None
        self._on_progress(
            EpochProgress(
                epoch=epoch,
                runs=runs,
                rows=sum(s.rows for s in seen),
                partitions=len(self._read),
                started_ms=int(whole.began_ms),
                sink_ms=whole.passed_ms - whole.began_ms,
                seal_ms=self._clock_ms() - whole.passed_ms,
                latency=live_latency_of(seen),
                watermark_ms=self.versions.watermarks[first] if first else None,
                dead_letters=len(dead),
                late_rows=late_counts(seen),
                hosts=tuple(host_progress(s.host, s.vitals) for s in sealed),
                migration=migration_progress(self._relocation.taken(), [s.vitals for s in sealed]),
                money=None if self._bill is None else self._bill.money,
            )
        )

    def _fired(self, sealed: Sequence[SealedHost]) -> dict[str, int | None]:
        """How far each step has come: as far as the last of its hosts, and never back."""
        fired = dict(self.versions.watermarks)
        for step, before in fired.items():
            of_step = (one.vitals for one in sealed if self._hosts.get(HostId(one.host)) == step)
            told = [vitals.watermark_ms for vitals in of_step]
            known = [watermark for watermark in told if watermark is not None]
            if known and len(known) == len(told):
                fired[step] = max(min(known), min(known) if before is None else before)
        return fired

    @property
    def _version(self) -> int:
        assert self.versions.newest is not None
        return self.versions.newest

    def _new_tries(self) -> Tries:
        return Tries(self._settings.epoch_runs, (HostLostError, ProtocolError))

    def _waits(self, what: str) -> None:
        self._stage.waits(f"run {self._run + 1}: waiting for {what}")


def _positions(manifest: Manifest | None) -> dict[int, dict[str, Any]]:
    """Where a manifest says that sources go on."""
    told = None if manifest is None else manifest.positions
    return {int(source): dict(places) for source, places in (told or {}).items()}


def _in_order(sealed: Iterable[SealedHost], marks: Mapping[str, SlotsMark]) -> list[DeltaRef]:
    """The deltas of an epoch, those of slots that were given away in it first: their new owners have changed
    the same entries since."""
    deltas = [ref for host in sealed for ref in host.deltas if ref.rows]

    def is_own(ref: DeltaRef) -> bool:
        routes = marks[ref.step].routes
        return bool(routes.hosts[routes.owner[unpack_slots(ref.slots)[0]]] == ref.host)

    return sorted(deltas, key=is_own)
