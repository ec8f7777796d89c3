"""All hosts of a flow: slots assigned, epochs sealed and rolled back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from penstock import codec
from penstock.driver.complaints import Complaint, Complaints
from penstock.driver.crew import AT_ONCE_MS, Jobs, TaskCrew
from penstock.driver.registry import HostRecord, Registry
from penstock.driver.silence_watch import SilenceWatch
from penstock.errors import HostLostError, PenstockError, StaleRunError
from penstock.host.vitals import HostVitals
from penstock.model import HostId
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import KeyedStep
from penstock.settings import Settings
from penstock.state.keys.slot_map import SlotMap, Split
from penstock.state.store.store import DeltaRef
from penstock.wire.access import Access
from penstock.wire.flight import in_own_thread

_CHOOSY_STARTS = 3
"""Number of consecutive starts in which a host avoids machines where couriers could not reach it."""

Pace = tuple[bool, float]
"""Whether slots are moved whole, and the speed of background transfers in MB/s."""
Owned = Mapping[HostId, frozenset[int]]
"""Host -> its slots. A host that is missing has none."""


@dataclass(frozen=True)
class SealedHost:
    """One host's part of a sealed epoch: the files that it wrote, and its vitals."""

    host: str
    deltas: tuple[DeltaRef, ...]
    """Its changes, in the order to apply them: slots that it gave away come before those it owns."""
    vitals: HostVitals


@dataclass(frozen=True)
class _Assigned:
    """The last assignment of one process of a host."""

    record: HostRecord
    owned: frozenset[int]
    pace: Pace
    splits: tuple[Split, ...] = ()


class Fleet(TaskCrew[HostId, KeyedStep]):
    """The hosts of all keyed steps of a started flow. In addition to those of `TaskCrew`, other threads may
    call `ask`, `avoided`, `help`, `owned`, `owned_by_step` and `memory`."""

    kind = "host"
    inheritance = "Its slots go to other hosts"

    def __init__(
        self,
        jobs: Jobs[KeyedStep],
        registry: Registry,
        access: Access,
        settings: Settings,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        super().__init__(jobs, registry, access, settings, clock_ms)
        self._complaints = Complaints()
        self._assigned: dict[HostId, _Assigned] = {}
        self._sealing: tuple[tuple[int, int], dict[HostId, Future[SealedHost]]] = ((-1, -1), {})
        """Epoch and run that hosts seal in the background, and their answers."""
        self._joined: set[HostId] = set()
        """Hosts that have joined the current live run."""
        self._task_watch = SilenceWatch[tuple[int, int, int]](
            "task-watch", settings, clock_ms, registry.couriers, self._task_is_silent
        )

    # -- hosts

    def add(self, name: HostId, work: KeyedStep) -> None:
        self._task_watch.begin()
        super().add(name, work)

    def remove(self, host: HostId) -> None:
        """End a host without slots, in the background."""
        self._assigned.pop(host, None)
        self._joined.discard(host)
        self._registry.recovery.dismissed(f"host {host}")

        def end() -> None:
            self._end(host)
            self._members.pop(host, None)

        self._calls.submit(end)

    def restart(self, host: HostId) -> None:
        """End a host between two epochs. It is started again when it is next waited for."""
        self._end(host)

    def stop(self) -> None:
        self._task_watch.stop()
        super().stop()

    def lost(self) -> list[HostId]:
        """Hosts with an assignment that were lost, even if they are back as other processes."""
        gone = [h for h, was in self._assigned.items() if self._registry.host(h) != was.record]
        for host in gone:
            del self._assigned[host]
        return gone

    # -- lost hosts

    def judge(self, complaints: list[Complaint]) -> None:
        """Take in the complaints of a failed run's couriers, and give up the hosts that they cannot
        reach."""
        for host in self._complaints.judge(complaints):
            record = self._registry.host(host)
            if record is not None:
                self._give_up(record, "couriers cannot reach it, although the driver can")

    def avoided(self, epoch: int) -> set[str]:
        """Hosts that should get no slots in this epoch if other hosts can own them."""
        records = filter(None, map(self._registry.host, list(self._members)))
        return {r.host for r in records if self._complaints.avoids(r.host, r.place, epoch)}

    def places_to_avoid(self, host: str) -> frozenset[str]:
        """Addresses of machines where a host should not start now. After some failed starts it may start
        anywhere: a bad machine is better than none."""
        tried = self._restarts.get(HostId(host), 0)
        return self._complaints.places(host) if tried < _CHOOSY_STARTS else frozenset()

    def _needed(self, name: HostId) -> bool:
        return bool(self.owned(name)) or name in self._joined

    def _task_is_silent(self, task: tuple[int, int, int], silent_ms: float) -> None:
        why = f"the courier of partition {task[2]} was silent for {silent_ms / 1000:.1f} s"
        self._registry.break_off(StaleRunError(why))

    def endpoints(self, hosts: tuple[HostId, ...]) -> tuple[str, ...]:
        return tuple(self._assigned[host].record.location for host in hosts)

    def pids(self) -> dict[str, int]:
        return {host: was.record.pid for host, was in dict(self._assigned).items()}

    # -- slots

    def owned(self, host: HostId) -> frozenset[int]:
        """The slots of a host by its last assignment."""
        assigned = self._assigned.get(host)
        return frozenset() if assigned is None else assigned.owned

    def owned_by_step(self, step: str) -> dict[HostId, frozenset[int]]:
        """Host -> slots, for the hosts of a step that own any."""
        assigned, steps = dict(self._assigned).items(), dict(self._members)
        return {h: a.owned for h, a in assigned if a.owned and h in steps and steps[h].id == step}

    def was_told(self, host: HostId, order: Assignment) -> bool:
        """Whether a host has exactly this assignment."""
        last = self._assigned.get(host)
        pace = (order.whole, order.trickle_mb_s)
        wanted = (frozenset(order.owned), pace, order.splits)
        return last is not None and (last.owned, last.pace, last.splits) == wanted

    def assign(
        self,
        orders: dict[HostId, Assignment],
        sources: dict[HostId, dict[int, HostId | None]],
        wait: bool,
    ) -> None:
        """Assign slots to hosts, with the hosts to fetch new slots from.

        All hosts give up slots first, so that copies are frozen before others fetch them.
        """
        had = {host: self._owned_in(host, order.splits) for host, order in orders.items()}
        leaving = {
            host: replace(order, owned=tuple(sorted(had[host] & set(order.owned))))
            for host, order in orders.items()
            if had[host] - set(order.owned)
        }
        self._each(list(leaving), lambda host: self._tell(host, leaving[host], wait=False))

        def arrive(host: HostId) -> None:
            order = orders[host]
            groups: dict[HostId | None, list[int]] = {}
            for slot in set(order.owned) - had[host]:
                groups.setdefault(sources.get(host, {}).get(slot), []).append(slot)
            incoming = tuple(
                Incoming(tuple(sorted(slots)), self._location(source))
                for source, slots in groups.items()
            )
            self._tell(host, replace(order, incoming=incoming), wait)

        self._each(list(orders), arrive)

    def _owned_in(self, host: HostId, splits: tuple[Split, ...]) -> frozenset[int]:
        """The slots of a host by its last assignment, as they are called when slots are split in this way."""
        last = self._assigned.get(host)
        if last is None or last.splits == splits:
            return self.owned(host)
        slots = self._members[host].slots
        origins = SlotMap(slots, splits).origins(SlotMap(slots, last.splits)).tolist()
        return frozenset(slot for slot, origin in enumerate(origins) if origin in last.owned)

    def release(self, hosts: Iterable[HostId]) -> None:
        """Drop the copies of moved slots on these hosts."""
        self._each([h for h in hosts if h in self._assigned], self._release)

    def _release(self, host: HostId) -> None:
        record = self._assigned[host].record
        try:
            self._call(record, "release")
        except PenstockError as failed:
            self._give_up(record, failed.message)

    def _tell(self, host: HostId, order: Assignment, wait: bool) -> None:
        record = self._registry.host(host)
        if record is None:
            raise HostLostError(f"host {host} is lost")
        try:
            self._call(record, "assign", assignment=order, wait=wait)
        except PenstockError as failed:
            self._give_up(record, failed.message)
            raise
        pace = (order.whole, order.trickle_mb_s)
        self._assigned[host] = _Assigned(record, frozenset(order.owned), pace, order.splits)

    def _location(self, host: HostId | None) -> str | None:
        assigned = None if host is None else self._assigned.get(host)
        return None if assigned is None else assigned.record.location

    # -- epochs

    def seal_soon(self, plan: EpochPlan) -> list[Future[SealedHost]]:
        """Have every host seal the epoch as soon as its channels have closed, in the background. So the
        answers are here when the sink is done. Call this when all rows are on their way to the hosts."""

        def sealing(host: HostId) -> Future[SealedHost]:
            return in_own_thread(lambda: self._seal(plan, host, wait=True), "fleet-seal")

        hosts = [host for step in plan.steps for host in step.routes.hosts]
        self._sealing = (plan.epoch, plan.run), {host: sealing(host) for host in hosts}
        return list(self._sealing[1].values())

    def seal(self, plan: EpochPlan) -> list[SealedHost]:
        """Seal the epoch on every host. Raises if a host is lost; the others can still be rolled back."""
        of, sealing = self._sealing
        early = sealing if of == (plan.epoch, plan.run) else {}

        def seal(host: HostId) -> SealedHost:
            try:
                return early[host].result() if host in early else self._seal(plan, host)
            except PenstockError:
                # It may have waited too long. If the host is lost, this says so.
                return self._seal(plan, host)

        hosts = [host for step in plan.steps for host in step.routes.hosts]
        if all(host in early and early[host].done() for host in hosts):
            return [seal(host) for host in hosts]
        return self._each(hosts, seal)

    def _seal(self, plan: EpochPlan, host: HostId, wait: bool = False) -> SealedHost:
        facts = {"epoch": plan.epoch, "run": plan.run, "partitions": plan.partitions}
        return _sealed(host, self._order(host, "seal", **facts, wait=wait))

    def roll_back(self, version: int, run: int, owned: Owned | None = None) -> bool:
        """Roll hosts back to `version`, since the run after it has failed. Without `owned`, only hosts with
        slots; with it, all hosts, which then own those slots again.

        A host that fails to roll back is given up. Returns whether any host was lost.
        """

        def back(host: HostId) -> bool:
            assigned = self._assigned[host]
            if self._registry.host(host) != assigned.record:
                return True
            try:
                self._call(assigned.record, "rollback", version=version, run=run)
            except PenstockError as failed:
                self._give_up(assigned.record, failed.message)
                return True
            if owned is not None:
                self._assigned[host] = replace(assigned, owned=owned.get(host, frozenset()))
            return False

        self._joined.clear()
        hosts = [host for host, was in self._assigned.items() if was.owned or owned is not None]
        return any(self._each(hosts, back))

    # -- live runs

    def admit(self, hosts: Iterable[HostId], version: int, splits: tuple[Split, ...]) -> None:
        """Send an assignment without slots to hosts that have none yet."""
        fresh = [host for host in hosts if host not in self._assigned]
        order = Assignment(version, (), splits=splits)
        self._each(fresh, lambda host: self._tell(host, order, wait=False))

    def join(self, hosts: Iterable[HostId], run: int, couriers: int, **facts: Any) -> None:
        """Open hosts for the streams of a live run with this number of couriers."""
        joining = [host for host in hosts if host not in self._joined]
        self._joined.update(joining)
        self._each(
            joining, lambda host: self._order(host, "join", run=run, couriers=couriers, **facts)
        )

    def handed(self, source: HostId, target: HostId, slots: Iterable[int], pace: Pace) -> None:
        """Note that slots move between two hosts, by a message in the couriers' streams."""
        moved = frozenset(slots)
        gives, takes = self._assigned[source], self._assigned[target]
        self._assigned[source] = replace(gives, owned=gives.owned - moved)
        self._assigned[target] = replace(takes, owned=takes.owned | moved, pace=pace)

    def sealing(self, host: HostId, epoch: int, run: int) -> Future[SealedHost]:
        """Seal a host's part of a checkpoint in the background."""

        def seal() -> SealedHost:
            return _sealed(host, self._order(host, "seal", epoch=epoch, run=run, partitions=0))

        return in_own_thread(seal, "fleet-seal")

    def ask(self, host: HostId, action: str, **arguments: Any) -> Any:
        """Call an action that a host answers at once."""
        return self._order(host, action, AT_ONCE_MS, **arguments)

    def help(self, host: HostId, helpers: Iterable[HostId], epoch: int, run: int) -> None:
        """Tell a host which others can help it in this run."""
        records = filter(None, map(self._registry.host, helpers))
        locations = [record.location for record in records]
        self.ask(host, "help", epoch=epoch, run=run, locations=locations)

    def memory(self) -> dict[str, int]:
        """Resident memory of each host's process, in bytes."""
        return {host: int(self._order(host, "memory")["rss"]) for host in list(self._assigned)}

    # -- calls

    def _order(
        self, host: HostId, action: str, within_ms: int | None = None, **arguments: Any
    ) -> Any:
        assigned = self._assigned.get(host)
        if assigned is None:
            raise HostLostError(f"host {host} is lost")
        return self._call(assigned.record, action, within_ms, **arguments)


def _sealed(host: HostId, facts: dict[str, Any]) -> SealedHost:
    deltas = facts.get("deltas", [facts.get("delta")])
    return codec.from_plain(facts | {"host": host, "deltas": deltas}, SealedHost)
