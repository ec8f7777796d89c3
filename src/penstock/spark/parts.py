"""The parts of a started flow, put together: each gets what it needs when it is made."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import EventWriter, JournalWriter
from penstock.driver.live import LiveRunner
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.host.main import HostOrder, TaskOrder, run_hosts
from penstock.logs import style_here
from penstock.offload.backends.backend import Backend
from penstock.offload.backends.local.backend import reachable
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.policy.flow import helped
from penstock.plan.steps import KeyedStep
from penstock.settings import port_range
from penstock.spark import private
from penstock.spark.epoch_stream import EpochStream, MicroStart, cancel_run
from penstock.spark.executors import host_profile
from penstock.spark.lasting_jobs import LastingTask, SparkJobs
from penstock.spark.merger import Merger
from penstock.spark.session import plain_beside, task_slots
from penstock.spark.sinks import LateWriter, Writer
from penstock.spark.started import Start
from penstock.state.store.store import Store
from penstock.wire.access import Access
from penstock.wire.addresses import Listen, driver_listens
from penstock.wire.control_key import KeyFile, control_token

_log = logging.getLogger("penstock.query")


class QueryParts(ABC):
    """What a started flow is made of, in either mode. Nothing runs yet but the registry."""

    runner: EpochRunner | LiveRunner
    bill: Bill
    keeper: WorkerKeeper | None = None
    """The flow's burst workers; None: it has none."""
    helps = False
    """Whether burst workers can help any step."""
    control: ControlLoop | None = None
    """Lets hosts follow the load; None: they do not."""

    def __init__(
        self, start: Start, on_host_lost: Callable[[int, int], None], live: bool = False
    ) -> None:
        self.start, settings = start, start.settings
        self.run_id = secrets.token_hex(4)
        self.access = Access.new(settings)
        """What all endpoints of this run ask for."""
        self.control_token = control_token(settings, os.environ)
        """What `penstock ctl` must show."""
        self.key_file = KeyFile(start.flow_id, self.run_id, os.environ)
        self.stopping = threading.Event()
        """Set when the query is to end after the epoch under way."""
        self.progress: deque[EpochProgress] = deque(maxlen=settings.progress_kept)
        """The newest epochs, oldest first."""
        self.store = Store(start.store)
        self.journal, self.events = JournalWriter(self.store), EventWriter(self.store)
        self.local = private.is_local(start.spark)
        self._conf = dict(start.spark.sparkContext.getConf().getAll())
        if warning := plain_beside(self._conf, settings.tls is not None):
            _log.warning(warning)
        listen = self._listen(settings.driver_port or settings.ports)
        self.registry = Registry(listen, self.access, on_host_lost, self.control_token)
        context = start.spark.sparkContext
        profile = host_profile(context, settings)
        jobs = SparkJobs(context, self.run_id, self._host_task, profile)
        self.fleet = Fleet(jobs, self.registry, self.access, settings)
        self.relocation = Relocation(
            start.flow.keyed,
            start.hosts,
            self.fleet,
            settings,
            start.migration,
            live,
            start.flow.one_host,
        )

    def start_up(self) -> None:
        """Begin what lasts as long as the query."""
        self.bill.note()
        self.relocation.start_hosts()

    def _keeper(self) -> WorkerKeeper | None:
        """The burst workers of a flow that may use any, not started yet."""
        start = self.start
        if start.elastic is None or start.elastic.functions is None:
            return None
        listen = self._listen(start.settings.ports)
        backend = reachable(cast(Backend, start.elastic.functions), listen)
        faults = start.settings.faults
        return WorkerKeeper(lambda: backend.start(start.flow, self.run_id, self.access, faults))

    def _listen(self, ports: int | str) -> Listen:
        """How a server in the driver listens."""
        return driver_listens(self._conf, self.local, port_range(ports))

    def _control(
        self,
        together: Callable[[], int | None],
        trigger_ms: float = 0.0,
        live: bool = False,
        unread: Callable[[], int] = lambda: 0,
    ) -> ControlLoop | None:
        """What lets hosts follow the load, if the flow asks for that and has any that could."""
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
            together=together,
            unread=unread,
            trigger_ms=trigger_ms,
            live=live,
        )

    @abstractmethod
    def drive(self) -> Literal["stopped", "finished"]:
        """Run the flow to its end, in the thread that calls."""

    @property
    def error(self) -> BaseException | None:
        """What the flow failed with, where that is clearer than what `drive` raised."""
        return None

    @property
    def couriers(self) -> dict[str, int]:
        """Courier -> process id, of those that last as long as the query and are up."""
        return {}

    @property
    def waiting(self) -> list[str]:
        """What is waited for."""
        return [self.runner.waiting, *self.fleet.waiting]

    def ends(self) -> list[Callable[[], object]]:
        """What ends all parts, one after the other."""
        stops = [self.bill.end, self.runner.stop, self.journal.stop, self.events.stop]
        stops += [self.fleet.stop, self.registry.shutdown]
        return [*stops, self.key_file.remove, self.store.remove_control]

    @property
    def hosts_wanted(self) -> int:
        """How many hosts there should be, over all steps."""
        return sum(len(self.relocation.hosts(step.id)) for step in self.start.flow.keyed)

    def _host_task(self, host: str, step: KeyedStep) -> LastingTask:
        """What the task of a host is to run: that host, or one of each step."""
        start, flow = self.start, self.start.flow
        hosts = [HostOrder(host, step)]
        if flow.one_host:
            hosts = [HostOrder(f"{step.id}/0", step) for step in flow.keyed]
        store, driver, settings = start.store, self.registry.location, start.settings
        avoids = frozenset[str]() if self.local else self.fleet.places_to_avoid(host)
        order = TaskOrder(
            tuple(hosts),
            flow,
            store,
            driver,
            self.access,
            self.local,
            settings,
            avoids,
            style_here(),
        )
        return LastingTask(tuple(one.host for one in hosts), step.id, partial(run_hosts, order))


class FlowParts(QueryParts):
    """The parts of a flow in micro-batches."""

    start: MicroStart

    def __init__(self, start: MicroStart) -> None:
        flow, settings, spark = start.flow, start.settings, start.spark
        super().__init__(start, lambda epoch, run: cancel_run(spark, self.run_id, epoch, run))
        couriers = _Couriers(start, self)
        self.keeper = self._keeper()
        self.helps = self.keeper is not None and bool(helped(flow)[0])
        self.bill = Bill(
            HostPrice() if start.elastic is None else start.elastic.host_price,
            couriers.paid_cores,
            lambda: 0.0 if self.keeper is None else self.keeper.used.money,
            wall_ms,
        )
        self.control = self._control(
            couriers.at_once, start.trigger_ms, unread=lambda: self.epochs.unread
        )
        self.runner: EpochRunner = EpochRunner(
            flow,
            self.fleet,
            self.relocation,
            self.registry,
            self.store,
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
            self.access,
            self.runner,
            self.store,
            self.stopping,
            self.progress.append,
            self.mergers,
        )

    def start_up(self) -> None:
        if self.keeper is not None and self.helps:
            self.keeper.start()
        super().start_up()

    def drive(self) -> Literal["stopped", "finished"]:
        if self.start.source.isStreaming:
            self.epochs.stream()
        else:
            self.epochs.run_bounded()
        return "stopped" if self.stopping.is_set() else "finished"

    @property
    def error(self) -> BaseException | None:
        return self.epochs.error

    def ends(self) -> list[Callable[[], object]]:
        first: list[Callable[[], object]] = [] if self.keeper is None else [self.keeper.stop]
        if close := getattr(self.start.sink, "close", None):
            first.append(close)
        return [*first, *(merger.stop for merger in self.mergers), *super().ends()]


class _Couriers:
    """How many couriers work at a time, and the cores that a flow is billed for."""

    def __init__(self, start: MicroStart, parts: QueryParts) -> None:
        self._start, self._parts = start, parts

    def at_once(self) -> int | None:
        """How many couriers there is room for beside the hosts; None if that is not known."""
        slots = task_slots(self._start.spark)  # executors come and go
        return None if slots is None else max(1, slots - self._parts.hosts_wanted)

    def paid_cores(self) -> int:
        """A host costs by its cores, from when it is asked for. Where a flow has no hosts, its couriers
        do the work, and cost as much."""
        flow, tasks, progress = self._start.flow, self._parts.hosts_wanted, self._parts.progress
        if not flow.keyed:
            newest = progress[-1].partitions if progress else 1
            tasks = min(newest, self.at_once() or newest)
        return (min(tasks, 1) if flow.one_host else tasks) * self._start.settings.workers
