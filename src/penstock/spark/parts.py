"""The parts of a started flow, put together: each gets what it needs when it is made."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from functools import partial
from typing import cast

from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import EventWriter, JournalWriter
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.host.main import HostOrder, TaskOrder
from penstock.offload.backends.backend import Backend
from penstock.offload.backends.local.backend import reachable
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.policy.flow import helped
from penstock.plan.steps import KeyedStep
from penstock.spark import private
from penstock.spark.epoch_stream import EpochStream, Start, cancel_run
from penstock.spark.host_jobs import SparkHostJobs
from penstock.spark.merger import Merger
from penstock.spark.session import task_slots
from penstock.spark.sinks import LateWriter, Writer
from penstock.state.store.store import Store
from penstock.wire.flight import own_address


class FlowParts:
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
        self.keeper = self._keeper()
        """The flow's burst workers; None: it has none."""
        self.helps = self.keeper is not None and bool(helped(flow)[0])
        """Whether burst workers can help any step."""
        self.bill = Bill(
            HostPrice() if start.elastic is None else start.elastic.host_price,
            couriers.paid_cores,
            lambda: 0.0 if self.keeper is None else self.keeper.used.money,
            wall_ms,
        )
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
            keep_time=getattr(start.sink, "takes_once", False)
            and any(step.has_timers for step in flow.keyed),
        )
        sinks = {id(sink): sink for sink in (start.sink, *start.late_rows.values())}
        self.mergers = [
            Merger(spark, sink, self.store.must_own)
            for sink in sinks.values()
            if isinstance(sink, Writer) and sink.merges
        ]
        """Merge the epochs of file sinks."""
        self.epochs = EpochStream(
            start,
            self.run_id,
            self.runner,
            self.store,
            self.stopping,
            self.progress.append,
            self.mergers,
        )

    def _order(self, host: str, step: KeyedStep) -> TaskOrder:
        """What the task of a host is to run: that host, or one of each step."""
        start, flow = self.start, self.start.flow
        hosts = [HostOrder(host, step)]
        if flow.one_host:
            hosts = [HostOrder(f"{step.id}/0", step) for step in flow.keyed]
        local = private.is_local(start.source.sparkSession)
        store, driver = start.store, self.registry.location
        return TaskOrder(tuple(hosts), flow, store, driver, self.token, local, start.settings)

    def _keeper(self) -> WorkerKeeper | None:
        """The burst workers of a flow that may use any, not started yet."""
        start = self.start
        if start.elastic is None or start.elastic.functions is None:
            return None
        address = own_address(private.is_local(start.source.sparkSession))
        backend = reachable(cast(Backend, start.elastic.functions), address)
        faults = start.settings.faults
        return WorkerKeeper(lambda: backend.start(start.flow, self.run_id, self.token, faults))

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
            wall_ms,
            sink=self.journal,
            record=self.events,
            keeper=self.keeper,
            bill=self.bill,
            together=couriers.at_once,
            trigger_ms=start.trigger_ms,
        )


class _Couriers:
    """How many couriers work at a time, and the cores that a flow is billed for."""

    def __init__(
        self, start: Start, relocation: Relocation, progress: deque[EpochProgress]
    ) -> None:
        self._slots, self._start = task_slots(start.source), start
        self._relocation, self._progress = relocation, progress

    def at_once(self) -> int | None:
        """How many couriers there is room for beside the hosts; None if that is not known."""
        return None if self._slots is None else max(1, self._slots - self._hosts)

    def paid_cores(self) -> int:
        """A host costs by its cores, from when it is asked for. Where a flow has no hosts, its couriers
        do the work, and cost as much."""
        flow, tasks = self._start.flow, self._hosts
        if not flow.keyed:
            newest = self._progress[-1].partitions if self._progress else 1
            tasks = min(newest, self.at_once() or newest)
        return (min(tasks, 1) if flow.one_host else tasks) * self._start.settings.workers

    @property
    def _hosts(self) -> int:
        return sum(len(self._relocation.hosts(step.id)) for step in self._start.flow.keyed)
