"""The local cluster of `penstock.testing`, fed with dicts, with additions for trials: control over hosts,
burst workers, and access to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.control.elastic import Elastic
from penstock.control.events import Event
from penstock.control.journal.entry import Entry
from penstock.control.machine import WARM_EPOCHS
from penstock.control.money import HostPrice
from penstock.control.record import Opening
from penstock.courier.delivery import Task
from penstock.driver.bill import Bill
from penstock.driver.control_loop import ControlLoop
from penstock.faults import Fault
from penstock.model import SLA, HostId
from penstock.offload.keeper import WorkerKeeper
from penstock.operators.operator import CHANGE
from penstock.plan.epoch import EpochPlan
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.state.store.reader import StateReader
from penstock.state.table.table import KEY
from penstock.testing import Uncombined
from penstock.testing.local_cluster import LateTables, LocalCluster
from penstock.testing.thread_hosts import open_store
from penstock.testing.thread_tasks import Batches
from penstock.wire.access import Access
from tests.trials.plain_rows import Row, arrow_batch, net, plain

SETTINGS = Settings(
    rpc_timeout_ms=10_000,
    exchange_timeout_ms=10_000,
    host_start_ms=10_000,
    compact_epochs=3,
    keep_epochs=3,
)
PLAIN = replace(SETTINGS, faults=(Fault("courier.sender", Uncombined(), hits=()),))
"""Settings with which couriers send a record per row."""

SECOND = SLA(1000, 1000)
NEVER = 1 << 62

Partitions = Sequence[Sequence[Row]]


class MiniCluster(LocalCluster):
    """One flow with its driver, hosts, couriers and sink. `run` runs an epoch of rows by partition."""

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
        record: Callable[[Opening | Event], None] = lambda event: None,
        keeper: WorkerKeeper | None = None,
        access: Access | None = None,
        all_help: bool = False,
    ) -> None:
        """`record` gets all events of control. Control decides nothing in the first `warm_epochs` epochs.
        With `all_help`, the hosts of a step help each other in every epoch."""
        self._all_help = all_help
        self.warm_epochs, self.record, self._keeper = warm_epochs, record, keeper
        self.bill: Bill | None = None
        """The bill of a flow with functions; None without functions."""
        if keeper is not None:
            self.bill = Bill(HostPrice(), lambda: 2, lambda: keeper.used.money, lambda: self.now_ms)
        self.elastic, self.sla = elastic, sla
        self.helped = helped
        """Adds the offload to burst workers to the plan of a run."""
        self.journal: list[tuple[int, Entry]] = []
        """The entries of control's journal, each with its driver's number: the first is 0."""
        self.sink: dict[int, list[Row]] = {}
        """Epoch -> output rows."""
        self.late: dict[int, dict[tuple[str, int], list[Row]]] = {}
        """Epoch -> (step, input) -> late rows."""
        self.batches = 2
        """Batches per partition, as Spark would make them."""
        most = 1 if flow.one_host else hosts
        super().__init__(
            flow,
            store,
            {step.id: min(most, step.slots) for step in flow.keyed},
            settings,
            Migration.parse("pause" if flow.one_host else migration),
            memory_limit,
            access,
            now_ms=1_000,
        )

    def start_driver(self) -> None:
        super().start_driver()
        if self._all_help:
            self.relocation.helpers = self._everybody  # type: ignore[method-assign]

    def _everybody(self, epoch: int) -> dict[HostId, list[HostId]]:
        """Host -> all other hosts of its step that are up."""
        steps = (self.fleet.ready(self.relocation.hosts(step.id)) for step in self.flow.keyed)
        return {
            host: [other for other in hosts if other != host] for hosts in steps for host in hosts
        }

    def await_upkeep(self) -> None:
        """Wait for the compaction and the clean-up that are running, if any."""
        upkeep = self.runner.versions.upkeep
        for chore in (upkeep._compacting, upkeep._cleaning):
            chore.join()

    def output(self, epoch: int) -> list[tuple[Any, ...]]:
        """The rows of an epoch, in a fixed order; for changes, the net rows and their counts."""
        return (
            net(self.sink[epoch]) if CHANGE in self.flow.output.names else plain(self.sink[epoch])
        )

    def keys(self, step: str) -> set[Any]:
        """The keys of a step with live state in the store."""
        stored = stored_entries(self.store, self._step(step), self.epoch - 1)
        return {key for key, row in stored.items() if lives(row, self.time_ms)}

    def _step(self, step: str) -> KeyedStep:
        return next(one for one in self.flow.keyed if one.id == step)

    # The methods that a local cluster leaves open

    def read(self, part: Sequence[Row], task: Task) -> Iterator[pa.RecordBatch]:
        size = -(-len(part) // self.batches) or 1
        for begin in range(0, len(part), size):
            yield arrow_batch(self.flow, part[begin : begin + size])

    def keep_output(self, epoch: int, batches: Batches) -> None:
        self.sink[epoch] = [row for batch in batches for row in batch.to_pylist()]

    def keep_late(self, epoch: int, rows: LateTables) -> None:
        self.late[epoch] = {where: table.to_pylist() for where, table in rows.items()}

    def plan_of_run(self, plan: EpochPlan) -> EpochPlan:
        return self.helped(plan)

    def make_control(self) -> ControlLoop | None:
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


def stored_entries(store: str, step: KeyedStep, version: int) -> dict[Any, Row]:
    """Every key of a step in a version of the store, with its entry."""
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
                assert one not in found, "a key is stored twice"
                found[one] = row
            if after is None:
                break
    return found


def lives(row: Row, now_ms: int) -> bool:
    """Whether a stored entry holds more than values whose TTL has expired."""
    values = [name.removesuffix(".__bits") for name in row if name.endswith(".__bits")]
    held = [name for name in values if row[f"{name}.__bits"]]
    timers = row.get("__due_processing") or row.get("__due_event")
    return (
        not values
        or bool(timers)
        or any(row.get(f"{name}.__expires_ms", NEVER) > now_ms for name in held)
    )


@contextmanager
def cluster(flow: FlowPlan, store: str, **kwargs: Any) -> Iterator[MiniCluster]:
    """A cluster that is closed at the end of the block."""
    made = MiniCluster(flow, store, **kwargs)
    try:
        yield made
    finally:
        made.close()
