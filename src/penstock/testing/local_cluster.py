"""A whole flow in one process, without Spark, in which everything can be killed.

The driver's classes, the hosts' Flight servers and the couriers are the real ones; threads stand for
processes. This module takes the part of Spark: if an epoch is written again, its output in the sink is
replaced, and after a crash of the driver the unfinished epoch is replayed. `FlowTester` is built on it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock import codec
from penstock.courier import channels
from penstock.courier.courier import Courier
from penstock.courier.delivery import Task
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import SettingError
from penstock.faults import LIVE_POINTS, Action, Fault, InjectedFault, arm
from penstock.offload.courier.roads import burst_roads
from penstock.plan.epoch import EpochPlan
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.state.store.store import Store
from penstock.testing.thread_hosts import Reaper, StartFault, ThreadHosts, open_store
from penstock.testing.thread_tasks import Batches, ThreadTasks
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK

_OWN_THREAD = ("host.trickle", "host.install")
"""Points that a thread of the host passes which nobody waits for: an error there would be lost."""
_UPKEEP = ("driver.layout", "driver.clean")
"""Points that another thread of the driver passes than the one that runs epochs."""

LateTables = Mapping[tuple[str, int], pa.Table]
"""Late rows by step and number of its input."""


class LocalCluster:
    """One flow with its driver, hosts, couriers and sink. `run` runs an epoch.

    The methods that take `facts` are actions for a `Fault`. Subclasses may override `read`, `keep_output`,
    `keep_late`, `plan_of_run` and `make_control`.
    """

    def __init__(
        self,
        flow: FlowPlan,
        store: str,
        hosts: Mapping[str, int],
        settings: Settings,
        migration: Migration,
        memory_limit: int | None = None,
        access: Access | None = None,
        now_ms: int = 0,
    ) -> None:
        """`hosts` is the number of hosts of each step. With an `access`, all drivers use this one."""
        self.flow, self.store, self.settings = flow, store, settings
        self.hosts, self.migration, self.memory_limit = dict(hosts), migration, memory_limit
        self._access = access
        self.now_ms = now_ms
        """The machine's clock, in milliseconds since 1970."""
        self.time_ms = 0
        """Time of the last epoch in milliseconds: that of the clock, but it never goes back."""
        self.epoch = 0
        """Number of the next epoch."""
        self.started_ms = 0
        """Start time of the driver that ran the last epoch, in milliseconds."""
        self.reads = 1
        """Number of Spark jobs that the sink runs on an epoch's output."""
        self.deaths: Counter[str] = Counter()
        """Number of times that each host was killed, and, as "driver", that the driver crashed."""
        self.start_faults: dict[str, StartFault] = {}
        """Start faults by host, for this driver. All other hosts come up."""
        self.ended_by: BaseException | None = None
        """The error that last ended the query."""
        self._doomed = False
        """Whether a background thread of the driver has passed a fault that kills the driver."""
        self.reaper = Reaper()
        self.tasks = ThreadTasks(
            self._courier, lambda part, task: self.read(part, task), settings.rpc_timeout_ms / 1000
        )
        self.start_driver()

    # Epochs

    def run(self, parts: Sequence[Any], closing: int = 0) -> EpochProgress:
        """Run the next epoch once, with these partitions. Raises the same errors as a query.

        `closing` counts the epochs after the end of the input; see `EpochRunner.run`.
        """

        def write(plan: EpochPlan) -> None:
            text = codec.text(self.plan_of_run(plan))
            self.keep_output(plan.epoch, self.tasks.run_job(text, parts, self.reads))

        self.time_ms = max(self.time_ms, self.now_ms)
        progress = self.runner.run(self.epoch, len(parts), write, closing)
        self.started_ms = self.runner.versions.started_ms
        self.epoch += 1
        return progress

    def run_through(
        self,
        parts: Sequence[Any],
        faults: Callable[[], int],
        after: Callable[[], None] = lambda: None,
        tries: int = 8,
        closing: int = 0,
    ) -> EpochProgress:
        """Run the next epoch, and restart the driver whenever a fault has ended it.

        `faults` counts the faults that have happened. An error without a new fault is raised. `after` is
        called when the epoch is done, before a dead driver restarts.
        """
        for left in reversed(range(tries)):
            before = faults()
            try:
                progress = self.run(parts, closing)
            except BaseException as failed:
                if not left or faults() == before:
                    raise
                self.ended_by = failed
                self.restart()
                continue
            after()
            if self._doomed:
                self.restart()
            return progress
        raise AssertionError("not reached")

    @property
    def begun(self) -> bool:
        """Whether this driver has loaded its checkpoint. Slots can be moved only then."""
        return self.runner.versions.newest is not None

    # Parts of Spark, the sink and control, for subclasses to override

    def read(self, part: Any, task: Task) -> Iterable[pa.RecordBatch]:
        """Read a partition in a task attempt."""
        batches: Iterable[pa.RecordBatch] = part
        return batches

    def keep_output(self, epoch: int, batches: Batches) -> None:
        """Store the output of a run of an epoch, in place of an earlier run's."""

    def keep_late(self, epoch: int, rows: LateTables) -> None:
        """Store the late rows of an epoch, in place of an earlier run's."""

    def plan_of_run(self, plan: EpochPlan) -> EpochPlan:
        """The plan that couriers get."""
        return plan

    def make_control(self) -> ControlLoop | None:
        """The control of a new driver; None if autoscaling is off."""
        return None

    # Faults

    def kill_host(self, facts: Mapping[str, object]) -> None:
        """Kill the host that passes the point."""
        self.jobs.kill(str(facts["host"]))
        raise InjectedFault("host", facts)

    def stop_host(self, facts: Mapping[str, object]) -> None:
        """Stop the host that passes the point, as SIGSTOP would."""
        host = str(facts["host"])
        server = self.jobs.server(host)
        self.jobs.stop(host)
        server.running.wait()
        if server.dead:
            raise InjectedFault("host", facts)

    def kill_driver(self, facts: Mapping[str, object]) -> None:
        """Kill the driver from a background thread. All hosts die, so the query's thread fails too."""
        self._doomed = True
        self.jobs.kill_all()
        raise InjectedFault("driver", facts)

    def in_process(self, fault: Fault) -> Fault:
        """A fault whose "kill" or "stop" hits a thread in place of this process."""
        name, does = fault.point, fault.do
        if name in LIVE_POINTS:
            raise SettingError(f"only live flows pass {name}", hint="use a point of FAULT_POINTS")
        if not isinstance(does, str):
            return fault
        if name.startswith("host."):
            kill = self._kill_quietly if name in _OWN_THREAD else self.kill_host
            actions: dict[str, Action] = {"kill": kill, "stop": self.stop_host}
        elif name.startswith("courier."):
            actions = {"stop": self.tasks.lose_task}
        elif does in ("stop", "hang"):
            raise SettingError(f"a test cannot {does} its own driver at {name}", hint='use "kill"')
        elif name in _UPKEEP:
            actions = dict.fromkeys(("kill", "raise"), self.kill_driver)
        else:
            actions = {}
        return replace(fault, do=actions.get(does, "raise" if does == "kill" else does))

    def _kill_quietly(self, facts: Mapping[str, object]) -> None:
        self.jobs.kill(str(facts["host"]))

    def restart(self) -> None:
        """Kill the driver and all hosts, and start again from the same store."""
        self.deaths["driver"] += 1
        self._doomed = False
        self.start_faults = {}
        self._end_driver()
        self.start_driver()

    def close(self) -> None:
        """End everything. Returns when no thread of the cluster is left."""
        self.tasks.let_go()
        self._end_driver()
        self.tasks.close()
        self.reaper.close()
        arm(())

    # The driver

    def start_driver(self) -> None:
        """Start a driver and its hosts on the store."""
        self.access = self._access or Access(secrets.token_hex(8))
        store = self._claimed()
        self.place = store.place
        self.registry = Registry(LOOPBACK, self.access, lambda *_: self.tasks.cancel())
        self.jobs = ThreadHosts(self, self.registry, self.access)
        self.fleet = Fleet(self.jobs, self.registry, self.access, self.settings)
        self.relocation = Relocation(
            self.flow.keyed,
            self.hosts,
            self.fleet,
            self.settings,
            self.migration,
            one_task=self.flow.one_host,
        )
        self.control = self.make_control()
        self.runner = EpochRunner(
            self.flow,
            self.fleet,
            self.relocation,
            self.registry,
            store,
            self.settings,
            clock_ms=lambda: self.now_ms,
            steady_ms=lambda: 0.0,
            control=self.control,
            late_sink=self.keep_late,
        )
        self.relocation.start_hosts()

    def _claimed(self) -> Store:
        """The store, claimed by this driver, or by the next one if a fault crashes it."""
        while True:
            store = open_store(self.store)
            try:
                store.claim(self.now_ms)
                return store
            except InjectedFault:
                self.deaths["driver"] += 1

    def _end_driver(self) -> None:
        self.jobs.close()
        self.runner.stop()
        self.fleet.stop()
        self.registry.shutdown()
        channels.close_endpoints(self.access)

    # Couriers

    def _courier(self, plan: str, task: Task, check_end: Callable[[], None]) -> Courier:
        settings = self.settings
        return Courier(
            self.flow,
            lambda: (codec.decode(plan, EpochPlan), task),
            self.access,
            settings.rpc_timeout_ms,
            settings.exchange_timeout_ms,
            keep_late=True,
            roads=burst_roads,
            faults=settings.faults,
            lost_ms=settings.host_lost_ms,
            check_end=check_end,
        )
