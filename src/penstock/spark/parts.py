"""The parts of a started flow, put together: each gets what it needs when it is made."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from penstock.control.elastic import Elastic
from penstock.control.examine.success import Success
from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import JournalWriter, StartWriter, control_line
from penstock.driver.live import LiveRunner
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.driver.success import SuccessRates
from penstock.host.main import HostOrder, TaskOrder, run_hosts
from penstock.logs import style_here
from penstock.observe.figures import NewestFigures
from penstock.observe.metrics.totals import Recent
from penstock.observe.moment import Moment
from penstock.observe.recording import FlowFacts, line_of
from penstock.observe.sla_log import SlaLog
from penstock.offload.backends.backend import Backend
from penstock.offload.backends.local.backend import reachable
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.policy.flow import helped
from penstock.plan.steps import KeyedStep
from penstock.settings import port_range
from penstock.spans import TRACED
from penstock.spark import private
from penstock.spark.epoch_stream import EpochStream, MicroStart, cancel_run
from penstock.spark.executors import host_cores, host_profile
from penstock.spark.lasting_jobs import LastingTask, SparkJobs
from penstock.spark.merger import Merger
from penstock.spark.plain import PlainStream
from penstock.spark.session import SECURED, TaskSlots, plain_beside
from penstock.spark.sinks import LateWriter, Writer
from penstock.spark.started import Start
from penstock.state.store.store import Store
from penstock.wire.access import Access
from penstock.wire.addresses import Listen, driver_listens
from penstock.wire.control_key import KeyFile, control_token

if TYPE_CHECKING:
    from penstock.observe.metrics.otel import Telemetry

_log = logging.getLogger("penstock.query")
_METERED = "250ms"
"""Length of the time slots in which a live flow without autoscaling is examined."""
_ADDRESS = ("spark.driver.host", "spark.driver.bindAddress")
"""Settings that say where the driver listens."""
_MOMENTS_S = 30.0
"""Seconds between two files of the recording."""


class QueryParts(ABC):
    """The parts of a started flow, in either mode. Only the registry runs yet."""

    runner: EpochRunner | LiveRunner
    bill: Bill
    keeper: WorkerKeeper | None = None
    """Keeper of the flow's burst workers; None if it has none."""
    helps = False
    """Whether burst workers can help any step."""
    telemetry: Telemetry | None = None
    """Metrics and traces for OpenTelemetry; None if they are off."""
    control: ControlLoop | None = None
    """Control loop that scales hosts with the load; None if autoscaling is off."""
    meters: ControlLoop | None = None
    """Control loop that measures success rates of steps and slots. Where autoscaling is off, it is one that
    decides nothing. None without an SLA."""

    def __init__(
        self, start: Start, on_host_lost: Callable[[int, int], None], live: bool = False
    ) -> None:
        self.start, settings = start, start.settings
        self.run_id = secrets.token_hex(4)
        self.access = Access.new(settings)
        """Token and certificates of all endpoints of this run."""
        self.control_token = control_token(settings, os.environ)
        """Token that `penstock ctl` must present."""
        self.key_file = KeyFile(start.flow_id, self.run_id, os.environ)
        self.stopping = threading.Event()
        """Set when the query should stop after the current epoch."""
        self.progress: deque[EpochProgress] = deque(maxlen=settings.progress_kept)
        """The newest epochs, oldest first."""
        self.success = SuccessRates(start.sla)
        """Success rates of the flow."""
        self.store = Store(start.store)
        self.started_ms = float(round(wall_ms()))
        """Start of the query, in milliseconds since 1970."""
        self.journal = JournalWriter(self.store)
        self.events = StartWriter(self.store, "events", self.started_ms, control_line)
        self.moments = StartWriter(self.store, "moments", self.started_ms, line_of, _MOMENTS_S)
        self.local = private.is_local(start.spark)
        context = start.spark.sparkContext
        self._conf = {name: private.setting(context, name) for name in (*SECURED, *_ADDRESS)}
        if warning := plain_beside(self._conf, settings.tls is not None):
            _log.warning(warning)
        listen = self._listen(settings.driver_port or settings.ports)
        self.registry = Registry(listen, self.access, on_host_lost, self.control_token)
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

    def note(self, epoch: EpochProgress) -> None:
        """Take in an epoch that has reached the sink and is durable."""
        self.success.take(epoch)
        money = epoch.money or self.bill.money
        self.progress.append(replace(epoch, success=self.rates, money=money))
        if len(self.progress) > TRACED:
            untraced = self.progress[-TRACED - 1]
            self.progress[-TRACED - 1] = replace(untraced, spans=())

    @property
    def rates(self) -> dict[str, Success]:
        """Success rates of the flow and its steps, by kind of bound."""
        return {**self.success.rates, **({} if self.meters is None else self.meters.success())}

    def start_up(self) -> None:
        """Start the parts that run as long as the query."""
        self.bill.note()
        self.relocation.start_hosts()

    def _keeper(self) -> WorkerKeeper | None:
        """Keeper of the flow's burst workers, not started yet; None if it has none."""
        start = self.start
        if start.elastic is None or start.elastic.functions is None:
            return None
        listen = self._listen(start.settings.ports)
        backend = reachable(cast(Backend, start.elastic.functions), listen)
        faults = start.settings.faults
        return WorkerKeeper(lambda: backend.start(start.flow, self.run_id, self.access, faults))

    @property
    def courier_access(self) -> Access:
        """Access of couriers, which also connect to the flow's burst workers."""
        elastic = self.start.elastic
        return replace(self.access, functions=None if elastic is None else elastic.functions)

    def _listen(self, ports: int | str) -> Listen:
        """Address and ports on which a server in the driver listens."""
        return driver_listens(self._conf, self.local, port_range(ports))

    def _control(
        self,
        together: Callable[[], int | None],
        trigger_ms: float = 0.0,
        live: bool = False,
        unread: Callable[[], int] = lambda: 0,
    ) -> ControlLoop | None:
        """The control loop; None if autoscaling is off or no step can use it."""
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
            cpu=self.registry.cpu,
            trigger_ms=trigger_ms,
            live=live,
        )

    def _meters(self, live: bool = False) -> ControlLoop | None:
        """The control loop or, where there is none, one that only measures."""
        start = self.start
        if self.control is not None or start.sla is None or not start.flow.keyed:
            return self.control
        if start.flow.one_host:  # its steps are a chain, which is examined as a whole
            return None
        return ControlLoop(
            start.flow,
            start.sla,
            Elastic("static(1)", delta=_METERED, dry_run=True),
            self.relocation,
            start.settings,
            wall_ms,
            live=live,
            decides=False,
        )

    @property
    def query_name(self) -> str:
        """Name of the query, or the id of its flow."""
        return self.start.name or self.start.flow_id

    def watchers(self, facts: FlowFacts, entries: Recent) -> list[Callable[[Moment], None]]:
        """Functions that get every moment of the query. `entries` returns its journal after a time."""
        found: list[Callable[[Moment], None]] = [SlaLog(facts.name).take]
        if self.start.telemetry:
            from penstock.observe.metrics.otel import Telemetry

            self.telemetry = Telemetry.of(facts, entries)
            found.append(self.telemetry.take)
        return found

    @abstractmethod
    def drive(self) -> Literal["stopped", "finished"]:
        """Run the flow to its end, in the calling thread."""

    @property
    def error(self) -> BaseException | None:
        """Error of the flow, if it is clearer than the one that `drive` raised; else None."""
        return None

    @property
    def couriers(self) -> dict[str, int]:
        """Courier -> process id, for long-lived couriers that are up."""
        return {}

    @property
    def waiting(self) -> list[str]:
        """Status messages about what the query waits for."""
        return [self.runner.waiting, *self.fleet.waiting]

    def ends(self) -> list[Callable[[], object]]:
        """Functions that end all parts, in order."""
        stops = [] if self.telemetry is None else [self.telemetry.stop]
        stops += [self.bill.end, self.runner.stop]
        stops += [self.journal.stop, self.events.stop, self.moments.stop]
        stops += [self.fleet.stop, self.registry.shutdown]
        return [*stops, self.key_file.remove, self.store.remove_control]

    @property
    def hosts_wanted(self) -> int:
        """Number of hosts that all steps together should have."""
        return sum(len(self.relocation.hosts(step.id)) for step in self.start.flow.keyed)

    def _host_task(self, host: str, step: KeyedStep) -> LastingTask:
        """The Spark task of a host; in a flow on one host, with one host of each step."""
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
        names = tuple(h.host for h in hosts)
        return LastingTask(names, step.id, partial(run_hosts, order), self.query_name)


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
        self.meters = self._meters()
        self.runner: EpochRunner = EpochRunner(
            flow,
            self.fleet,
            self.relocation,
            self.registry,
            self.store,
            settings,
            control=self.meters,
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
        """Mergers of the file sinks' epochs."""
        self.figures = NewestFigures() if settings.observed_metrics else None
        """Figures for Spark's listeners; None if they get none."""
        self.epochs = (PlainStream if start.plain else EpochStream)(
            start,
            self.run_id,
            self.courier_access,
            self.runner,
            self.store,
            self.stopping,
            self.note,
            self.mergers,
            self.figures,
        )

    def watchers(self, facts: FlowFacts, entries: Recent) -> list[Callable[[Moment], None]]:
        found = super().watchers(facts, entries)
        return found if self.figures is None else [*found, self.figures.take]

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
    """The number of couriers that work at the same time, and of cores that the flow pays for."""

    def __init__(self, start: MicroStart, parts: QueryParts) -> None:
        self._start, self._parts = start, parts
        self._slots = TaskSlots(start.spark)
        self._host_cores = host_cores(start.spark.sparkContext, start.settings)

    def at_once(self) -> int | None:
        """Number of task slots for couriers beside the hosts; None if unknown."""
        slots = self._slots.now
        return None if slots is None else max(1, slots - self._parts.hosts_wanted)

    def paid_cores(self) -> int:
        """Number of cores to pay for: those of all requested hosts or, in a flow without hosts, those of its
        couriers."""
        flow, tasks, progress = self._start.flow, self._parts.hosts_wanted, self._parts.progress
        if not flow.keyed:
            newest = progress[-1].partitions if progress else 1
            tasks = min(newest, self.at_once() or newest)
        return (min(tasks, 1) if flow.one_host else tasks) * self._host_cores
