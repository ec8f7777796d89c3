"""One run of a live flow, from the driver's side: its hosts, and the messages that couriers are told."""

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
from penstock.plan.migration import TRICKLE_MB_S
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
    """A host has told of its part of a checkpoint, or could not."""

    run: int
    epoch: int
    host: SealedHost | None
    failed: BaseException | None


@dataclass(frozen=True)
class RunParts:
    """What a run is made of."""

    flow: FlowPlan
    fleet: Fleet
    couriers: CourierCrew
    relocation: Relocation
    versions: Versions
    clock_ms: Callable[[], float]
    on_sealed: Callable[[HostSealed], None]
    """Called by other threads."""


class LiveRun:
    """What changes in a run while it flows. Used by one thread."""

    def __init__(self, number: int, couriers: int, parts: RunParts) -> None:
        self.number, self.couriers, self._parts = number, couriers, parts
        self._relocation, self._fleet = parts.relocation, parts.fleet
        self.hosts: dict[HostId, str] = {}
        """Hosts that wait for streams of this run, and the steps that they serve."""
        self._reached: set[HostId] = set()
        """Hosts among them that couriers were told of."""
        self._parted: dict[HostId, int] = {}
        """Hosts that couriers were told to leave, and the message that said so."""
        self._numbers = count()
        self.checkpoints = Checkpoints()
        self.epoch = self._version + 1
        """The epoch that rows belong to which are read now."""
        self._began_ms = parts.clock_ms()
        self.ending = self.closing = False
        """Whether the run's last checkpoint was told; whether couriers were told that windows close."""
        self._admit()
        self._reached.update(self.hosts)

    @property
    def _version(self) -> int:
        newest = self._parts.versions.newest
        assert newest is not None
        return newest

    def steps(self) -> tuple[LiveStep, ...]:
        """Where the keyed steps are, as couriers are told when they begin."""
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
        """Let hosts into the run that are ready and not in it."""
        versions = self._parts.versions
        for step in self._parts.flow.keyed:
            wanted = [*self._relocation.hosts(step.id), *self._relocation.leaving(step.id)]
            fresh = [h for h in self._fleet.ready(wanted) if h not in self.hosts]
            if fresh:
                self._fleet.admit(fresh, self._version)
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
        """Tell couriers that an epoch ends here, and have its hosts tell when they have written it."""
        hosts = [host for host in self._reached if host not in self._parted]
        epoch, run, now_ms = self.epoch, self.number, self._parts.clock_ms()
        told = CheckpointMessage(next(self._numbers), epoch, self._version, last, self.closing)
        marks = self._relocation.mark()
        self.checkpoints.begin(
            Underway(told, frozenset(hosts), self.couriers, marks, self._began_ms, now_ms)
        )
        self.epoch, self._began_ms, self.ending = epoch + 1, now_ms, last
        self._tell(checkpoint=told)
        for host in hosts:
            sealing = self._fleet.sealing(host, epoch, run)

            def done(future: Any = sealing) -> None:
                failed = future.exception()
                sealed = None if failed is not None else future.result()
                self._parts.on_sealed(HostSealed(run, epoch, sealed, failed))

            sealing.add_done_callback(done)

    def move(self) -> None:
        """Let slots change hands that are to, and whose new hosts are there."""
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

    def part(self) -> None:
        """Let couriers leave hosts that are not needed any more."""
        for step, host in self._relocation.retired():
            if host not in self._reached:
                self.hosts.pop(host, None)
                self._relocation.end(step, host)
            elif host not in self._parted:
                self._parted[host] = number = next(self._numbers)
                self._tell(part=Part(number, step, host))

    def committed(self, whole: Underway) -> None:
        """End hosts that all couriers have left: they have passed a later message."""
        for host in [h for h, number in self._parted.items() if number < whole.told.number]:
            self._relocation.end(self.hosts.pop(host), host)
            self._reached.discard(host)
            del self._parted[host]

    def fired(self, sealed: Sequence[SealedHost]) -> dict[str, int | None]:
        """How far each step has come: as far as the last of its hosts, and never back."""
        fired = dict(self._parts.versions.watermarks)
        for step, before in fired.items():
            of_step = (one.vitals for one in sealed if self.hosts.get(HostId(one.host)) == step)
            told = [vitals.watermark_ms for vitals in of_step]
            known = [watermark for watermark in told if watermark is not None]
            if known and len(known) == len(told):
                fired[step] = max(min(known), min(known) if before is None else before)
        return fired
