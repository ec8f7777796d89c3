"""A whole flow in one process, without Spark, and everything in it can die.

The driver's classes, the hosts' Flight servers and the couriers are the real ones; threads stand for
processes. What Spark does is done here: a task is tried four times, a job that failed leaves its
other tasks running for a while, a sink's output of an epoch is replaced when the epoch is written
again, and after the death of the driver the epoch that had not returned is replayed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

import pyarrow as pa

from penstock import codec
from penstock.control.elastic import Elastic
from penstock.control.events import Event
from penstock.control.journal.entry import Entry
from penstock.control.machine import WARM_EPOCHS
from penstock.control.money import HostPrice
from penstock.control.record import Opening
from penstock.courier import channels
from penstock.courier.courier import Courier
from penstock.courier.delivery import Task
from penstock.driver.bill import Bill
from penstock.driver.control_loop import ControlLoop
from penstock.driver.epochs import EpochRunner
from penstock.driver.fleet import Fleet
from penstock.driver.progress import EpochProgress
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.errors import CutInputError
from penstock.faults import Fault, InjectedFault, arm
from penstock.host.main import HostTask
from penstock.model import SLA
from penstock.offload.courier.roads import burst_roads
from penstock.offload.keeper import WorkerKeeper
from penstock.operators.operator import CHANGE
from penstock.plan.epoch import EpochPlan
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.state.store.reader import StateReader
from penstock.state.store.store import Store
from penstock.state.table.table import KEY
from penstock.testing import Uncombined
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from tests.trials.plain_rows import Row, arrow_batch, net, plain
from tests.trials.thread_hosts import Birth, ThreadHosts, open_store

ATTEMPTS = 4
"""Spark's `spark.task.maxFailures`."""
SETTINGS = Settings(
    rpc_timeout_ms=10_000,
    exchange_timeout_ms=5_000,
    host_start_ms=10_000,
    compact_epochs=3,
    keep_epochs=3,
)
PLAIN = replace(SETTINGS, faults=(Fault("courier.sender", Uncombined(), hits=()),))
"""Couriers send a record of each row."""

SECOND = SLA(1000, 1000)
NEVER = 1 << 62

Partitions = Sequence[Sequence[Row]]


class TaskLost(Exception):
    """Spark has given a task up, dead or not."""


class MiniCluster:
    """One flow with its driver, hosts, couriers and sink. `run` gives it an epoch."""

    def __init__(
        self,
        flow: FlowPlan,
        store: str,
        hosts: int = 2,
        settings: Settings = SETTINGS,
        migration: str = "lazy",
        memory_limit: int | None = None,
        elastic: Elastic | None = None,
        sla: SLA = SECOND,
        helped: Callable[[EpochPlan], EpochPlan] = lambda plan: plan,
        warm_epochs: int = WARM_EPOCHS,
        record: Callable[[Opening | Event], None] = lambda told: None,
        keeper: WorkerKeeper | None = None,
        access: Access | None = None,
    ) -> None:
        """`record` gets all that control is told; it decides nothing on the first `warm_epochs`."""
        self._given = access
        self.warm_epochs, self.record, self._keeper = warm_epochs, record, keeper
        self.bill: Bill | None = None
        """Of a flow that functions help."""
        if keeper is not None:
            self.bill = Bill(HostPrice(), lambda: 2, lambda: keeper.used.money, lambda: self.now_ms)
        self.flow, self.store, self.settings = flow, store, settings
        self.elastic, self.sla = elastic, sla
        self.helped = helped
        """Puts into the plan of a run what goes to functions."""
        self.control: ControlLoop | None = None
        """Decides where hosts and slots go, if the flow is elastic."""
        self.journal: list[tuple[int, Entry]] = []
        """What control told, and which driver's it was: the first is 0."""
        most = 1 if flow.one_host else hosts
        self.hosts = {step.id: min(most, step.slots) for step in flow.keyed}
        self.migration = Migration.parse("pause" if flow.one_host else migration)
        self.memory_limit = memory_limit
        """Bytes that a host may hold between epochs; for hosts that are started from now on."""
        self.sink: dict[int, list[Row]] = {}
        """epoch -> the rows that it gave."""
        self.late: dict[int, dict[tuple[str, int], list[Row]]] = {}
        """epoch -> (step, input) -> the rows that came too late for it."""
        self.now_ms = 1_000
        """What the machine's clock says."""
        self.time_ms = 0
        """The time of the last epoch: that of the clock, but it never goes back."""
        self.epoch = 0
        """The next epoch."""
        self.started_ms = 0
        """When the driver began that ran the last epoch."""
        self.reads = 1
        """How many Spark jobs the sink makes of an epoch's output."""
        self.batches = 2
        """How many batches Spark makes of a partition."""
        self.deaths: Counter[str] = Counter()
        """host -> how often it was ended; "driver" -> how often that died."""
        self.births: dict[str, Birth] = {}
        """host -> what becomes of it whenever this driver starts it; all others come up."""
        self.ended_by: BaseException | None = None
        """What the query last ended with."""
        self.attempts = 0
        """How many tasks couriers have run, retries included."""
        self._attempt = count()
        self._tasks: dict[int, Future[list[Row]]] = {}
        self._cut: dict[int, bool] = {}
        """attempt whose input breaks off -> whether Spark's end mark is missing then."""
        self._doomed = False
        self._wake, self._cancelled = threading.Event(), threading.Event()
        self._executor = ThreadPoolExecutor(32, thread_name_prefix="task")
        self._threads: list[threading.Thread] = []
        # A server ends when its calls have: a task that lingers on one keeps it for a while.
        self._undertaker = ThreadPoolExecutor(8, thread_name_prefix="undertaker")
        self._start_driver()

    # Epochs

    def run(self, parts: Partitions, closing: int = 0) -> EpochProgress:
        """Run the next epoch once, with these rows by partition; raises what the query would.

        `closing` counts the epochs after the end of the input, as `EpochRunner.run` takes it.
        """

        def write(plan: EpochPlan) -> None:
            self._write(plan, parts)

        self.time_ms = max(self.time_ms, self.now_ms)
        progress = self.runner.run(self.epoch, len(parts), write, closing)
        self.started_ms = self.runner.versions.started_ms
        self.epoch += 1
        return progress

    def run_through(
        self,
        parts: Partitions,
        faults: Callable[[], int],
        upkeep: bool = False,
        tries: int = 8,
        closing: int = 0,
    ) -> EpochProgress:
        """Run the next epoch, and start the driver again when a fault has ended it.

        `faults` counts those that have happened: an error without one is an error. With `upkeep`,
        a compaction that the epoch gives cause to is waited for.
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
            if upkeep:
                self.await_upkeep()
            if self._doomed:
                self.restart()
            return progress
        raise AssertionError("not reached")

    def await_upkeep(self) -> None:
        """Wait for the compaction and the clean-up that are under way, if any."""
        for chore in (
            self.runner.versions.upkeep._compacting,
            self.runner.versions.upkeep._cleaning,
        ):
            chore.join()

    def output(self, epoch: int) -> list[tuple[Any, ...]]:
        """The rows of an epoch, in a fixed order; of changes what is left of them, and how often."""
        return (
            net(self.sink[epoch]) if CHANGE in self.flow.output.names else plain(self.sink[epoch])
        )

    def keys(self, step: str) -> set[Any]:
        """The keys of a step that have state which has not expired, as the store tells."""
        stored = stored_entries(self.store, self._step(step), self.epoch - 1)
        return {key for key, row in stored.items() if lives(row, self.time_ms)}

    def _step(self, step: str) -> KeyedStep:
        return next(one for one in self.flow.keyed if one.id == step)

    @property
    def begun(self) -> bool:
        """Whether the driver has run an epoch since it was started: only then slots can be moved."""
        return self.runner.versions.newest is not None

    # Deaths

    def kill_host(self, where: Mapping[str, object]) -> None:
        """What a fault does to the host that passes its point."""
        self.jobs.kill(str(where["host"]))
        raise InjectedFault("host", where)

    def stop_host(self, where: Mapping[str, object]) -> None:
        """What a fault does to the host that passes its point, as SIGSTOP would: nothing goes on."""
        host = str(where["host"])
        server = self.jobs.server(host)
        self.jobs.stop(host)
        server.going.wait()
        if server.dead:
            raise InjectedFault("host", where)

    def lose_task(self, where: Mapping[str, object]) -> None:
        """What a fault does to a courier whose executor Spark has given up, though it lives.

        The task is tried again elsewhere; this one goes on when the next job has begun.
        """
        attempt = _attempt(where)
        with suppress(Exception):
            self._tasks[attempt].set_exception(TaskLost("its executor does not answer"))
        self._wake.wait(SETTINGS.rpc_timeout_ms / 1000)
        time.sleep(attempt % 4 * 0.003)

    def cut_input(self, where: Mapping[str, object]) -> None:
        """What a fault does to the input of a task: it breaks off here, between two batches.

        The courier gets no more of it, and Spark tries the task again.
        """
        self._cut[_attempt(where)] = True

    def shorten_input(self, where: Mapping[str, object]) -> None:
        """The same, and the courier cannot know: this looks like the end of its input."""
        self._cut[_attempt(where)] = False

    def kill_driver(self, where: Mapping[str, object]) -> None:
        """What a fault does in another thread than the query's: that one finds no host alive."""
        self._doomed = True
        self.jobs.kill_all()
        raise InjectedFault("driver", where)

    def bury(self, task: HostTask) -> None:
        def end() -> None:
            task.end()
            for server in task.servers:  # a process that is dead writes nothing more
                server._sealer.shutdown()

        try:
            self._undertaker.submit(end)
        except RuntimeError:  # the cluster is closed: whoever comes late does it himself
            end()

    def restart(self) -> None:
        """Kill the driver and, with it, all hosts; start anew on the same store."""
        self.deaths["driver"] += 1
        self._doomed = False
        self.births = {}
        self._end_driver()
        self._start_driver()

    def close(self) -> None:
        self._wake.set()
        self._end_driver()
        self._executor.shutdown()
        for thread in self._threads:
            thread.join(SETTINGS.rpc_timeout_ms / 1000)
            assert not thread.is_alive(), "a courier is left behind"
        self._undertaker.shutdown()
        arm(())

    # The driver

    def _start_driver(self) -> None:
        self.access = self._given or Access(secrets.token_hex(8))
        store = self._claimed()
        self.place = store.place
        self.registry = Registry(LOOPBACK, self.access, lambda *_: self._cancel())
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
        self.control = self._make_control()
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
            late_sink=self._keep_late,
        )
        self.relocation.start_hosts()

    def _claimed(self) -> Store:
        """The store, owned by this driver; if it dies of that, by the next one."""
        while True:
            store = open_store(self.store)
            try:
                store.claim(self.now_ms)
                return store
            except InjectedFault:
                self.deaths["driver"] += 1

    def _make_control(self) -> ControlLoop | None:
        if self.elastic is None:
            return None
        driver = self.deaths["driver"]
        return ControlLoop(
            self.flow,
            self.sla,
            self.elastic,
            self.relocation,
            self.settings,
            lambda: self.now_ms,
            sink=lambda entry: self.journal.append((driver, entry)),
            record=self.record,
            keeper=self._keeper,
            bill=self.bill,
            warm_epochs=self.warm_epochs,
        )

    def _end_driver(self) -> None:
        self.jobs.close()
        self.runner.stop()
        self.fleet.stop()
        self.registry.shutdown()
        channels._endpoints.close(self.access)

    # Spark

    def _keep_late(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        self.late[epoch] = {where: table.to_pylist() for where, table in rows.items()}

    def _write(self, plan: EpochPlan, parts: Partitions) -> None:
        """What a sink does: run the job, and keep its output in place of an earlier one."""
        self._wake.set()
        self._wake = threading.Event()
        text = codec.text(self.helped(plan))
        rows: list[Row] = []
        for _ in range(self.reads):
            self._cancelled = threading.Event()
            tasks = [
                self._executor.submit(self._try, text, partition, part, self._cancelled)
                for partition, part in enumerate(parts)
            ]
            # A job that fails leaves its other tasks alone: they may go on for a while.
            wait(tasks, return_when=FIRST_EXCEPTION)
            if any(task.done() and task.exception() is not None for task in tasks):
                self._cancel()
            rows = [row for task in tasks if task.done() for row in task.result()]
        self.sink[plan.epoch] = rows

    def _cancel(self) -> None:
        """The job's tasks are not tried again."""
        self._cancelled.set()

    def _try(
        self, plan: str, partition: int, part: Sequence[Row], cancelled: threading.Event
    ) -> list[Row]:
        """One task, tried as often as Spark would."""
        last: BaseException | None = None
        for _ in range(ATTEMPTS):
            attempt = next(self._attempt)
            outcome: Future[list[Row]] = Future()
            self._tasks[attempt] = outcome
            thread = threading.Thread(
                target=self._run_attempt, args=(plan, Task(partition, attempt), part, outcome)
            )
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
            last = outcome.exception()
            self.attempts += 1
            if last is None:
                return outcome.result()
            if cancelled.is_set():
                break
        raise RuntimeError(f"task {partition} failed: {last!r}") from last

    def _run_attempt(
        self, text: str, task: Task, part: Sequence[Row], outcome: Future[list[Row]]
    ) -> None:
        courier = Courier(
            self.flow,
            lambda: (codec.decode(text, EpochPlan), task),
            self.access,
            self.settings.rpc_timeout_ms,
            self.settings.exchange_timeout_ms,
            keep_late=True,
            roads=burst_roads,
            faults=self.settings.faults,
            lost_ms=self.settings.host_lost_ms,
            check_end=lambda: self._check_end(task.attempt),
        )
        size = -(-len(part) // self.batches) or 1
        try:
            cuts = (part[begin : begin + size] for begin in range(0, len(part), size))
            batches = [arrow_batch(self.flow, rows) for rows in cuts]
            coming = takewhile(lambda _: task.attempt not in self._cut, batches)
            rows = [row for batch in courier(coming) for row in batch.to_pylist()]
            if task.attempt in self._cut:
                raise TaskLost("its input broke off")
        except BaseException as failed:
            with suppress(Exception):
                outcome.set_exception(failed)
        else:
            with suppress(Exception):
                outcome.set_result(rows)

    def _check_end(self, attempt: int) -> None:
        if self._cut.get(attempt):
            raise CutInputError("the input of this task broke off")


def _attempt(where: Mapping[str, object]) -> int:
    attempt = where["attempt"]
    assert isinstance(attempt, int)
    return attempt


def stored_entries(store: str, step: KeyedStep, version: int) -> dict[Any, Row]:
    """Every key of a step, with what a version in the store has of it."""
    table, found = step.operator().table, dict[Any, Row]()
    reader = StateReader(open_store(store), step.id, table.codec, table.schema, table.slots)
    reader.refresh(version)
    for slot in range(table.slots):
        after: int | None = None
        while True:
            piece, after = reader.scan(slot, after, 1000)
            keys = step.codec.as_tuples(step.codec.from_storage(piece.column(KEY)))
            for key, row in zip(keys, piece.to_pylist(), strict=True):
                one = key[0] if len(key) == 1 else key
                assert one not in found, "a key twice"
                found[one] = row
            if after is None:
                break
    return found


def lives(row: Row, now_ms: int) -> bool:
    """Whether an entry as stored holds more than values that have outlived their TTL."""
    values = [name.removesuffix(".__bits") for name in row if name.endswith(".__bits")]
    held = [name for name in values if row[f"{name}.__bits"]]
    timers = row.get("__timers")
    return (
        not values
        or bool(timers)
        or any(row.get(f"{name}.__expires_ms", NEVER) > now_ms for name in held)
    )


@contextmanager
def cluster(flow: FlowPlan, store: str, **kwargs: Any) -> Iterator[MiniCluster]:
    """A cluster that leaves nothing behind."""
    made = MiniCluster(flow, store, **kwargs)
    try:
        yield made
    finally:
        made.close()
