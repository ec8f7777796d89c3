"""Moves slots between hosts: between two epochs or, in a live flow, within one.

`plan.topology` decides which slots move, by the flow's migration. This module starts hosts, assigns their
slots and ends them. Any thread may make requests. They take effect at the next epoch boundary, or at once in
a live flow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

from penstock import codec
from penstock.control.treat.decision import Treatment, is_new
from penstock.driver.fleet import Fleet, SealedHost
from penstock.errors import SettingError
from penstock.faults import point
from penstock.model import HostId, StepId
from penstock.plan.assignment import Assignment
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.placement import Handover, Placement, stored_placements
from penstock.plan.slots import slots_to_text
from penstock.plan.steps import KeyedStep
from penstock.plan.topology import SlotsMark, Topology
from penstock.settings import Settings
from penstock.state.keys.slot_map import Range
from penstock.state.keys.text import key_of
from penstock.state.store.store import Manifest

_hosts_log = logging.getLogger("penstock.hosts")
_log = logging.getLogger("penstock.control")


class LostHost(NamedTuple):
    """A lost host, and the slots that it owned."""

    host: HostId
    step: str
    slots: list[int]


class LeavingHost(NamedTuple):
    """A host whose executor is being decommissioned, its slots, and its replacement."""

    host: HostId
    step: str
    slots: list[int]
    by: HostId


class Relocation:
    """The owners of all slots of a started flow, and their moves."""

    def __init__(
        self,
        steps: Sequence[KeyedStep],
        hosts: dict[str, int],
        fleet: Fleet,
        settings: Settings,
        migration: Migration,
        live: bool = False,
        one_task: bool = False,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """In a `live` flow, a host that leaves must stay until others have fetched all its slots. With
        `one_task`, all hosts run in the same Spark task."""
        self._live, self._one_task, self._steady_ms = live, one_task, steady_ms
        self._requested: dict[str, float] = {}
        """Step -> time of a user's unfinished request to scale it or to move slots, in milliseconds."""
        self._steps = {step.id: step for step in steps}
        self._fleet, self._settings = fleet, settings
        self._wanted = {
            step.id: [HostId(f"{step.id}/{number}") for number in range(hosts[step.id])]
            for step in steps
        }
        self.migration = migration
        """Migration that applies from the next epoch boundary on."""
        self._topologies: dict[str, Topology] = {}
        self._sources: dict[HostId, dict[int, HostId | None]] = {}
        self._copies: dict[str, set[HostId]] = {step.id: set() for step in steps}
        self._awaited: dict[str, int] = {step.id: 0 for step in steps}
        self._moved_in: dict[str, int] = {step.id: -1 for step in steps}
        """Step -> epoch at which slots last moved."""
        self._handovers: list[Handover] = []
        self._lock = threading.RLock()
        self._begun = threading.Event()
        self._died: set[HostId] = set()
        """Hosts that were lost in the current epoch."""
        self._lent: tuple[int, dict[HostId, tuple[HostId, ...]]] = (-1, {})
        """An epoch, and hosts -> those that help them in it, although no slots will move."""
        self._lost: list[LostHost] = []
        self._left: list[LeavingHost] = []
        self._gone: list[HostId] = []
        """Lost hosts whose slots have no other owner yet."""

    def start_hosts(self) -> None:
        for step, hosts in self._wanted.items():
            self._start(step, hosts)

    def begin(self, manifest: Manifest | None) -> None:
        """Continue from a manifest; None: start without state."""
        with self._lock:
            for step in self._steps.values():
                routes, placements = None, list[Placement]()
                if manifest is not None:
                    routes = codec.from_plain(manifest.routes[step.id], RouteTable)
                    placements = stored_placements(manifest.placements.get(step.id, []))
                self._topologies[step.id] = Topology(
                    StepId(step.id), step.slots, self._wanted[step.id], routes, placements
                )
        self._begun.set()

    # -- requests

    def move(self, step: str, slots: Iterable[int], to: str, keys: Iterable[Any] = ()) -> None:
        """Move these slots, and these keys of other slots, to a host from the next epoch on."""
        topology, chosen = self._topology(step), list(slots)
        plan, some = self._steps[step].plan, list(keys)
        hashes = [int(key_of(plan.codec, key).hashes[0]) for key in some]
        with self._lock:
            if chosen:
                topology.move(chosen, HostId(to))
            if hashes:
                topology.move_keys(hashes, HostId(to))
            self._requested[step] = self._steady_ms()
        text = slots_to_text(chosen)
        what = [f"slots {text}"] * bool(chosen)
        what += [f"key {some[0]!r}" if len(some) == 1 else f"{len(some)} keys"] * bool(some)
        _log.info(
            "Step %s: %s move to %s, as requested.",
            step,
            " and ".join(what),
            to,
            extra={"step": step, "slots": text, "keys": len(some), "host": to},
        )

    def split(self, step: str, parts: Iterable[Sequence[Range]]) -> None:
        """Split parts off a slot. They are slots of their own from the next boundary on."""
        topology = self._topology(step)
        with self._lock:
            topology.split(parts)

    def unite(self, step: str, slots: Iterable[int]) -> None:
        """Have slots that were split be whole again."""
        topology = self._topology(step)
        with self._lock:
            topology.unite(slots)

    def could_split(self) -> bool:
        """Whether slots would be split, or be whole again, at a boundary now."""
        with self._lock:
            return any(topology.could_split() for topology in self._topologies.values())

    def scale(self, step: str, hosts: int) -> None:
        """Scale a step to this number of hosts."""
        topology = self._topology(step)
        with self._lock:
            now = topology.hosts
            if not 1 <= hosts <= topology.slots:
                raise SettingError(
                    f"step {step} cannot have {hosts} hosts",
                    hint=f"use 1 to {topology.slots}: each host owns at least one slot",
                )
            names = self._free_names(step, hosts - len(now[:hosts]))
            topology.scale(now[:hosts] + names)
            self._start(step, names)
            self._requested[step] = self._steady_ms()
        changes = [f"{name} starts" for name in names] + [f"{name} leaves" for name in now[hosts:]]
        _log.info(
            "Step %s gets %d hosts instead of %d, as requested%s%s.",
            step,
            hosts,
            len(now),
            ": " if changes else "",
            ", ".join(changes),
            extra={"step": step, "hosts": hosts, "before": len(now)},
        )

    def treat(self, step: str, treatments: Sequence[Treatment]) -> dict[HostId, HostId]:
        """Carry out the treatments of a decision together. Returns the names of its new hosts."""
        topology = self._topology(step)
        with self._lock:
            hosts = topology.hosts
            unnamed = list(dict.fromkeys(t.target for t in treatments if is_new(t.target)))
            names = dict(zip(unnamed, self._free_names(step, len(unnamed)), strict=True))
            leaving = {t.source for t in treatments if t.kind == "scale_in"}
            hosts = [host for host in hosts if host not in leaving] + list(names.values())
            # This may raise, so no host is started before it.
            topology.treat(hosts, [(t.slots, names.get(t.target, t.target)) for t in treatments])
            self._start(step, names.values())
        return names

    def wait_for_new(self, step: str, most_ms: float) -> None:
        """Wait until all hosts of a step are ready, for `most_ms` milliseconds at most."""
        self._fleet.wait_shortly(self.hosts(step), most_ms)

    def stay(self, step: str) -> None:
        """Cancel all pending moves of a step."""
        topology = self._topology(step)
        with self._lock:
            topology.stay()

    def _free_names(self, step: str, hosts: int) -> list[HostId]:
        """Unused names for this number of new hosts."""
        names = (HostId(f"{step}/{number}") for number in count())
        return list(islice((name for name in names if not self._fleet.knows(name)), hosts))

    def _start(self, step: str, hosts: Iterable[HostId]) -> None:
        for host in hosts:
            self._fleet.add(host, self._steps[step])

    def _topology(self, step: str) -> Topology:
        if step not in self._steps:
            raise SettingError(
                f"there is no step {step!r}",
                hint=f"the keyed steps are {', '.join(self._steps)} (see flow.explain())",
            )
        if not self._begun.wait(self._settings.host_start_ms / 1000):
            raise SettingError("the query has not started yet", hint="wait for its first epoch")
        return self._topologies[step]

    # -- state

    @property
    def begun(self) -> bool:
        """Whether slots have owners: from the first epoch on."""
        return self._begun.is_set()

    def routes(self, step: str) -> RouteTable:
        return self._topologies[step].routes

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        """Step -> owners of its slots, since when and why, for the manifest."""
        with self._lock:
            return {step: topology.placements_json() for step, topology in self._topologies.items()}

    @property
    def pending(self) -> int:
        """Number of slots that have not reached the host where they should be."""
        with self._lock:
            return sum(topology.pending for topology in self._topologies.values())

    def pending_of(self, step: str) -> int:
        """Number of slots of one step that have not reached the host where they should be."""
        with self._lock:
            return self._topologies[step].pending

    def hosts(self, step: str) -> list[HostId]:
        """The hosts that a step should have."""
        with self._lock:
            topology = self._topologies.get(step)
            return list(self._wanted[step]) if topology is None else topology.hosts

    def owners(self) -> list[tuple[str, HostId, list[int]]]:
        """(step, host, hash slots) of all hosts that own slots. Files know no others."""
        return [
            (step, host, [s for s in routes.slots_of(number).tolist() if s < routes.slots.hashed])
            for step, topology in self._topologies.items()
            for routes in [topology.routes]
            for number, host in enumerate(routes.hosts)
        ]

    def taken(self) -> list[Handover]:
        """Remove and return the moves since the last call."""
        handovers, self._handovers = self._handovers, []
        return handovers

    def take_lost(self) -> list[LostHost]:
        """Remove and return the hosts that were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def take_leaving(self) -> list[LeavingHost]:
        """Remove and return the hosts that were replaced since the last call."""
        left, self._left = self._left, []
        return left

    # -- at an epoch boundary

    def settle(self, version: int, epoch: int, run: int) -> None:
        """Give every slot a ready owner, and move pending slots, at a sealed version."""
        self.replace_leaving()
        for step, topology in self._topologies.items():
            if not topology.routes.hosts and not self._lose(topology):
                # at the start, wait for all hosts: otherwise slots would move again at once
                hosts = self.hosts(step)
                self._fleet.wait_for(hosts, len(hosts))
            self._fleet.revive(self.hosts(step))
            self._advance(topology, version)
        point("driver.assign", epoch=epoch, run=run)
        self._tell(version)
        self._retire()

    def replace_leaving(self) -> None:
        """Replace hosts whose executors are being decommissioned; their slots move as usual. Hosts that share
        one task cannot run twice, so they are ended here, between two epochs, and started again."""
        hosts = [(step, host) for step in self._topologies for host in self.hosts(step)]
        going = self._fleet.leaving([host for _, host in hosts])
        for step, host in hosts:
            if host not in going and not (going and self._one_task):
                continue
            with self._lock:
                topology = self._topologies[step]
                by, slots = host, topology.slots_of(host)
                if self._one_task:
                    self._fleet.restart(host)
                else:
                    (by,) = self._free_names(step, 1)
                    topology.replace(host, by)
                    self._start(step, [by])
            self._left.append(LeavingHost(host, step, slots, by))
            place = "it is started elsewhere" if by == host else f"{by} takes its place"
            _hosts_log.warning(
                "The executor of host %s is being decommissioned: %s.",
                host,
                place,
                extra={"step": step, "host": host, "by": by},
            )

    def _lose(self, topology: Topology) -> list[HostId]:
        """Take the slots from lost hosts of a step. Returns these hosts."""
        self._gone += self._fleet.lost()
        known = [host for host in self._gone if host.rsplit("/", 1)[0] == topology.step]
        self._gone = [host for host in self._gone if host not in known]
        # The fleet does not report a host that was lost before it got its first assignment.
        owners = topology.routes.hosts
        unknown = set(owners) - set(self._fleet.ready(owners)) - set(known)
        lost = known + sorted(unknown)
        self._died.update(lost)
        for host in lost:
            self._lost.append(LostHost(host, topology.step, topology.slots_of(host)))
            with self._lock:
                topology.lost(host)
        return lost

    def _advance(self, topology: Topology, version: int) -> None:
        while True:
            self._lose(topology)
            with self._lock:
                ready = self._fleet.ready(self._known(topology))
                # A host that was lost in this epoch may be back at once, and be lost again.
                avoided = self._died | self._fleet.avoided(version + 1)
                for handover in topology.advance(version, ready, self.migration, avoided):
                    self._note(handover, version + 1)
                    sources = self._sources.setdefault(handover.target, {})
                    sources |= dict.fromkeys(handover.slots, handover.source)
                if not topology.homeless:
                    return
            self._fleet.wait_for(self.hosts(topology.step), 1)

    def _known(self, topology: Topology) -> list[HostId]:
        """Hosts of a step that own slots, have owned some, or may get some."""
        return [*topology.hosts, *topology.retired(), *topology.routes.hosts]

    def _note(self, handover: Handover, epoch: int) -> None:
        self._handovers.append(handover)
        text = slots_to_text(handover.slots)
        _log.debug(
            "Step %s: slots %s go to %s from %s in epoch %d (%s).",
            handover.step,
            text,
            handover.target,
            handover.source or "the store",
            epoch,
            handover.why,
            extra={"step": handover.step, "slots": text, "host": handover.target, "epoch": epoch},
        )
        self._moved_in[handover.step] = epoch
        if handover.source is not None:
            self._copies[handover.step].add(handover.source)
            self._awaited[handover.step] = 1

    def _tell(self, version: int) -> None:
        """Send new assignments to all hosts whose slots or pace have changed."""
        migration, orders = self.migration, dict[HostId, Assignment]()
        for topology in self._topologies.values():
            routes = topology.routes
            now = {host: routes.slots_of(n).tolist() for n, host in enumerate(routes.hosts)}
            for host in {*now, *self._fleet.ready(self._known(topology))}:
                owned = tuple(now.get(host, ()))
                pace = (migration.whole, migration.trickle_mb_s)
                order = Assignment(version, owned, (), *pace, routes.splits)
                if not self._fleet.was_told(host, order):
                    orders[host] = order
        if orders:
            self._fleet.assign(orders, self._sources, wait=migration.kind == "pause")
        self._sources.clear()

    def lend(self, epoch: int, helpers: Mapping[HostId, tuple[HostId, ...]]) -> None:
        """Have hosts help others in this epoch, once they have done their own work."""
        with self._lock:
            before = self._lent[1] if self._lent[0] == epoch else {}
            self._lent = (epoch, before | dict(helpers))

    def helpers(self, epoch: int) -> dict[HostId, list[HostId]]:
        """Host that is helped -> the ready hosts that help it: those to which its slots will move, and those
        that were lent."""
        avoided = self._fleet.avoided(epoch)
        found: dict[HostId, list[HostId]] = {}
        with self._lock:
            able = set[HostId]()
            for topology in self._topologies.values():
                hosts = [h for h in topology.hosts if h not in avoided and h not in self._died]
                ready = self._fleet.ready(hosts)
                able.update(ready)
                found |= topology.helpers(ready)
            for host, helpers in self._lent[1].items() if self._lent[0] == epoch else ():
                more = [helper for helper in helpers if helper in able]
                found[host] = list(dict.fromkeys([*found.get(host, ()), *more]))
        return found

    def _retire(self) -> None:
        """End hosts without slots that should leave. Where slots move whole, not before all have arrived."""
        for step, topology in self._topologies.items():
            if (self.migration.whole or self._live) and self._awaited[step]:
                continue
            for host in topology.retired():
                self.end(step, host)

    def sealed(self, epoch: int, sealed: Iterable[SealedHost]) -> None:
        """Take in a committed epoch: if all state has arrived, have hosts drop their copies of it."""
        self._died.clear()
        awaited = dict.fromkeys(self._steps, 0)
        for host in sealed:
            awaited[host.host.rsplit("/", 1)[0]] += host.vitals.awaited_slots
        for step, copies in self._copies.items():
            if epoch < self._moved_in[step]:  # this epoch's reports do not include later moves
                continue
            self._awaited[step] = awaited[step]
            if copies and not awaited[step]:
                self._fleet.release(copies)
                copies.clear()
        self._tell_done(epoch)

    def _tell_done(self, epoch: int) -> None:
        """Log the users' requests that are done with this epoch."""
        with self._lock:
            done = [
                step
                for step in self._requested
                if epoch >= self._moved_in[step]
                and not self._awaited[step]
                and not self._topologies[step].pending
            ]
            took = {step: self._steady_ms() - self._requested.pop(step) for step in done}
        for step, took_ms in took.items():
            hosts = self.hosts(step)
            _log.info(
                "Step %s: all slots are where they should be after %.1f s. Its hosts: %s.",
                step,
                took_ms / 1000,
                ", ".join(hosts),
                extra={
                    "step": step,
                    "epoch": epoch,
                    "took_ms": round(took_ms),
                    "hosts": len(hosts),
                },
            )

    # -- within an epoch, in a live flow

    def reroute(self, version: int, joined: Collection[HostId], durable: int) -> list[Handover]:
        """Move pending slots between hosts that couriers can reach, in the epoch after `version`. Returns the
        moves. `durable` is the newest version in the store."""
        handovers, avoided = [], self._died | self._fleet.avoided(version + 1)
        with self._lock:
            for topology in self._topologies.values():
                for handover in topology.advance(version, joined, self.migration, avoided, durable):
                    self._note(handover, version + 1)
                    handovers.append(handover)
        return handovers

    def could_move(self, version: int) -> bool:
        """Whether slots are pending whose new host is ready."""
        avoided = self._died | self._fleet.avoided(version + 1)
        with self._lock:
            return any(
                topology.could_move(
                    [h for h in self._fleet.ready(topology.hosts) if h not in avoided]
                )
                for topology in self._topologies.values()
            )

    def leaving(self, step: str) -> list[HostId]:
        """Hosts of a step that should leave, and may still have slots or copies of slots."""
        with self._lock:
            topology = self._topologies[step]
            owners = [host for host in topology.routes.hosts if host not in topology.hosts]
            return [*owners, *topology.retired()]

    def retired(self) -> list[tuple[str, HostId]]:
        """(step, host) of hosts that can be ended, since no one needs their slots any more."""
        with self._lock:
            return [
                (step, host)
                for step, topology in self._topologies.items()
                if not self._awaited[step]
                for host in topology.retired()
            ]

    def end(self, step: str, host: HostId) -> None:
        """End a host that no longer owns slots."""
        with self._lock:
            self._fleet.remove(host)
            self._copies[step].discard(host)
            self._topologies[step].forget(host)

    def mark(self) -> dict[str, SlotsMark]:
        """Step -> current owners of its slots, to go back to."""
        with self._lock:
            return {step: topology.mark() for step, topology in self._topologies.items()}

    def go_back(self, marks: Mapping[str, SlotsMark]) -> None:
        """Restore the owners of all slots. Moves since then are pending again."""
        with self._lock:
            for step, mark in marks.items():
                self._topologies[step].go_back(mark)
