"""The parts of a started flow, put together: each gets what it needs when it is made."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from functools import partial

from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import EventWriter, JournalWriter
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.host.main import HostOrder, TaskOrder
from penstock.offload.policy.flow import helped
from penstock.plan.steps import KeyedStep
from penstock.spark import private
from penstock.spark.cores import task_slots
from penstock.spark.epoch_stream import EpochStream, Start, cancel_run
from penstock.spark.host_jobs import SparkHostJobs
from penstock.spark.late import LateWriter
from penstock.spark.offload import bill_of, keeper_of, trigger_ms
from penstock.state.store.store import Store
from penstock.wire.flight import own_address


class Parts:
    """What a started flow is made of. Nothing runs yet but the registry."""

    def __init__(self, start: Start) -> None:
        self.start = start
        flow, settings, spark = start.flow, start.settings, start.source.sparkSession
        self.run_id = secrets.token_hex(4)
        self.token = secrets.token_hex(16)
        """What all endpoints of this run ask for."""
        self.stopping = threading.Event()
        """Set when the query is to end after the epoch under way."""
        self.progress: deque[EpochProgress] = deque(maxlen=settings.progress_kept)
        """The newest epochs, oldest first."""
        self.store = Store(start.store)
        self.journal, self.events = JournalWriter(self.store), EventWriter(self.store)
        self.registry = Registry(
            own_address(private.is_local(spark)),
            settings.driver_port,
            self.token,
            on_host_lost=partial(cancel_run, spark, self.run_id),
        )
        jobs = SparkHostJobs(spark.sparkContext, self.run_id, self._order)
        self.fleet = Fleet(jobs, self.registry, self.token, settings)
        self.relocation = Relocation(flow.keyed, start.hosts, self.fleet, settings, start.migration)
        couriers = _Couriers(start, self.relocation, self.progress)
        self.keeper = keeper_of(start, self.run_id, self.token)
        """The flow's burst workers; None: it has none."""
        self.helps = self.keeper is not None and bool(helped(flow)[0])
        """Whether burst workers can help any step."""
        self.bill = bill_of(start, self.relocation, self.keeper, couriers.newest)
        self.control = self._control(couriers)
        """Lets hosts follow the load; None: they do not."""
        self.runner = EpochRunner(
            flow,
            self.fleet,
            self.relocation,
            self.registry,
            self.store,
            self.token,
            settings,
            control=self.control,
            bill=self.bill,
            late_sink=LateWriter(spark, start.late_rows, start.flow_id),
        )
        self.epochs = EpochStream(
            start, self.run_id, self.runner, self.store, self.stopping, self.progress.append
        )

    def _order(self, host: str, step: KeyedStep) -> TaskOrder:
        """What the task of a host is to run: that host, or one of each step."""
        start, flow = self.start, self.start.flow
        hosts = [HostOrder(host, step)]
        if flow.one_host:
            hosts = [HostOrder(f"{step.id}/0", step) for step in flow.keyed]
        local = private.is_local(start.source.sparkSession)
        driver = self.registry.location
        return TaskOrder(tuple(hosts), flow, start.store, driver, self.token, local, start.settings)

    def _control(self, couriers: _Couriers) -> ControlLoop | None:
        start = self.start
        if start.elastic is None or start.sla is None:
            return None
        if not start.flow.keyed and not self.helps:
            return None
        return ControlLoop(
            start.flow,
            start.sla,
            start.elastic,
            self.relocation,
            start.settings,
            lambda: time.time() * 1000,
            sink=self.journal,
            record=self.events,
            keeper=self.keeper,
            bill=self.bill,
            together=couriers.at_once,
            trigger_ms=trigger_ms(start),
        )


class _Couriers:
    """How many couriers work at a time."""

    def __init__(
        self, start: Start, relocation: Relocation, progress: deque[EpochProgress]
    ) -> None:
        self._slots, self._keyed = task_slots(start.source), start.flow.keyed
        self._relocation, self._progress = relocation, progress

    def at_once(self) -> int | None:
        """How many couriers there is room for beside the hosts; None if that is not known."""
        if self._slots is None:
            return None
        hosts = sum(len(self._relocation.hosts(step.id)) for step in self._keyed)
        return max(1, self._slots - hosts)

    def newest(self) -> int:
        """How many couriers worked at a time in the newest epoch."""
        found = self._progress[-1].partitions if self._progress else 1
        return min(found, self.at_once() or found)
