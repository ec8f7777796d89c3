"""Simulated hosts and couriers of a live flow, which act when the test lets them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from penstock import codec
from penstock.control.crew_size import CrewLimits
from penstock.control.journal.entry import Entry
from penstock.driver.complaints import Complaint
from penstock.driver.couriers import CourierCrew
from penstock.driver.crew_scaling import CrewScaling
from penstock.driver.fleet import Fleet, SealedHost
from penstock.driver.live import BrokenOff, Inbox, LiveRunner, Outcome
from penstock.driver.progress import EpochProgress
from penstock.driver.recovery import Recovery
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import HostLostError, PenstockError, StaleRunError
from penstock.host.vitals import HostVitals
from penstock.model import HostId
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.state.store.manifest import pack_slots
from penstock.state.store.store import DeltaRef, Store
from penstock.wire.live import CheckpointMessage, EpochPassed, LiveOrder, Message, Reroute
from penstock.wire.report import Seen
from tests.trials.ledger import SUMS

(STEP,) = SUMS.keyed
A, B, C = (HostId(f"{STEP.id}/{n}") for n in range(3))
WAIT_S = 10.0


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that depends on other threads."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends, "the condition did not hold in time"
        time.sleep(0.002)


@dataclass(frozen=True)
class CountedSource:
    """A source whose positions are row numbers; `starts` has the first positions of its partitions."""

    starts: Mapping[str, int]

    def partitions(self) -> list[str]:
        return list(self.starts)

    def first(self, partitions: list[str]) -> dict[str, Any]:
        return {partition: self.starts[partition] for partition in partitions}

    def appeared(self, partitions: list[str]) -> dict[str, Any]:
        return dict.fromkeys(partitions, 0)


@dataclass
class PretendedRegistry:
    """A registry that holds the error of a run."""

    inbox: Inbox
    run: int = -1
    why: PenstockError | None = None
    said: list[Complaint] = field(default_factory=list)
    recovery: Recovery = field(default_factory=Recovery)

    def must_be_served(self) -> None: ...

    def expect(self, epoch: int, run: int, **calls: Callable[[Any], None]) -> None:
        self.run, self.why, self.said = run, None, []

    def trouble(self) -> PenstockError | None:
        return self.why

    def complaints(self) -> list[Complaint]:
        return self.said

    def break_off(self, why: PenstockError) -> None:
        self.why = why
        self.inbox.put(BrokenOff(self.run))


@dataclass
class PretendedHosts:
    """A simulated fleet. A `slow` host seals, and state arrives, only when the test lets it."""

    registry: PretendedRegistry
    up: set[HostId] = field(default_factory=lambda: {A, B})
    slow: set[HostId] = field(default_factory=set)
    awaited: int = 0
    assigned: dict[HostId, frozenset[int]] = field(default_factory=dict)
    incarnations: dict[HostId, int] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    seals: dict[tuple[HostId, int], Future[SealedHost]] = field(default_factory=dict)
    joined: set[HostId] = field(default_factory=set)

    def die(self, host: HostId) -> None:
        """Let a host die, and the driver notice."""
        self.up.discard(host)
        self.registry.break_off(HostLostError(f"host {host} was given up"))

    def sealed(self, host: HostId, epoch: int) -> None:
        """Let a slow host seal."""
        name, mine = f"deltas/{STEP.id}/{epoch}", 2 if host == A else 6
        own, away = (
            DeltaRef(
                STEP.id,
                host,
                f"{name}-{kind}-{host[-1]}",
                1,
                1,
                slots=pack_slots([slot]),
                away=kind == "away",
            )
            for kind, slot in (("own", mine), ("away", 8 - mine))
        )
        vitals = HostVitals(
            rows=1, useful_ms=1.0, entries=1, state_bytes=1, awaited_slots=self.awaited
        )
        self.seals[host, epoch].set_result(SealedHost(host, (away, own), vitals))

    # Methods that the runner and the relocation call

    def add(self, host: HostId, step: object) -> None:
        self.calls.append(("add", host))

    def remove(self, host: HostId) -> None:
        self.calls.append(("remove", host))
        self.up.discard(host)
        self.assigned.pop(host, None)

    def knows(self, host: HostId) -> bool:
        return host in self.up

    def ready(self, hosts: Iterable[HostId]) -> list[HostId]:
        return [host for host in hosts if host in self.up]

    def lost(self) -> list[HostId]:
        gone = [host for host in self.assigned if host not in self.up]
        for host in gone:
            del self.assigned[host]
        return gone

    def avoided(self, epoch: int) -> set[str]:
        return set()

    def revive(self, hosts: Iterable[HostId]) -> None: ...

    def wait_for(self, hosts: Sequence[HostId], enough: int) -> None:
        until(lambda: len(self.ready(hosts)) >= enough)

    def was_told(self, host: HostId, order: Any) -> bool:
        return self.assigned.get(host) == frozenset(order.owned)

    def assign(self, orders: dict[HostId, Any], sources: object, wait: bool) -> None:
        self.calls.append(("assign", wait))
        self.assigned |= {host: frozenset(order.owned) for host, order in orders.items()}

    def admit(self, hosts: Iterable[HostId], version: int, splits: object) -> None:
        self.assigned |= {host: frozenset() for host in hosts if host not in self.assigned}

    def join(self, hosts: Iterable[HostId], run: int, couriers: int, **facts: Any) -> None:
        self.joined.update(hosts)
        self.calls += [("join", host, run, couriers) for host in hosts]

    def handed(self, source: HostId, target: HostId, slots: Iterable[int], pace: object) -> None:
        self.assigned[source] -= frozenset(slots)
        self.assigned[target] |= frozenset(slots)

    def endpoints(self, hosts: tuple[HostId, ...]) -> tuple[str, ...]:
        return tuple(f"at {host}" for host in hosts)

    def sealing(self, host: HostId, epoch: int, run: int) -> Future[SealedHost]:
        self.seals[host, epoch] = future = Future[SealedHost]()
        if host not in self.slow:
            self.sealed(host, epoch)
        return future

    def judge(self, complaints: list[Complaint]) -> None: ...

    def roll_back(self, version: int, run: int, owned: Mapping[HostId, frozenset[int]]) -> bool:
        self.calls.append(("rollback", version, run))
        for (_, _), seal in list(self.seals.items()):
            if not seal.done():
                seal.set_exception(StaleRunError("the run was given up"))
        self.assigned = {host: owned.get(host, frozenset()) for host in self.assigned}
        self.joined.clear()
        return any(host not in self.up for host in self.assigned)

    def release(self, hosts: Iterable[HostId]) -> None:
        self.calls.append(("release", *sorted(hosts)))

    def pulse(self, hosts: Iterable[HostId]) -> None: ...

    def leaving(self, hosts: Iterable[HostId]) -> list[HostId]:
        return []

    def owned_by_step(self, step: str) -> dict[HostId, frozenset[int]]:
        return {host: owned for host, owned in self.assigned.items() if owned}

    def ask(self, *_: Any, **__: Any) -> Any:
        raise HostLostError("it compacts nothing")


@dataclass
class PretendedCouriers:
    """Simulated couriers. Each passes a checkpoint at once, unless it is `slow`; an epoch has ten rows."""

    inbox: Inbox
    registry: PretendedRegistry
    count: int = 2
    up: set[str] = field(default_factory=set)
    slow: set[int] = field(default_factory=set)
    orders: list[dict[str, LiveOrder]] = field(default_factory=list)
    messages: list[tuple[int, Message]] = field(default_factory=list)
    halted: list[int] = field(default_factory=list)
    lost: bool = False
    busy_ms: float = 0.0
    """Cost of each partition for its courier in an epoch."""
    ends_with: int = 1 << 60
    """The epoch at which all input ends."""
    _at: dict[int, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = tuple(f"courier/{n}" for n in range(self.count))
        self.up = set(self.names)

    @property
    def run(self) -> Mapping[str, LiveOrder]:
        return self.orders[-1]

    @property
    def missing(self) -> bool:
        return self.lost or bool(self.orders and set(self.run) - self.up)

    @property
    def idle(self) -> bool:
        return bool(self.orders and (self.up & set(self.names)) - set(self.run))

    @property
    def surplus(self) -> bool:
        return bool(self.orders and set(self.run) - set(self.names))

    def start(self, count: int) -> None:
        """Added couriers start when the test lets them."""
        self.names = (*self.names, *(f"new/{n}" for n in range(count)))[:count]

    def wait_for(self, names: object, enough: int) -> None:
        until(lambda: len(self.up) >= enough)

    def muster(self) -> list[str]:
        self.lost = False
        return [name for name in self.names if name in self.up]

    def begin(self, orders: dict[str, LiveOrder]) -> None:
        self.orders.append(orders)
        self._at = {}
        for order in orders.values():
            for source, places in order.positions.items():
                self._at[source] = self._at.get(source, {}) | places

    def tell(self, run: int, message: Message) -> None:
        self.messages.append((run, message))
        if message.checkpoint is not None:
            for order in self.run.values():
                if order.courier not in self.slow:
                    self.passed(order.courier, message.checkpoint)

    def passed(self, courier: int, checkpoint: CheckpointMessage) -> None:
        (order,) = [one for one in self.run.values() if one.courier == courier]
        places = {
            source: {
                p: self._at[source][p] + 10 * (1 + checkpoint.epoch - order.epoch) for p in here
            }
            for source, here in order.positions.items()
        }
        seen = codec.to_plain(Seen(10 * sum(map(len, places.values()))))
        ended = checkpoint.epoch >= self.ends_with
        closed = ended and checkpoint.closes
        passed = EpochPassed(
            order.run,
            checkpoint.epoch,
            courier,
            places,
            seen,
            None,
            ended,
            closed,
            busy_ms=self.busy_ms * sum(map(len, places.values())),
            rows={source: dict.fromkeys(here, 10) for source, here in places.items()},
        )
        self.inbox.put(passed)

    def halt(self, run: int) -> None:
        self.halted.append(run)

    def pulse(self, names: object) -> None: ...

    def replace_leaving(self) -> None: ...

    def revive(self, names: object) -> None: ...

    # Methods for tests

    def reroutes(self) -> list[tuple[int, Reroute]]:
        return [(run, m.reroute) for run, m in self.messages if m.reroute is not None]

    def checkpoints(self) -> list[CheckpointMessage]:
        return [m.checkpoint for _, m in self.messages if m.checkpoint is not None]


class PretendedFlow:
    """A LiveRunner in a thread, over simulated hosts and couriers."""

    def __init__(
        self,
        store: Store,
        *,
        flow: FlowPlan = SUMS,
        every_ms: int = 20,
        migration: str = "lazy",
        settings: Settings | None = None,
        source: CountedSource | None = None,
        couriers: int = 2,
        close: bool = False,
        limits: CrewLimits | None = None,
    ) -> None:
        self.journal: list[Entry] = []
        self.inbox: Inbox = Inbox()
        self.store, self.progress = store, list[EpochProgress]()
        self.registry = PretendedRegistry(self.inbox)
        self.hosts = PretendedHosts(self.registry)
        self.couriers = PretendedCouriers(self.inbox, self.registry, couriers)
        crew, tell = cast("CourierCrew", self.couriers), self.journal.append
        scaling = None if limits is None else CrewScaling(crew, limits, tell, look_ms=every_ms)
        chosen = settings or Settings(compact_epochs=1_000)
        self.relocation = Relocation(
            flow.keyed,
            {step.id: 2 for step in flow.keyed},
            cast("Fleet", self.hosts),
            chosen,
            Migration.parse(migration),
            live=True,
        )
        self.runner = LiveRunner(
            flow,
            [source or CountedSource({"p0": 0, "p1": 100, "p2": 200})],
            cast("Fleet", self.hosts),
            cast("CourierCrew", self.couriers),
            self.relocation,
            cast("Registry", self.registry),
            store,
            chosen,
            self.inbox,
            checkpoint_ms=every_ms,
            close=close,
            on_progress=self.progress.append,
            scaling=scaling,
        )
        self.stopping = threading.Event()
        self.outcome: Future[Outcome] = Future()
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def start(self) -> PretendedFlow:
        self._thread.start()
        return self

    def _drive(self) -> None:
        try:
            self.outcome.set_result(self.runner.run(self.stopping))
        except BaseException as failed:
            self.outcome.set_exception(failed)

    def stop(self) -> Outcome:
        self.stopping.set()
        return self.outcome.result(WAIT_S)

    def pass_epochs(self, number: int) -> None:
        """Wait until this many more epochs are durable."""
        goal = len(self.progress) + number
        until(lambda: len(self.progress) >= goal or self.outcome.done())
        assert len(self.progress) >= goal, self.outcome

    def fail(self, why: PenstockError) -> None:
        self.registry.break_off(why)


@contextmanager
def pretended(store: Store, **kwargs: Any) -> Iterator[PretendedFlow]:
    made = PretendedFlow(store, **kwargs)
    try:
        yield made
    finally:
        made.stopping.set()
        if made._thread.ident is not None:
            made._thread.join(WAIT_S)
        made.runner.stop()
