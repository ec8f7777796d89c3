"""A started flow: the Spark query (or the batch run) that drives its epochs, and what users see of it."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.control.treat.decision import Policy
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.journal_writer import JournalWriter
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError, SettingError
from penstock.faults import arm
from penstock.host.main import HostOrder, TaskOrder
from penstock.model import milliseconds
from penstock.plan.migration import Migration
from penstock.plan.steps import KeyedStep
from penstock.spark import control, private
from penstock.spark.cores import check_cores, task_slots
from penstock.spark.epoch_stream import EpochStream, Start
from penstock.spark.host_jobs import SparkHostJobs
from penstock.spark.late import LateWriter
from penstock.spark.offload import bill_of, offloads_of
from penstock.state.store.store import Store
from penstock.wire.flight import own_address

State = Literal["starting", "running", "stopped", "finished", "failed"]


@dataclass(frozen=True)
class QueryStatus:
    """A glance at a query."""

    state: State
    epoch: int | None
    """The newest epoch that is done."""
    hosts: dict[str, int]
    """host -> process id, of those that are up."""
    message: str
    migration: str = "lazy"
    """How state follows its slots."""
    pending_slots: int = 0
    """Slots that have not reached the host where they should be."""
    money: Money | None = None
    """Spent since it was started."""


_JOURNAL_KEPT = 1_000

_active: weakref.WeakSet[FlowQuery] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for query in list(_active):
        query.stop()


class FlowQuery:
    """A running flow. Like Spark's `StreamingQuery`, with hosts.

    Made by `Flow.start`. Safe to use from any thread.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._spark = start.source.sparkSession
        self._task_slots = task_slots(start.source)
        local = private.is_local(self._spark)
        self._token = secrets.token_hex(16)
        self.run_id = secrets.token_hex(4)
        self._registry = Registry(own_address(local), start.settings.driver_port, self._token)

        def order(host: str, step: KeyedStep) -> TaskOrder:
            hosts = [HostOrder(host, step)]
            if start.flow.one_host:
                hosts = [HostOrder(f"{step.id}/0", step) for step in start.flow.keyed]
            location = self._registry.location
            return TaskOrder(
                tuple(hosts), start.flow, start.store, location, self._token, local, start.settings
            )

        self._state: State = "starting"
        jobs = SparkHostJobs(self._spark.sparkContext, self.run_id, order)
        self._fleet = Fleet(jobs, self._registry, self._token, start.settings)
        self._relocation = Relocation(
            start.flow.keyed, start.hosts, self._fleet, start.settings, start.migration
        )
        self._store = Store(start.store)
        self._journal_writer = JournalWriter(self._store)
        self._offloads = offloads_of(start, self.run_id, self._token, self._couriers_at_once)
        self._bill = bill_of(start, self._relocation, self._offloads, self._couriers)
        self._control = self._make_control()
        self._runner = EpochRunner(
            start.flow,
            self._fleet,
            self._relocation,
            self._registry,
            self._store,
            self._token,
            start.settings,
            control=self._control,
            bill=self._bill,
        )
        self._stopping = threading.Event()
        self._progress: deque[EpochProgress] = deque(maxlen=start.settings.progress_kept)
        self._epochs = EpochStream(
            start, self.run_id, self._runner, self._store, self._stopping, self._progress.append
        )
        self._registry.on_host_lost = self._epochs.give_up_run
        self._runner.on_late = LateWriter(self._spark, start.late_rows, start.flow_id)
        self._registry.actions |= control.actions(self)
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._driver = InheritableThread(
            target=self._drive, name=f"penstock-{self.run_id}", daemon=True
        )

    # What users see

    @property
    def status(self) -> QueryStatus:
        """A glance: state, newest epoch, hosts."""
        newest = self._progress[-1].epoch if self._progress else None
        message = str(self._error) if self._error else self._state
        if trouble := self._runner.upkeep_trouble:
            message += f"; the store could not be compacted: {trouble}"
        if self._offloads is not None and (trouble := self._offloads.keeper.trouble):
            message += f"; there are no functions: {trouble}"
        migration, pending = str(self.migration), self._relocation.pending
        return QueryStatus(
            self._state, newest, self._fleet.pids(), message, migration, pending, self.money
        )

    @property
    def progress(self) -> list[EpochProgress]:
        """The newest epochs, oldest first."""
        return list(self._progress)

    @property
    def money(self) -> Money:
        """What hosts and functions have cost since the query was started."""
        return self._bill.money

    @property
    def is_active(self) -> bool:
        return not self._done.is_set()

    def exception(self) -> BaseException | None:
        """Why the query failed, if it did."""
        return self._error

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, at most `timeout` seconds; raise what it failed with.

        Returns whether it has ended.
        """
        ended = self._done.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the query after the epoch under way, and every host with it. Returns when it is done."""
        self._stopping.set()
        if threading.current_thread() is not self._driver:
            self._done.wait()

    def spark_query(self) -> StreamingQuery:
        """Spark's own query behind this one; waits until it is started."""
        while not self._epochs.launched.wait(0.1):
            if self._done.is_set():
                raise self._error or PenstockError("this query has no Spark query behind it")
        assert self._epochs.streaming is not None
        return self._epochs.streaming

    def move(self, step: str, slots: Iterable[int], to: str) -> None:
        """Let these slots of a step live on the host `to`, from the next epoch on.

        State follows as `migration` says. Hosts are named like "sum/0", as in `status.hosts`.
        """
        self._must_run(moving=True)
        self._relocation.move(step, slots, to)

    def scale(self, step: str, hosts: int) -> None:
        """Let a step have so many hosts. Returns at once: slots move when new hosts are up."""
        self._must_run(moving=True)
        others = sum(len(self._relocation.hosts(s.id)) for s in self._start.flow.keyed)
        more = hosts - len(self._relocation.hosts(step)) if step in self._start.hosts else 0
        if more > 0:
            check_cores(self._start.source, others + more)
        self._relocation.scale(step, hosts)

    @property
    def migration(self) -> Migration:
        """How state follows slots that change hands. Set it to a text such as "batched(8)"."""
        return self._relocation.migration

    @migration.setter
    def migration(self, migration: str | Migration) -> None:
        self._must_run(moving=True)
        self._relocation.migration = Migration.parse(migration)

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        """Per step: which slots are on which host, since which epoch, and why."""
        return self._relocation.placements()

    def host_memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return self._fleet.memory()

    @property
    def control(self) -> ControlLoop:
        """What keeps the SLA: its settings, its journal, and `steer` to change them."""
        if self._control is None:
            raise SettingError(
                "this query keeps its hosts: nothing is controlled",
                hint='start it with flow.sla(latency="1s").elastic()',
            )
        return self._control

    @property
    def is_elastic(self) -> bool:
        """Whether hosts follow the load."""
        return self._control is not None

    def steer(
        self,
        *,
        latency: str | float | None = None,
        window: str | float | None = None,
        alert: str | float | None = None,
        margin: float | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        policy: str | Policy | None = None,
        dry_run: bool | None = None,
        functions_at_most: int | None = None,
        patience: str | float | None = None,
    ) -> dict[str, Any]:
        """Change the SLA, the policy or its limits from the next decision on; tells what holds then."""
        self._must_run()
        control = self.control
        if at_most is not None:
            hosts = sum(min(step.slots, at_most) for step in self._start.flow.keyed)
            check_cores(self._start.source, hosts)
        sla = control.sla
        if latency is not None:
            sla = replace(sla, latency_ms=milliseconds(latency))
        if window is not None:
            sla = replace(sla, window_ms=milliseconds(window))
        return control.steer(
            sla,
            alert=alert,
            margin=margin,
            at_least=at_least,
            at_most=at_most,
            policy=policy,
            dry_run=dry_run,
            functions_at_most=functions_at_most,
            patience=patience,
        )

    @property
    def journal(self) -> list[Entry]:
        """What was decided, why, and what came of it; oldest first."""
        return [] if self._control is None else self._control.journal.last(_JOURNAL_KEPT)

    # How it runs

    def _make_control(self) -> ControlLoop | None:
        start = self._start
        helped = self._offloads is not None and self._offloads.helps
        if start.elastic is None or start.sla is None or not (start.flow.keyed or helped):
            return None
        control = ControlLoop(
            start.flow.keyed,
            start.sla,
            start.elastic,
            self._relocation,
            start.settings,
            lambda: time.time() * 1000,
            self._journal_writer,
            self._offloads,
            self._bill,
        )
        self._registry.on_report = control.reported
        return control

    def _couriers_at_once(self) -> int | None:
        """How many couriers there is room for beside the hosts; None if that is not known."""
        if self._task_slots is None:
            return None
        hosts = sum(len(self._relocation.hosts(step.id)) for step in self._start.flow.keyed)
        return max(1, self._task_slots - hosts)

    def _couriers(self) -> int:
        """How many of them there were in the newest epoch, at a time."""
        found = self._progress[-1].partitions if self._progress else 1
        return min(found, self._couriers_at_once() or found)

    def launch(self) -> FlowQuery:
        _active.add(self)
        self._driver.start()
        return self

    def _drive(self) -> None:
        """The query's own thread: start hosts, run to the end, leave nothing behind."""
        try:
            arm(self._start.settings.faults)
            if self._offloads is not None and self._offloads.helps:
                self._offloads.keeper.start()
            self._bill.note()
            self._relocation.start_hosts()
            facts = {"location": self._registry.location, "token": self._token, "pid": os.getpid()}
            self._store.write_control(facts)
            self._state = "running"
            if self._start.source.isStreaming:
                self._epochs.stream()
            else:
                self._epochs.run_bounded()
            self._state = "stopped" if self._stopping.is_set() else "finished"
        except BaseException as failed:
            self._error = self._epochs.error or failed
        finally:
            self._error = self._error or self._epochs.error
            if self._error is not None:
                self._state = "failed"
            self._clean_up()
            self._done.set()
            _active.discard(self)

    def _clean_up(self) -> None:
        if self._offloads is not None:
            self._offloads.keeper.stop()
        self._bill.end()
        try:
            self._runner.stop()
            self._journal_writer.stop()
            self._fleet.stop()
            self._registry.shutdown()
            self._store.remove_control()
        except Exception as failed:
            self._error = self._error or failed
        arm(())
        if self._start.temporary:
            shutil.rmtree(self._start.checkpoint, ignore_errors=True)

    def _must_run(self, moving: bool = False) -> None:
        if self._done.is_set():
            raise SettingError("this query has ended", hint="start the flow again")
        if moving and self._start.flow.one_host:
            raise SettingError(
                "this flow runs on one host: its slots cannot move",
                hint="start it without on_one_host() to scale it or to move slots",
            )
