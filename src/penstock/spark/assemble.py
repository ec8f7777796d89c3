"""The parts of a started flow, put together: each gets what it needs when it is made."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial

from penstock.driver.bill import Bill
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import JournalWriter
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.host.main import HostOrder, TaskOrder
from penstock.offload.driver.help import Offloads
from penstock.plan.steps import KeyedStep
from penstock.spark import private
from penstock.spark.cores import task_slots
from penstock.spark.epoch_stream import EpochStream, Start, cancel_run
from penstock.spark.host_jobs import SparkHostJobs
from penstock.spark.late import LateWriter
from penstock.spark.offload import bill_of, offloads_of
from penstock.state.store.store import Store
from penstock.wire.flight import own_address


@dataclass(frozen=True)
class Parts:
    """What a started flow is made of. Nothing runs yet but the registry."""

    start: Start
    run_id: str
    token: str
    """What all endpoints of this run ask for."""
    store: Store
    registry: Registry
    fleet: Fleet
    relocation: Relocation
    offloads: Offloads | None
    """The flow's burst workers; None: it has none."""
    bill: Bill
    journal: JournalWriter
    control: ControlLoop | None
    """Lets hosts follow the load; None: they do not."""
    runner: EpochRunner
    epochs: EpochStream
    progress: deque[EpochProgress]
    """The newest epochs, oldest first."""
    stopping: threading.Event
    """Set when the query is to end after the epoch under way."""


def assemble(start: Start) -> Parts:
    """Make all parts of a flow that is to start."""
    run_id, token = secrets.token_hex(4), secrets.token_hex(16)
    spark, flow, settings = start.source.sparkSession, start.flow, start.settings
    local, store, stopping = private.is_local(spark), Store(start.store), threading.Event()
    progress: deque[EpochProgress] = deque(maxlen=settings.progress_kept)
    registry = Registry(
        own_address(local), settings.driver_port, token, partial(cancel_run, spark, run_id)
    )

    def order(host: str, step: KeyedStep) -> TaskOrder:
        hosts = [HostOrder(host, step)]
        if flow.one_host:
            hosts = [HostOrder(f"{step.id}/0", step) for step in flow.keyed]
        return TaskOrder(tuple(hosts), flow, start.store, registry.location, token, local, settings)

    def delay_s() -> float:
        """For trials: hosts that are asked for while epochs pass come up later."""
        return settings.host_delay_ms / 1000 if progress else 0.0

    jobs = SparkHostJobs(spark.sparkContext, run_id, order, delay_s)
    fleet = Fleet(jobs, registry, token, settings)
    relocation = Relocation(flow.keyed, start.hosts, fleet, settings, start.migration)
    couriers = _Couriers(start, relocation, progress)
    offloads = offloads_of(start, run_id, token, couriers.at_once)
    bill = bill_of(start, relocation, offloads, couriers.newest)
    journal = JournalWriter(store)
    control = None
    helped = offloads is not None and offloads.helps
    if start.elastic is not None and start.sla is not None and (flow.keyed or helped):
        control = ControlLoop(
            flow.keyed,
            start.sla,
            start.elastic,
            relocation,
            settings,
            lambda: time.time() * 1000,
            journal,
            offloads,
            bill,
        )
    runner = EpochRunner(
        flow,
        fleet,
        relocation,
        registry,
        store,
        token,
        settings,
        control=control,
        bill=bill,
        late_sink=LateWriter(spark, start.late_rows, start.flow_id),
    )
    epochs = EpochStream(start, run_id, runner, store, stopping, progress.append)
    return Parts(
        start=start,
        run_id=run_id,
        token=token,
        store=store,
        registry=registry,
        fleet=fleet,
        relocation=relocation,
        offloads=offloads,
        bill=bill,
        journal=journal,
        control=control,
        runner=runner,
        epochs=epochs,
        progress=progress,
        stopping=stopping,
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
