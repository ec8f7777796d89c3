"""A started flow: the Spark query (or the batch run) that drives its epochs, and what users see of it."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from penstock.config import Settings
from penstock.courier.courier import Courier
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError, SettingError
from penstock.faults import arm
from penstock.host.main import HostOrder
from penstock.plan.epoch import EpochPlan
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.spark import control, private, task
from penstock.spark.cores import check_cores
from penstock.spark.host_jobs import SparkHostJobs
from penstock.spark.late import LateWriter
from penstock.spark.schema import spark_schema
from penstock.spark.sinks import Sink
from penstock.state.store import Store
from penstock.wire.flight import own_address

State = Literal["starting", "running", "stopped", "finished", "failed"]


class StoppedBetweenEpochs(Exception):
    """Ends a stopping query's callback before it has begun its epoch."""


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


@dataclass(frozen=True)
class Start:
    """Everything `Flow.start` has settled."""

    flow: FlowPlan
    source: DataFrame
    sink: Sink
    store: str
    checkpoint: str
    flow_id: str
    hosts: dict[str, int]
    migration: Migration
    settings: Settings
    trigger: dict[str, Any]
    close: bool
    """When all that is there has been read, the input has ended."""
    late_rows: dict[tuple[str, int], Sink]
    """(step, input) -> where rows go that came behind its watermark."""
    name: str | None
    temporary: bool
    """The checkpoint folder is Penstock's own and goes when the query ends."""


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
        local = private.is_local(self._spark)
        self._token = secrets.token_hex(16)
        self.run_id = secrets.token_hex(4)
        self._registry = Registry(own_address(local), start.settings.driver_port, self._token)

        def order(host: str, step: KeyedStep) -> HostOrder:
            return HostOrder(
                host, step, start.store, self._registry.location, self._token, local, start.settings
            )

        jobs = SparkHostJobs(self._spark.sparkContext, self.run_id, order)
        self._fleet = Fleet(jobs, self._registry, self._token, start.settings)
        self._relocation = Relocation(
            start.flow.keyed, start.hosts, self._fleet, start.settings, start.migration
        )
        self._store = Store(start.store)
        self._runner = EpochRunner(
            start.flow,
            self._fleet,
            self._relocation,
            self._registry,
            self._store,
            self._token,
            start.settings,
        )
        self._registry.on_host_lost = self._give_up_run
        self._runner.on_late = LateWriter(self._spark, start.late_rows, start.flow_id)
        self._registry.actions |= control.actions(self)
        self._state: State = "starting"
        self._error: BaseException | None = None
        self._progress: deque[EpochProgress] = deque(maxlen=start.settings.progress_kept)
        self._between_epochs = threading.Lock()
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._streaming: StreamingQuery | None = None
        self._launched = threading.Event()
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
        migration, pending = str(self.migration), self._relocation.pending
        return QueryStatus(self._state, newest, self._fleet.pids(), message, migration, pending)

    @property
    def progress(self) -> list[EpochProgress]:
        """The newest epochs, oldest first."""
        return list(self._progress)

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
        while not self._launched.wait(0.1):
            if self._done.is_set():
                raise self._error or PenstockError("this query has no Spark query behind it")
        assert self._streaming is not None
        return self._streaming

    def move(self, step: str, slots: Iterable[int], to: str) -> None:
        """Let these slots of a step live on the host `to`, from the next epoch on.

        State follows as `migration` says. Hosts are named like "sum/0", as in `status.hosts`.
        """
        self._must_run()
        self._relocation.move(step, slots, to)

    def scale(self, step: str, hosts: int) -> None:
        """Let a step have so many hosts. Returns at once: slots move when new hosts are up."""
        self._must_run()
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
        self._relocation.migration = Migration.parse(migration)

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        """Per step: which slots are on which host, since which epoch, and why."""
        return self._relocation.placements()

    def host_memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return self._fleet.memory()

    # How it runs

    def launch(self) -> FlowQuery:
        _active.add(self)
        self._driver.start()
        return self

    def _drive(self) -> None:
        """The query's own thread: start hosts, run to the end, leave nothing behind."""
        try:
            arm(self._start.settings.faults)
            self._relocation.start_hosts()
            facts = {"location": self._registry.location, "token": self._token, "pid": os.getpid()}
            self._store.write_control(facts)
            self._state = "running"
            if self._start.source.isStreaming:
                self._stream()
            else:
                self._run_bounded()
            self._state = "stopped" if self._stopping.is_set() else "finished"
        except BaseException as failed:
            self._error = self._error or failed
        finally:
            if self._error is not None:
                self._state = "failed"
            self._clean_up()
            self._done.set()
            _active.discard(self)

    def _clean_up(self) -> None:
        try:
            self._runner.stop()
            self._fleet.stop()
            self._registry.shutdown()
            self._store.remove_control()
        except Exception as failed:
            self._error = self._error or failed
        if self._start.temporary:
            shutil.rmtree(self._start.checkpoint, ignore_errors=True)

    def _output(self, source: DataFrame) -> DataFrame:
        """The source with couriers on it. They learn the epoch's plan when their task starts.

        A flow without steps needs none: Spark does it all.
        """
        flow = self._start.flow
        if not flow.steps:
            return source
        settings = self._start.settings
        courier = Courier(
            flow,
            task.current,
            settings.rpc_timeout_ms,
            settings.exchange_timeout_ms,
            bool(self._start.late_rows),
            settings.faults,
        )
        return source.mapInArrow(courier.__call__, spark_schema(flow.output))

    def _stream(self) -> None:
        if self._store.closing:
            self._close_flow()
            return
        start = self._start
        writer = (
            self._output(start.source)
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", start.checkpoint)
        )
        if start.name:
            writer = writer.queryName(start.name)
        if start.trigger:
            writer = writer.trigger(**start.trigger)
        streaming = writer.start()
        self._streaming = streaming
        self._launched.set()
        # Event-driven for the common cases, and a poll for a query that ends by itself.
        while streaming.isActive and not self._stopping.wait(0.1):
            pass
        if streaming.isActive:
            with self._between_epochs:
                stopper = InheritableThread(target=streaming.stop, daemon=True)
                stopper.start()
                _until(lambda: not streaming.isActive)
            stopper.join()
        failure = streaming.exception()
        if failure is not None and self._error is None and not self._stopping.is_set():
            self._error = PenstockError(f"Spark ended the query: {failure}")
        if self._start.close and self._error is None and not self._stopping.is_set():
            self._close_flow()

    def _on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Spark's callback for one micro-batch: one epoch."""
        with self._between_epochs:
            if self._stopping.is_set():
                self._launched.wait()
                streaming = self._streaming
                assert streaming is not None
                if not streaming.isActive:
                    raise StoppedBetweenEpochs(private.stop_signal(str(streaming.runId)))
            self._epoch(df, batch_id)

    def _epoch(self, df: DataFrame, epoch: int, closing: int = 0) -> None:
        def write(plan: EpochPlan) -> None:
            context = df.sparkSession.sparkContext
            context.setLocalProperty(task.PLAN, plan.to_text())
            tag = self._tag(plan.epoch, plan.run)
            context.addJobTag(tag)
            try:
                self._start.sink.write(df, epoch, self._start.flow_id)
            finally:
                context.removeJobTag(tag)
                context.setLocalProperty(task.PLAN, None)  # type: ignore[arg-type]

        try:
            partitions = private.partition_count(df)
            self._progress.append(self._runner.run(epoch, partitions, write, closing))
        except BaseException as failed:
            self._error = failed
            raise

    def _give_up_run(self, epoch: int, run: int) -> None:
        """A courier has lost a host: what is left of the run is in vain, and so are its retries."""
        self._spark.sparkContext.cancelJobsWithTag(self._tag(epoch, run))

    def _tag(self, epoch: int, run: int) -> str:
        """Marks the Spark jobs of one run of an epoch."""
        return f"penstock-{self.run_id}-{epoch}-{run}"

    def _must_run(self) -> None:
        if self._done.is_set():
            raise SettingError("this query has ended", hint="start the flow again")

    def _run_bounded(self) -> None:
        """A static DataFrame is one epoch, and then one for each step that has something to close."""
        self._epoch(private.pinned(self._output(self._start.source)), 0)
        self._close_flow()

    def _close_flow(self) -> None:
        """The input has ended: an epoch for each step on a row's way closes what is open."""
        start, spark = self._start, self._spark
        if not any(step.has_timers for step in start.flow.keyed):
            return
        rows: Any = spark.sparkContext.parallelize([], 1)
        nothing = spark.createDataFrame(rows, start.source.schema)
        # Said in the store, so that a start after a crash goes on with it, and reads nothing more.
        done = self._runner.next_epoch()
        first = self._store.begin_closing(done)
        for epoch in range(done, first + max(start.flow.depths.values())):
            if self._stopping.is_set():
                return
            df = private.pinned(self._output(nothing))
            self._epoch(df, epoch, closing=epoch - first + 1)
        self._store.close_flow()


def _until(condition: Callable[[], bool]) -> None:
    """Wait for Spark to have taken a change that it tells of in no other way."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
