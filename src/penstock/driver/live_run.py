"""One run of a live flow, from the driver's side: its hosts, and its messages to couriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from penstock.driver.checkpoints import Checkpoints, Underway
from penstock.driver.couriers import CourierCrew
from penstock.driver.fleet import Fleet, SealedHost
from penstock.driver.relocation import Relocation
from penstock.driver.versions import Versions
from penstock.faults import point
from penstock.model import HostId, StepId
from penstock.plan.migration import UNCAPPED_MB_S
from penstock.plan.placement import Handover
from penstock.plan.steps import FlowPlan
from penstock.wire.live import (
    CheckpointMessage,
    Handing,
    HostPlace,
    LiveStep,
    Message,
    Part,
    Reroute,
)


@dataclass(frozen=True)
class HostSealed:
    """A host's report that its part of a checkpoint is sealed, or has failed."""

    run: int
    epoch: int
    host: SealedHost | None
    failed: BaseException | None


@dataclass(frozen=True)
class RunParts:
    """The parts that all runs of a flow share."""

    flow: FlowPlan
    fleet: Fleet
    couriers: CourierCrew
    relocation: Relocation
    versions: Versions
    clock_ms: Callable[[], float]
    on_sealed: Callable[[HostSealed], None]
    """Called with the report of each host, by other threads."""


class LiveRun:
    """The changing state of one run. Used by one thread."""

    def __init__(self, number: int, couriers: int, parts: RunParts) -> None:
        self.number, self.couriers, self._parts = number, couriers, parts
        self._relocation, self._fleet = parts.relocation, parts.fleet
        self.hosts: dict[HostId, str] = {}
        """Hosts that have joined this run -> their steps."""
        self._reached: set[HostId] = set()
        """Those of them that couriers know."""
        self._parted: dict[HostId, int] = {}
        """Hosts that couriers should disconnect from -> number of the message that said so."""
        self._numbers = count()
        self.checkpoints = Checkpoints()
        self.epoch = self._version + 1
        """Epoch of the rows that are read now."""
        self._began_ms = parts.clock_ms()
        self.ending = self.closing = False
        """Whether the last checkpoint was sent (`ending`), and whether windows are closing (`closing`)."""
        self._admit()
        self._reached.update(self.hosts)

    @property
    def _version(self) -> int:
        newest = self._parts.versions.newest
        assert newest is not None
        return newest

    def steps(self) -> tuple[LiveStep, ...]:
        """Routes and hosts of the keyed steps, for the couriers' orders."""
        return tuple(
            LiveStep(
                step.id,
                self._relocation.routes(step.id),
                tuple(HostPlace(h, self._at(h)) for h, of in self.hosts.items() if of == step.id),
                self._parts.versions.watermarks[step.id],
            )
            for step in self._parts.flow.keyed
        )

    def _at(self, host: HostId) -> str:
        (location,) = self._fleet.endpoints((host,))
        return location

    def _admit(self) -> None:
        """Add all ready hosts to the run."""
        versions = self._parts.versions
        for step in self._parts.flow.keyed:
            wanted = [*self._relocation.hosts(step.id), *self._relocation.leaving(step.id)]
            fresh = [h for h in self._fleet.ready(wanted) if h not in self.hosts]
            if fresh:
                splits = self._relocation.routes(step.id).splits
                self._fleet.admit(fresh, self._version, splits)
                self._fleet.join(
                    fresh,
                    self.number,
                    self.couriers,
                    time_ms=versions.time.now_ms(),
                    watermark_ms=versions.watermarks[step.id],
                )
                self.hosts |= dict.fromkeys(fresh, step.id)

    def _tell(self, **message: CheckpointMessage | Reroute | Part) -> None:
        point("driver.message", epoch=self.epoch, run=self.number)
        self._parts.couriers.tell(self.number, Message(**message))  # type: ignore[arg-type]
        point("driver.told", epoch=self.epoch, run=self.number)

    def checkpoint(self, last: bool) -> None:
        """End the epoch: send a checkpoint message to couriers, and seal it on all hosts."""
        hosts = [host for host in self._reached if host not in self._parted]
        epoch, run, now_ms = self.epoch, self.number, self._parts.clock_ms()
        message = CheckpointMessage(next(self._numbers), epoch, self._version, last, self.closing)
        marks = self._relocation.mark()
        self.checkpoints.begin(
            Underway(message, frozenset(hosts), self.couriers, marks, self._began_ms, now_ms)
        )
        self.epoch, self._began_ms, self.ending = epoch + 1, now_ms, last
        self._tell(checkpoint=message)
        for host in hosts:
            sealing = self._fleet.sealing(host, epoch, run)

            def done(future: Any = sealing) -> None:
                failed = future.exception()
                sealed = None if failed is not None else future.result()
                self._parts.on_sealed(HostSealed(run, epoch, sealed, failed))

            sealing.add_done_callback(done)

    def move(self) -> None:
        """Move pending slots whose new hosts are ready."""
        self._admit()
        if not self._relocation.pending or self._relocation.migration.kind == "pause":
            return
        there = [host for host in self.hosts if host not in self._parted]
        by_step: dict[StepId, list[Handover]] = {}
        for handover in self._relocation.reroute(self.epoch - 1, there, self._version):
            by_step.setdefault(handover.step, []).append(handover)
        for step, handovers in by_step.items():
            self._reroute(step, handovers)

    def _reroute(self, step: StepId, handovers: Sequence[Handover]) -> None:
        migration, leaving = self._relocation.migration, self._relocation.leaving(step)
        trickle = migration.trickle_mb_s
        if not migration.whole and any(h.source in leaving for h in handovers):
            trickle = trickle or UNCAPPED_MB_S  # a leaving host must become empty some time
        pace = (migration.whole, trickle)
        handings = []
        for handover in handovers:
            source, target, slots = handover.source, handover.target, handover.slots
            assert source is not None
            self._reached.add(target)
            self._fleet.handed(source, target, slots, pace)
            handings.append(Handing(slots, source, self._at(source), target, self._at(target)))
        self._tell(reroute=Reroute(next(self._numbers), step, tuple(handings), *pace))

    def part(self) -> None:
        """Disconnect couriers from hosts that are no longer needed."""
        for step, host in self._relocation.retired():
            if host not in self._reached:
                self.hosts.pop(host, None)
                self._relocation.end(step, host)
            elif host not in self._parted:
                self._parted[host] = number = next(self._numbers)
                self._tell(part=Part(number, step, host))

    def committed(self, whole: Underway) -> None:
        """End hosts that all couriers have disconnected from, as a later message has passed them."""
        for host in [h for h, number in self._parted.items() if number < whole.message.number]:
            self._relocation.end(self.hosts.pop(host), host)
            self._reached.discard(host)
            del self._parted[host]

    def fired(self, sealed: Sequence[SealedHost]) -> dict[str, int | None]:
        """Watermark of each step in milliseconds: the lowest of its hosts', and never lower than before."""
        fired = dict(self._parts.versions.watermarks)
        for step, before in fired.items():
            of_step = (s.vitals for s in sealed if self.hosts.get(HostId(s.host)) == step)
            reported = [vitals.watermark_ms for vitals in of_step]
            known = [watermark for watermark in reported if watermark is not None]
            if known and len(known) == len(reported):
                fired[step] = max(min(known), min(known) if before is None else before)
        return fired
