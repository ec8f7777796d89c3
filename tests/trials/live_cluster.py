"""A whole live flow in one process, without Spark, in which every part can die.

The classes of the driver and the Flight servers of hosts and couriers are the real ones; threads stand for
processes. This module does Spark's part: it starts a dead task again, and starts another driver on the
same store after the driver's death.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as fl

from penstock.control.crew_size import CrewLimits, CrewPlan
from penstock.control.elastic import Elastic
from penstock.control.journal.entry import Entry
from penstock.driver.checkpoints import Underway
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.couriers import CourierCrew
from penstock.driver.crew_scaling import CrewScaling
from penstock.driver.fleet import Fleet
from penstock.driver.live import BrokenOff, Inbox, LiveRunner, Outcome
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError
from penstock.faults import InjectedFault, arm
from penstock.host.main import keep_known
from penstock.live.loop import CourierTask
from penstock.live.server import CourierServer
from penstock.live.sinks.sink import Delivery, LiveSink, LiveWriter, RowIds
from penstock.live.sinks.transactional import TransactionalSink
from penstock.live.sources.source import LiveSource
from penstock.live.task import register
from penstock.model import SLA
from penstock.offload.keeper import WorkerKeeper
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.testing.thread_hosts import Reaper, StartFault, ThreadHosts, open_store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint
from tests.trials.plain_rows import Row

SETTINGS = Settings(
    rpc_timeout_ms=10_000,
    host_start_ms=10_000,
    heartbeat_ms=100,
    host_lost_ms=4_000,
    compact_epochs=4,
    keep_epochs=4,
)
WAIT_S = 60.0
FIXED = CrewLimits(at_most=0, high=9.0, low=0.0)
"""Limits with which couriers never count as too busy or too idle."""


@dataclass(frozen=True)
class KeptRows(LiveSink):
    """A sink that keeps rows by epoch; rows of an epoch that is run again replace the old ones."""

    rows: dict[int, list[Row]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    delivered: set[tuple[int, int]] = field(default_factory=set)
    """(epoch, courier) of rows that were delivered in a transaction."""

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return _KeptWriter(self)

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        return _KeptDelivery(self)

    def rewind(self, epoch: int) -> None:
        with self.lock:
            for later in [e for e in self.rows if e > epoch]:
                del self.rows[later]

    def all_rows(self) -> list[Row]:
        with self.lock:
            return [row for epoch in sorted(self.rows) for row in self.rows[epoch]]


@dataclass
class _KeptWriter(LiveWriter):
    sink: KeptRows

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        with self.sink.lock:
            self.sink.rows.setdefault(ids.epoch, []).extend(batch.to_pylist())

    def flush(self, epoch: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class _KeptDelivery(Delivery):
    sink: KeptRows

    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        with self.sink.lock:
            if (ids.epoch, ids.courier) not in self.sink.delivered:
                self.sink.delivered.add((ids.epoch, ids.courier))
                self.sink.rows.setdefault(ids.epoch, []).extend(rows.to_pylist())


class MortalCourier(CourierServer):
    """A courier that can die: from then on every call fails."""

    dead = False

    def do_action(self, *args: Any) -> Any:
        if self.dead:
            raise fl.FlightUnavailableError("this courier is dead")
        return super().do_action(*args)


class ThreadCouriers:
    """Jobs of couriers, run as threads."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._servers: dict[str, MortalCourier] = {}
        self._ends: dict[str, threading.Event] = {}
        self.absent: set[str] = set()
        """Couriers that do not start, as if no core were free."""
        self._going: dict[str, MortalCourier] = {}
        self._lock = threading.Lock()
        self._closed = False

    def start(self, name: str, work: int) -> None:
        self.kill(name)
        if name not in self.absent:
            threading.Thread(target=self._serve, args=(name,), daemon=True).start()

    def _serve(self, name: str) -> None:
        cluster, ended = self._cluster, threading.Event()
        task = CourierTask(
            name,
            cluster.flow,
            cluster.sources,
            cluster.outlet,
            cluster.registry.location,
            cluster.access,
            True,
            cluster.settings,
            keep_late=True,
        )
        driver = Endpoint(task.driver, task.access)
        server = MortalCourier(task, LOOPBACK, driver, ended.set, lambda: self._died(name, server))
        with self._lock:
            self._servers[name], self._ends[name] = server, ended
            late = self._closed
        if late:  # Its driver died while it started.
            self.kill(name)
        with suppress(PenstockError):
            known = [register(server, task, driver)]
            keep_known(driver, cluster.settings, known, ended)
        self._end(server)
        driver.close()

    def _died(self, name: str, server: MortalCourier) -> None:
        """End a courier whose thread died of a fault, as if its process had died."""
        server.dead = True
        threading.Thread(target=self.kill, args=(name,), daemon=True).start()

    def running(self, name: str) -> bool:
        with self._lock:
            return name in self._servers or name in self.absent

    def failure(self, name: str) -> str:
        return "it was killed"

    def cancel(self, name: str) -> None:
        self.kill(name)

    def leave(self, name: str) -> None:
        """Begin the planned removal of a courier's machine."""
        with self._lock:
            if name in self._servers:
                self._going[name] = self._servers[name]

    def leaving(self, names: Iterable[str]) -> list[str]:
        with self._lock:
            return [n for n in names if n in self._going and self._going[n] is self._servers.get(n)]

    def give_up(self, name: str, pid: int) -> None:
        self.kill(name)

    def kill(self, name: str) -> None:
        """Kill a courier as SIGKILL would."""
        with self._lock:
            server, ended = self._servers.pop(name, None), self._ends.pop(name, None)
        if server is not None and ended is not None:
            self._cluster.deaths[name] += 1
            server.dead = True
            ended.set()

    def _end(self, server: MortalCourier) -> None:
        server.dead = True
        with suppress(RuntimeError):
            self._cluster.reaper.end(server)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            names = list(self._servers)
        for name in names:
            self.kill(name)


class AskedCrew(CrewScaling):
    """A scaling of couriers that follows the test's requests, otherwise the policy."""

    def __init__(
        self, crew: CourierCrew, limits: CrewLimits, tell: Callable[[Entry], None], look_ms: float
    ) -> None:
        super().__init__(crew, limits, tell, look_ms)
        self.asked: queue.SimpleQueue[CrewPlan] = queue.SimpleQueue()

    def take_in(self, whole: Underway) -> None:
        try:
            self._carry_out(self.asked.get_nowait(), whole)
        except queue.Empty:
            super().take_in(whole)


class _Doom:
    """A stand-in whose attribute kills the driver that reads it."""

    @property
    def run(self) -> int:
        raise InjectedFault("driver", {})


class LiveCluster:
    """One live flow with its driver, hosts, couriers and sink. It runs in threads."""

    def __init__(
        self,
        flow: FlowPlan,
        sources: tuple[LiveSource, ...],
        store: str,
        *,
        hosts: int = 2,
        couriers: int = 2,
        settings: Settings = SETTINGS,
        migration: str = "lazy",
        checkpoint_ms: int = 60,
        close: bool = False,
        memory_limit: int | None = None,
        transactional: bool = False,
        limits: CrewLimits = FIXED,
        look_ms: float = 50.0,
        elastic: Elastic | None = None,
        sla: SLA = SLA(100, 1_000),  # noqa: B008 - frozen
        warm_slots: int = 0,
        keeper: WorkerKeeper | None = None,
    ) -> None:
        """With `elastic`, hosts follow the load after `warm_slots` time slots; `keeper` has burst workers."""
        self.elastic, self.sla, self._warm_slots = elastic, sla, warm_slots
        self.keeper = keeper
        self.control: ControlLoop | None = None
        self.journal: list[Entry] = []
        self.recorded: list[Any] = []
        """Events of the newest driver's control, starting with its opening."""
        self.flow, self.sources, self.store, self.settings = flow, sources, store, settings
        self.hosts, self.couriers = (
            {step.id: min(hosts, step.slots) for step in flow.keyed},
            couriers,
        )
        self.migration, self._checkpoint_ms = Migration.parse(migration), checkpoint_ms
        self.memory_limit, self._close_flow = memory_limit, close
        self.sink, self._transactional = KeptRows(), transactional
        self.late: dict[int, dict[tuple[str, int], list[Row]]] = {}
        self.deaths: Counter[str] = Counter()
        self.start_faults: dict[str, StartFault] = {}
        self.progress: list[EpochProgress] = []
        self._limits, self._look_ms = limits, look_ms
        self.outcome: Outcome | BaseException | None = None
        self.reaper = Reaper()
        self._closing = threading.Event()
        self._driver = threading.Thread(target=self._drive, name="live-driver", daemon=True)
        self._start_driver()
        self._driver.start()

    # Methods for tests

    def until(self, condition: Callable[[], object], what: str = "") -> float:
        """Wait until a condition holds; return the seconds that it took."""
        began = time.monotonic()
        ends = began + WAIT_S
        while not condition():
            if isinstance(self.outcome, BaseException):
                raise self.outcome
            assert time.monotonic() < ends, (
                f"the condition did not hold: {what} {self.runner.waiting}"
            )
            time.sleep(0.005)
        return time.monotonic() - began

    def pass_epochs(self, number: int = 1) -> None:
        """Wait until this number of further epochs have begun and are durable."""
        begun = self.progress[-1].epoch if self.progress else -1
        self.until(lambda: self.progress and self.progress[-1].epoch >= begun + number + 1)

    # Deaths

    def kill_host(self, where: Mapping[str, object]) -> None:
        """The effect of a fault: kill the host that passes its point."""
        self.jobs.kill(str(where["host"]))
        raise InjectedFault("host", where)

    def kill_driver(self, where: Mapping[str, object]) -> None:
        """The effect of a fault in another thread than the driver's: the driver dies at its next message."""
        self.inbox.put(cast(BrokenOff, _Doom()))
        raise InjectedFault("driver", where)

    # The driver

    def _start_driver(self) -> None:
        self.access = Access(secrets.token_hex(8))
        store = open_store(self.store)
        store.claim(int(time.time() * 1000))
        self.place, self.outlet = store.place, cast(LiveSink, self.sink)
        if self._transactional:
            self.outlet = TransactionalSink(self.sink, store.place, "flow")
        inbox = self.inbox = Inbox()
        self.registry = Registry(LOOPBACK, self.access, lambda _, run: inbox.put(BrokenOff(run)))
        self.jobs = ThreadHosts(self, self.registry, self.access)
        self.courier_jobs = ThreadCouriers(self)
        self.fleet = Fleet(self.jobs, self.registry, self.access, self.settings)
        self.crew = CourierCrew(self.courier_jobs, self.registry, self.access, self.settings)
        self.relocation = Relocation(
            self.flow.keyed, self.hosts, self.fleet, self.settings, self.migration, live=True
        )
        self.stopping = threading.Event()
        self.scaling = AskedCrew(self.crew, self._limits, self.journal.append, self._look_ms)
        self.recorded = []
        if self.elastic is not None:
            self.control = ControlLoop(
                self.flow,
                self.sla,
                self.elastic,
                self.relocation,
                self.settings,
                wall_ms,
                sink=self.journal.append,
                record=self.recorded.append,
                keeper=self.keeper,
                together=lambda: self.couriers,
                warm_epochs=self._warm_slots,
                live=True,
            )
        self.runner = LiveRunner(
            self.flow,
            self.sources,
            self.fleet,
            self.crew,
            self.relocation,
            self.registry,
            store,
            self.settings,
            inbox,
            checkpoint_ms=self._checkpoint_ms,
            close=self._close_flow,
            on_progress=self.progress.append,
            late_sink=self._keep_late,
            rewind=self.outlet.rewind,
            keeps=self.outlet.keeps,
            scaling=self.scaling,
            control=self.control,
        )
        self.relocation.start_hosts()
        self.crew.start(self.couriers)

    def _drive(self) -> None:
        """Run the driver; when it dies of a fault, run the next one."""
        while not self._closing.is_set():
            try:
                self.outcome = self.runner.run(self.stopping)
                return
            except InjectedFault:
                self.deaths["driver"] += 1
                self._end_driver()
                self._start_driver()
            except BaseException as failed:
                self.outcome = failed
                return

    def _keep_late(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        self.late[epoch] = {where: table.to_pylist() for where, table in rows.items()}

    def _end_driver(self) -> None:
        self.jobs.close()
        self.courier_jobs.close()
        self.runner.stop()
        self.crew.stop()
        self.fleet.stop()
        self.registry.shutdown()

    def stop(self) -> Outcome:
        """Stop the flow regularly."""
        self.stopping.set()
        self._driver.join(WAIT_S)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def restart(self, **changes: Any) -> None:
        """Stop regularly, and start again on the same store."""
        self.stop()
        self._end_driver()
        self.hosts |= changes.get("hosts", {})
        self.couriers = changes.get("couriers", self.couriers)
        self.outcome = None
        self._start_driver()
        self._driver = threading.Thread(target=self._drive, name="live-driver", daemon=True)
        self._driver.start()

    def close(self) -> None:
        self._closing.set()
        self.stopping.set()
        self._driver.join(WAIT_S)
        self._end_driver()
        self.reaper.close()
        arm(())
        assert not self._driver.is_alive(), "the driver is left behind"


@contextmanager
def live_cluster(flow: FlowPlan, sources: Any, store: str, **kwargs: Any) -> Iterator[LiveCluster]:
    """A cluster that is closed at the end of the block."""
    made = LiveCluster(flow, tuple(sources), store, **kwargs)
    try:
        yield made
    finally:
        made.close()
