"""Tester for flows: runs a whole flow over batches of rows, without Spark, in milliseconds.

>>> import penstock as ps
>>> from penstock.testing import FlowTester, source
>>> flow = ps.flow(source("user string, page string")).key_by("user").aggregate(clicks=ps.count())
>>> with FlowTester(flow) as tester:
...     first = tester.run([{"user": "ann", "page": "/"}, {"user": "ann", "page": "/buy"}])
...     tester.kill(tester.hosts["aggregate-1"][0])  # its slots go to the other host, with their state
...     second = tester.run([{"user": "ann", "page": "/"}])
>>> first.to_pylist(), second.to_pylist()
([{'user': 'ann', 'clicks': 2}], [{'user': 'ann', 'clicks': 3}])
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

import pyarrow as pa

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.driver.progress import EpochProgress
from penstock.errors import CheckpointError, FlowError, SettingError
from penstock.faults import Armed, Fault, armed
from penstock.flows.claim import claim
from penstock.flows.flow import Flow
from penstock.flows.keyed_flow import must_be
from penstock.flows.start import for_one_host, host_counts, with_errors
from penstock.model import milliseconds
from penstock.operators.operator import OnError
from penstock.plan.epoch import EpochPlan
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.spark.sinks import late_inputs
from penstock.testing.input_rows import Input, input_batch, partitioned
from penstock.testing.local_cluster import LateTables, LocalCluster
from penstock.testing.rows_source import RowsSource
from penstock.testing.thread_functions import thread_functions
from penstock.testing.thread_hosts import open_store
from penstock.testing.thread_tasks import Batches

SETTINGS = Settings(rpc_timeout_ms=30_000, exchange_timeout_ms=60_000, host_start_ms=30_000)
"""Default settings of a tester."""


class FlowTester:
    """Runs a flow over batches of rows, with the real driver, hosts and couriers, on threads.

    Use it as a context manager, or call `close`. Each `run` is one epoch. Event time follows the rows, as in
    a query. Processing time only changes when it is advanced. A test can scale and kill hosts, move slots and
    inject faults; the output must stay the same. `elastic` and the sink of a flow are ignored.

    Any flow can be tested, whatever its sources, since nothing is read from them. To do without Spark
    entirely, build the flow on `penstock.testing.source`.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        hosts: int | dict[str, int] = 2,
        checkpoint: str | Path | None = None,
        partitions: int = 1,
        migration: str | Migration = "lazy",
        on_error: OnError = "fail",
        functions: float | None = None,
        now_ms: int = 0,
        settings: Settings = SETTINGS,
    ) -> None:
        """Create a tester for a flow.

        `hosts`, `migration`, `on_error` and `settings` are those of `Flow.start`. Faults in `settings` are
        injected as if by `faults`. `checkpoint` is a folder to continue from; without one, the tester
        creates its own and removes it. `partitions` is the number of tasks that read the rows. With more than
        one, rows of different tasks reach a key in any order. `functions` is the share of rows, up to 1, that
        goes to burst functions in this process, for steps that can run in them. `now_ms` is the first
        processing time, in milliseconds since 1970.
        """
        must_be(flow, Flow, "FlowTester", "a flow", 'ps.flow(source).key_by("user").aggregate(...)')
        if partitions < 1:
            raise SettingError(f"partitions is {partitions}", hint="use 1 or more")
        self._plan, self._names = _without_decoders(with_errors(flow.plan, on_error)), _names(flow)
        counts, chosen = host_counts(self._plan, hosts), Migration.parse(migration)
        if self._plan.one_host:
            chosen = for_one_host(replace(flow, elasticity=None), self._plan, counts)
        self._partitions = partitions
        self._armed: list[Armed] = []
        self._over = ""
        """Reason why no more epochs can run; empty if they can."""
        self.progress: list[EpochProgress] = []
        """Progress of each epoch, oldest first: runs, rows, moved slots, and so on."""
        with ExitStack() as stack:
            if checkpoint is None:
                own = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
                checkpoint = stack.enter_context(own)
            self._checkpoint = str(checkpoint)
            folder = f"{self._checkpoint}/penstock"
            claim(open_store(folder), self._plan, "micro_batch", _refuse_live)
            # Couriers would arm the faults of settings, and kill this process.
            shipped, settings = settings.faults, replace(settings, faults=())
            self._cluster = _Cluster(self._plan, folder, counts, settings, chosen, now_ms=now_ms)
            stack.callback(pa.set_cpu_count, pa.cpu_count())  # couriers set it to 1
            stack.callback(self._cluster.close)
            if functions is not None:
                workers = stack.enter_context(thread_functions(self._plan, functions))
                self._cluster.helped = workers.plan_of_run
            self._cluster.epoch = self._cluster.runner.next_epoch()
            if shipped:
                stack.enter_context(self.faults(*shipped))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads, and remove the checkpoint if it is the tester's own."""
        self._over = self._over or "this FlowTester is closed"
        self._stack.close()

    # Epochs

    def run(self, *inputs: Input, **named: Input) -> pa.Table:
        """Run an epoch with these rows and return its output.

        Rows are dicts, tuples in the order of the columns, or an Arrow table or batch. Times are
        datetimes or ISO text; without a zone they are UTC. For a flow with several sources, pass the rows of
        each one in the order in which the flow names them, or by name. The name is that of `testing.source`,
        or `left` and `right` if there are two sources. Sources that are left out have no rows.

        If a fault ends the driver, it restarts and replays the epoch, as with Spark. If the epoch fails for
        another reason, no state has changed.
        """
        if self._over:
            raise FlowError(self._over, hint="create a new FlowTester")
        schemas = [source.schema for source in self._plan.sources]
        rows = self._by_source(inputs, named)
        batches = [
            input_batch(rows.get(number, ()), schema, self._name(number))
            for number, schema in enumerate(schemas)
        ]
        return self._run(partitioned(self._plan, batches, self._partitions))

    def advance(self, duration: str | float) -> pa.Table:
        """Advance processing time and run an epoch without rows, so that timers, TTLs and windows are due."""
        self._cluster.now_ms += milliseconds(duration)
        return self.run()

    def finish(self) -> pa.Table:
        """End the input: all windows close and all event-time timers fire. Return their output.

        The checkpoint cannot be continued, as after `Flow.start(close=True)`.
        """
        if self._over:
            return self._plan.output.empty_table()
        tables = [self._plan.output.empty_table()]
        depths = self._plan.depths
        if any(step.has_timers for step in self._plan.keyed):
            open_store(self._cluster.place).begin_closing(self._cluster.epoch)
            nothing: list[list[pa.RecordBatch]] = [[]] * self._partitions
            tables += [self._run(nothing, depth + 1) for depth in range(max(depths.values()))]
        open_store(self._cluster.place).close_flow()
        self._over = "the input of this flow has ended"
        return pa.concat_tables(tables)

    def _run(self, parts: list[list[pa.RecordBatch]], closing: int = 0) -> pa.Table:
        cluster, epoch = self._cluster, self._cluster.epoch
        try:
            progress = cluster.run_through(parts, self._fired, closing=closing)
        except BaseException:
            cluster.restart()  # hosts may hold a part of the failed epoch
            raise
        self.progress.append(progress)
        return pa.Table.from_batches(cluster.output.pop(epoch), self._plan.output)

    # Changes and faults

    def scale(self, step: str, hosts: int) -> None:
        """Scale a step to this number of hosts from the next epoch on. See `FlowQuery.scale`.

        A query goes on while new hosts come up. The tester waits for them, so that tests know which host owns
        a slot.
        """
        self._begin()
        self._cluster.relocation.scale(step, hosts)
        self._await_hosts(step)

    def move(
        self,
        step: str,
        slots: int | Iterable[int] = (),
        to: str = "",
        *,
        keys: Iterable[Any] = (),
    ) -> None:
        """Move slots or keys of a step to the host `to` from the next epoch on. See `FlowQuery.move`."""
        self._begin()
        self._cluster.relocation.move(step, [slots] if isinstance(slots, int) else slots, to, keys)

    def kill(self, host: str) -> None:
        """Kill a host, like `kill -9`. The next epoch gives its slots to other hosts."""
        step, jobs = host.rsplit("/", 1)[0], self._cluster.jobs
        if step in self.hosts:
            self._await_hosts(step)
        if host not in jobs.live:
            raise SettingError(
                f"unknown host {host!r}", hint=f"the hosts are {', '.join(jobs.live)}"
            )
        jobs.kill(host)

    def restart(self) -> None:
        """Kill the driver and all hosts, and continue from the checkpoint."""
        self._cluster.restart()

    @contextmanager
    def faults(self, *faults: Fault) -> Iterator[Armed]:
        """Inject these faults within the context. `fired` of its value lists those that have happened.

        Points are those of `FAULT_POINTS`. "kill" and "stop" apply to the thread that stands for the process:
        the host, the courier's task or the driver.
        """
        with armed(*(self._cluster.in_process(fault) for fault in faults)) as arming:
            self._armed.append(arming)
            try:
                yield arming
            finally:
                self._armed.remove(arming)

    def _fired(self) -> int:
        return sum(len(arming.fired) for arming in self._armed)

    # Inspection

    @property
    def now_ms(self) -> int:
        """Present processing time, in milliseconds since 1970."""
        return self._cluster.now_ms

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return self._cluster.epoch

    @property
    def watermarks(self) -> dict[str, int | None]:
        """Watermark of each step in the next epoch, in milliseconds since 1970; None if there is none yet."""
        self._begin()
        return dict(self._cluster.runner.versions.watermarks)

    @property
    def hosts(self) -> dict[str, list[str]]:
        """Names of each step's hosts, including those that are not up yet."""
        self._begin()
        return {step.id: [*self._cluster.relocation.hosts(step.id)] for step in self._plan.keyed}

    @property
    def slots(self) -> dict[str, list[int]]:
        """Slots of each host, as of the last epoch."""
        relocation = self._cluster.relocation
        tables = [relocation.routes(step.id) for step in self._plan.keyed if relocation.begun]
        return {host: t.slots_of(n).tolist() for t in tables for n, host in enumerate(t.hosts)}

    @property
    def late(self) -> dict[str, pa.Table]:
        """Late rows of all epochs by step; for a join, by names such as "join-1.left" and "join-1.right"."""
        names = {where: name for name, where in late_inputs(self._plan).items()}
        tables: dict[str, list[pa.Table]] = {}
        for epoch in sorted(self._cluster.late):
            for where, table in self._cluster.late[epoch].items():
                tables.setdefault(names[where], []).append(table)
        return {name: pa.concat_tables(parts) for name, parts in tables.items()}

    @property
    def dead_letters(self) -> list[dict[str, Any]]:
        """Rows that were set aside with `on_error="dead_letter"`: the step, key, row and error of each."""
        return [json.loads(line) for line in Checkpoint(self._checkpoint).letters()]

    def state(self, step: str) -> dict[Any, dict[str, Any]]:
        """State of each key in the checkpoint, in the form of `penstock state show`.

        A key of several columns is a tuple.
        """
        if not self._cluster.epoch:
            return {}
        try:
            entries = Checkpoint(self._checkpoint).entries(step, limit=sys.maxsize).entries
        except CheckpointError as refused:
            self._must_know(step)
            raise refused
        keys = [tuple(entry.key.values()) for entry in entries]
        return {
            key[0] if len(key) == 1 else key: entry.state
            for key, entry in zip(keys, entries, strict=True)
        }

    # Sources and steps

    def _by_source(self, inputs: tuple[Input, ...], named: Mapping[str, Input]) -> dict[int, Input]:
        """Rows of each source, by its number."""
        if len(inputs) > len(self._names):
            raise FlowError(
                f"run got rows for {len(inputs)} sources, but the flow has {len(self._names)}",
                hint="pass the rows of a source as one list: run([row, row])",
            )
        rows = dict(enumerate(inputs))
        for name, input in named.items():
            if name not in self._names:
                known = ", ".join(filter(None, self._names)) or "none: pass the rows without a name"
                raise FlowError(f"there is no source {name!r}", hint=f"the names are {known}")
            number = self._names.index(name)
            if number in rows:
                raise FlowError(
                    f"source {name!r} got rows by place and by name", hint="pass them once"
                )
            rows[number] = input
        return rows

    def _name(self, number: int) -> str:
        if len(self._names) == 1:
            return "the source"
        return f"source {self._names[number] or number}"

    def _must_know(self, step: str) -> None:
        known = [keyed.id for keyed in self._plan.keyed]
        if step not in known:
            raise SettingError(
                f"there is no step {step!r}", hint=f"the keyed steps are {', '.join(known)}"
            )

    def _await_hosts(self, step: str) -> None:
        """Wait until the hosts of a step are up."""
        self._cluster.relocation.wait_for_new(step, self._cluster.settings.host_start_ms)

    def _begin(self) -> None:
        """Let the driver load its checkpoint now, rather than in its first epoch."""
        self._cluster.runner.begin(self._cluster.epoch)


class _Cluster(LocalCluster):
    """A local cluster that keeps the output of its last epoch, and all late rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.output: dict[int, Batches] = {}
        self.late: dict[int, LateTables] = {}
        self.helped: Callable[[EpochPlan], EpochPlan] = lambda plan: plan
        super().__init__(*args, **kwargs)

    def keep_output(self, epoch: int, batches: Batches) -> None:
        self.output[epoch] = batches

    def keep_late(self, epoch: int, rows: LateTables) -> None:
        self.late[epoch] = rows

    def plan_of_run(self, plan: EpochPlan) -> EpochPlan:
        return self.helped(plan)


def _without_decoders(plan: FlowPlan) -> FlowPlan:
    """The plan without decoders of its sources, since tests pass decoded rows."""
    return replace(plan, sources=tuple(replace(source, decoder=None) for source in plan.sources))


def _names(flow: Flow) -> list[str | None]:
    """Names of a flow's sources; None for a source without a name."""
    origins = [source.origin for source in flow.graph.sources]
    names = [origin.name if isinstance(origin, RowsSource) else None for origin in origins]
    if len(names) == 2:
        names = [name or side for name, side in zip(names, ("left", "right"), strict=True)]
    twice = {name for name in names if name is not None and names.count(name) > 1}
    if twice:
        raise FlowError(
            f"two sources of the flow are named {', '.join(twice)}",
            hint="give each its own name: source(columns, name=...)",
        )
    return names


def _refuse_live(facts: dict[str, Any]) -> NoReturn:
    raise CheckpointError(
        "the checkpoint is that of a live flow, and a FlowTester runs micro-batches",
        hint="use another checkpoint",
    )
