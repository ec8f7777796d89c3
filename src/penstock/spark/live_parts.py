"""Builds the parts of a live flow. Its couriers are long-lived Spark tasks, like hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from penstock.control.crew_size import CrewLimits
from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.clock import wall_ms
from penstock.driver.couriers import CourierCrew
from penstock.driver.crew_scaling import CrewScaling
from penstock.driver.live import BrokenOff, Inbox, LiveRunner
from penstock.live.loop import CourierTask
from penstock.live.sinks.sink import LiveSink
from penstock.live.sources.source import LiveSource
from penstock.live.task import run_courier
from penstock.logs import style_here
from penstock.offload.policy.flow import helped
from penstock.spark.executors import host_cores
from penstock.spark.lasting_jobs import LastingTask, SparkJobs
from penstock.spark.parts import QueryParts
from penstock.spark.sinks import LateWriter
from penstock.spark.started import Start


@dataclass(frozen=True, kw_only=True)
class LiveStart(Start):
    """The options of a flow that is started in live mode."""

    sources: tuple[LiveSource, ...]
    outlet: LiveSink
    """Sink in the form that couriers write to."""
    couriers: int
    """Number of couriers at the start."""
    crew: CrewLimits | None
    """Limits for scaling the couriers; None if their number is fixed."""
    checkpoint_ms: int
    """Milliseconds between checkpoints."""


class LiveParts(QueryParts):
    """The parts of a started live flow."""

    start: LiveStart

    def __init__(self, start: LiveStart) -> None:
        inbox: Inbox = Inbox()
        super().__init__(start, lambda _, run: inbox.put(BrokenOff(run)), live=True)
        spark, settings = start.spark, start.settings
        cores = host_cores(spark.sparkContext, settings)
        jobs = SparkJobs(spark.sparkContext, self.run_id, self._courier_task)
        self.crew = CourierCrew(jobs, self.registry, self.access, settings)
        self.bill = Bill(
            HostPrice() if start.elastic is None else start.elastic.host_price,
            lambda: (self._host_tasks() + len(self.crew.names)) * cores,
            lambda: 0.0 if self.keeper is None else self.keeper.used.money,
            wall_ms,
        )
        self.keeper = self._keeper()
        self.helps = self.keeper is not None and bool(helped(start.flow, live=True)[0])
        self.control = self._control(lambda: len(self.crew.names), live=True)
        self.meters = self._meters(live=True)
        self.runner: LiveRunner = LiveRunner(
            start.flow,
            start.sources,
            self.fleet,
            self.crew,
            self.relocation,
            self.registry,
            self.store,
            settings,
            inbox,
            checkpoint_ms=start.checkpoint_ms,
            close=start.close,
            on_progress=self.note,
            late_sink=LateWriter(spark, start.late_rows, start.flow_id),
            rewind=start.outlet.rewind,
            keeps=start.outlet.keeps,
            bill=self.bill,
            scaling=self._scaling(),
            control=self.meters,
        )

    def _scaling(self) -> CrewScaling | None:
        """The scaling of couriers; None if their number is fixed."""
        start = self.start
        if start.crew is None:
            return None
        tell = self.journal if self.control is None else self.control.note
        return CrewScaling(
            self.crew, start.crew, tell, dry_run=start.elastic is not None and start.elastic.dry_run
        )

    def _host_tasks(self) -> int:
        return min(self.hosts_wanted, 1) if self.start.flow.one_host else self.hosts_wanted

    def start_up(self) -> None:
        if self.keeper is not None and self.helps:
            self.keeper.start()
        super().start_up()
        self.crew.start(self.start.couriers)

    def drive(self) -> Literal["stopped", "finished"]:
        outcome = self.runner.run(self.stopping)
        if outcome == "finished" and self.start.close:
            self.store.close_flow()
        return outcome

    @property
    def couriers(self) -> dict[str, int]:
        return self.crew.pids()

    @property
    def waiting(self) -> list[str]:
        return [*super().waiting, *self.crew.waiting]

    def ends(self) -> list[Callable[[], object]]:
        first = [self.crew.stop] if self.keeper is None else [self.keeper.stop, self.crew.stop]
        return [*first, *super().ends()]

    def _courier_task(self, name: str, number: int) -> LastingTask:
        start, driver = self.start, self.registry.location
        task = CourierTask(
            name,
            start.flow,
            start.sources,
            start.outlet,
            driver,
            self.courier_access,
            self.local,
            start.settings,
            keep_late=bool(start.late_rows),
            helped=self.helps,
            log=style_here(),
        )
        return LastingTask((name,), "", partial(run_courier, task), self.query_name)
