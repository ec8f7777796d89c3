"""All hosts of a flow: given slots, sealed together, rolled back."""

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
from penstock.state.store.store import DeltaRef
from penstock.wire.access import Access
from penstock.wire.flight import in_own_thread

_CHOOSY_STARTS = 3
"""Starts of a host, one after the other, in which it avoids machines that couriers could not reach."""

Pace = tuple[bool, float]
"""Whether slots come whole, and how fast the rest of them is brought in the background, in MB/s."""
Owned = Mapping[HostId, frozenset[int]]
"""host -> its slots; one that is not in it has none."""


@dataclass(frozen=True)
class SealedHost:
    """One host's part of a sealed epoch."""

    host: str
    deltas: tuple[DeltaRef, ...]
    """What changed, in the order in which it counts: of slots given away before of those owned."""
    vitals: HostVitals


@dataclass(frozen=True)
class _Told:
    """What an incarnation of a host was last told."""

    record: HostRecord
    owned: frozenset[int]
    pace: Pace


class Fleet(TaskCrew[HostId, KeyedStep]):
    """The hosts of all keyed steps of one started flow. Beside what others may call of a crew, these may
    call `ask`, `owned`, `owned_by_step` and `memory`."""

    kind = "host"
    inheritance = "Its slots go to others"

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
        self._told: dict[HostId, _Told] = {}
        self._joined: set[HostId] = set()
        """Hosts that couriers of the live run under way may send to."""
        self._task_watch = SilenceWatch[tuple[int, int, int]](
            "task-watch", settings, clock_ms, registry.couriers, self._task_is_silent
        )

    # -- which hosts there are

    def add(self, name: HostId, work: KeyedStep) -> None:
        self._task_watch.begin()
        super().add(name, work)

    def remove(self, host: HostId) -> None:
        """End a host that owns nothing, in the background."""
        self._told.pop(host, None)
        self._joined.discard(host)
        self._registry.recovery.dismissed(f"host {host}")

        def end() -> None:
            self._end(host)
            self._members.pop(host, None)

        self._calls.submit(end)

    def restart(self, host: HostId) -> None:
        """End a host in good order, between two epochs; it is started again when it is waited for."""
        self._end(host)

    def stop(self) -> None:
        self._task_watch.stop()
        super().stop()

    def lost(self) -> list[HostId]:
        """Hosts that were told of their slots and are gone, or there again as another incarnation."""
        gone = [h for h, told in self._told.items() if self._registry.host(h) != told.record]
        for host in gone:
            del self._told[host]
        return gone

    # -- hosts that are given up

    def judge(self, complaints: list[Complaint]) -> None:
        """A run has failed, and its couriers complained of these hosts: give up whom they must do
        without."""
        for host in self._complaints.judge(complaints):
            record = self._registry.host(host)
            if record is not None:
                self._give_up(record, "couriers cannot reach it, though the driver does")

    def avoided(self, epoch: int) -> set[str]:
        """Hosts that should have no slots in this epoch if others can have them."""
        records = filter(None, map(self._registry.host, list(self._members)))
        return {r.host for r in records if self._complaints.avoids(r.host, r.place, epoch)}

    def places_to_avoid(self, host: str) -> frozenset[str]:
        """Machines on which a host that is started now should not be. One that comes up nowhere else may
        be there: a bad place is better than none."""
        tried = self._restarts.get(HostId(host), 0)
        return self._complaints.places(host) if tried < _CHOOSY_STARTS else frozenset()

    def _needed(self, name: HostId) -> bool:
        return bool(self.owned(name)) or name in self._joined

    def _task_is_silent(self, task: tuple[int, int, int], silent_ms: float) -> None:
        why = f"the courier of partition {task[2]} was silent for {silent_ms / 1000:.1f} s"
        self._registry.break_off(StaleRunError(why))

    def endpoints(self, hosts: tuple[HostId, ...]) -> tuple[str, ...]:
        return tuple(self._told[host].record.location for host in hosts)

    def pids(self) -> dict[str, int]:
        return {host: told.record.pid for host, told in dict(self._told).items()}

    # -- slots

    def owned(self, host: HostId) -> frozenset[int]:
        """The slots that a host was last told it owns."""
        told = self._told.get(host)
        return frozenset() if told is None else told.owned

    def owned_by_step(self, step: str) -> dict[HostId, frozenset[int]]:
        """The slots of each host of a step that owns any."""
        told = dict(self._told).items()
        steps = dict(self._members)
        return {h: t.owned for h, t in told if t.owned and h in steps and steps[h].id == step}

    def was_told(self, host: HostId, order: Assignment) -> bool:
        """Whether a host was told just this."""
        told = self._told.get(host)
        pace = (order.whole, order.trickle_mb_s)
        return told is not None and (told.owned, told.pace) == (frozenset(order.owned), pace)

    def assign(
        self,
        orders: dict[HostId, Assignment],
        sources: dict[HostId, dict[int, HostId | None]],
        wait: bool,
    ) -> None:
        """Tell hosts which slots they own from now on, and whom to ask for the new ones.

        First everybody stops to own what goes, so that its copy is frozen before it is asked for.
        """
        leaving = {
            host: replace(order, owned=tuple(sorted(self.owned(host) & set(order.owned))))
            for host, order in orders.items()
            if self.owned(host) - set(order.owned)
        }
        self._each(list(leaving), lambda host: self._tell(host, leaving[host], wait=False))

        def arrive(host: HostId) -> None:
            order = orders[host]
            groups: dict[HostId | None, list[int]] = {}
            for slot in set(order.owned) - self.owned(host):
                groups.setdefault(sources.get(host, {}).get(slot), []).append(slot)
            incoming = tuple(
                Incoming(tuple(sorted(slots)), self._location(source))
                for source, slots in groups.items()
            )
            self._tell(host, replace(order, incoming=incoming), wait)

        self._each(list(orders), arrive)

    def release(self, hosts: Iterable[HostId]) -> None:
        """The copies of slots that these hosts gave away are not needed any more."""
        self._each([h for h in hosts if h in self._told], self._release)

    def _release(self, host: HostId) -> None:
        record = self._told[host].record
        try:
            self._call(record, "release")
        except PenstockError as failed:
            self._give_up(record, failed.message)

    def _tell(self, host: HostId, order: Assignment, wait: bool) -> None:
        record = self._registry.host(host)
        if record is None:
            raise HostLostError(f"host {host} is gone")
        try:
            self._call(record, "assign", assignment=order, wait=wait)
        except PenstockError as failed:
            self._give_up(record, failed.message)
            raise
        pace = (order.whole, order.trickle_mb_s)
        self._told[host] = _Told(record, frozenset(order.owned), pace)

    def _location(self, host: HostId | None) -> str | None:
        told = None if host is None else self._told.get(host)
        return None if told is None else told.record.location

    # -- epochs

    def seal(self, plan: EpochPlan) -> list[SealedHost]:
        """Make the epoch durable on every host. A lost host raises; what others sealed can go back."""

        def one(host: HostId) -> SealedHost:
            facts = self._order(
                host, "seal", epoch=plan.epoch, run=plan.run, partitions=plan.partitions
            )
            return _sealed(host, facts)

        return self._each([host for step in plan.steps for host in step.routes.hosts], one)

    def roll_back(self, version: int, run: int, owned: Owned | None = None) -> bool:
        """Take hosts back to `version`: the run after it is given up. All that own slots; or, where slots
        moved within the run, all of them, to the slots that they `owned` then.

        Those that cannot are taken for lost; returns whether any is.
        """

        def one(host: HostId) -> bool:
            told = self._told[host]
            if self._registry.host(host) != told.record:
                return True
            try:
                self._call(told.record, "rollback", version=version, run=run)
            except PenstockError as failed:
                self._give_up(told.record, failed.message)
                return True
            if owned is not None:
                self._told[host] = replace(told, owned=owned.get(host, frozenset()))
            return False

        self._joined.clear()
        back = [host for host, told in self._told.items() if told.owned or owned is not None]
        return any(self._each(back, one))

    # -- live runs

    def admit(self, hosts: Iterable[HostId], version: int) -> None:
        """Tell hosts that have never been told of slots that they own none."""
        fresh = [host for host in hosts if host not in self._told]
        self._each(fresh, lambda host: self._tell(host, Assignment(version, ()), wait=False))

    def join(self, hosts: Iterable[HostId], run: int, couriers: int, **facts: Any) -> None:
        """Let hosts take the streams of so many couriers, in this run."""
        joining = [host for host in hosts if host not in self._joined]
        self._joined.update(joining)
        self._each(
            joining, lambda host: self._order(host, "join", run=run, couriers=couriers, **facts)
        )

    def handed(self, source: HostId, target: HostId, slots: Iterable[int], pace: Pace) -> None:
        """Slots change hands between two hosts, by what couriers tell them."""
        moved = frozenset(slots)
        gives, takes = self._told[source], self._told[target]
        self._told[source] = replace(gives, owned=gives.owned - moved)
        self._told[target] = replace(takes, owned=takes.owned | moved, pace=pace)

    def sealing(self, host: HostId, epoch: int, run: int) -> Future[SealedHost]:
        """Have a host tell when its part of a checkpoint is durable; returns at once."""

        def seal() -> SealedHost:
            return _sealed(host, self._order(host, "seal", epoch=epoch, run=run, partitions=0))

        return in_own_thread(seal, "fleet-seal")

    def ask(self, host: HostId, action: str, **arguments: Any) -> Any:
        """Ask a host for what it answers at once."""
        return self._order(host, action, AT_ONCE_MS, **arguments)

    def memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return {host: int(self._order(host, "memory")["rss"]) for host in list(self._told)}

    # -- calls

    def _order(
        self, host: HostId, action: str, within_ms: int | None = None, **arguments: Any
    ) -> Any:
        told = self._told.get(host)
        if told is None:
            raise HostLostError(f"host {host} is gone")
        return self._call(told.record, action, within_ms, **arguments)


def _sealed(host: HostId, facts: dict[str, Any]) -> SealedHost:
    deltas = facts.get("deltas", [facts.get("delta")])
    return codec.from_plain(facts | {"host": host, "deltas": deltas}, SealedHost)
