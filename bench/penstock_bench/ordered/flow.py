"""The overhead of `flow.ordered()` on one keyed step, with couriers and hosts in one process.

Rows go to two hosts behind their Flight servers and back, as in a Spark task, and every epoch is
sealed. Spark's source, sink and planning of epochs are left out. They cost both sides the same, so the
overhead of order is larger here than in a whole flow.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.courier.channels import endpoint
from penstock.courier.delivery import Delivery, Task
from penstock.courier.roads import HostRoad
from penstock.host.main import HostOrder, HostTask, TaskOrder
from penstock.model import HostId, StepId
from penstock.operators.aggregate.aggregates import AggregatePlan, sum
from penstock.operators.operator import EpochTime, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.assignment import Assignment
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.settings import Settings
from penstock.state.variables.handle import StateHandle, Timers
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock_bench.ordered.trials import line
from penstock_bench.report import Result, Show

KEYS, SLOTS, ROWS, BATCH = 100_000, 64, 200_000, 10_000
"""Keys, slots, rows per epoch, and rows per batch."""
_SETTINGS = Settings()
_NO_DRIVER = "grpc://127.0.0.1:1"
"""Address of the driver, which does not exist: hosts never call it here."""
_TIMEOUT_MS = 60_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Before(KeyedProcessor):
    """Returns every row with its key's previous value: as much output as input."""

    output_schema = "k long, v long, before long"

    def init(self, handle: StateHandle) -> None:
        self._last = handle.get_value_state("last", "v long")

    def handle_batch(self, batch: pa.RecordBatch, timers: Timers) -> pa.RecordBatch:
        before = pc.struct_field(self._last.get_many(batch), "v")
        self._last.update_many(batch, batch.select(["v"]))
        return batch.append_column("before", before)


class StepInProcess:
    """One keyed step on two hosts, with one source partition."""

    def __init__(self, plan: StepPlan, ordered: bool) -> None:
        self._step = KeyedStep("step", SLOTS, plan)
        self._access = Access(secrets.token_hex(8))
        hosts = [HostId("step/0"), HostId("step/1")]
        self._flow = FlowPlan((SourcePlan(SCHEMA),), (self._step,), ordered=ordered)
        orders = tuple(HostOrder(host, self._step) for host in hosts)
        store = f"memory://{secrets.token_hex(8)}"
        order = TaskOrder(orders, self._flow, store, _NO_DRIVER, self._access, True, _SETTINGS)
        self._task = HostTask(order, LOOPBACK, lambda: None, None)
        self._routes = RouteTable.even(hosts, SLOTS)
        for host, server in enumerate(self._task.servers):
            server.machine.assign(Assignment(-1, tuple(self._routes.slots_of(host).tolist())))

    def run(self, epoch: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Run an epoch's rows through the step and seal it."""
        servers = tuple(server.location for server in self._task.servers)
        time = EpochTime(epoch, 0)
        routes = StepRoutes(StepId(self._step.id), self._routes, servers, time)
        plan = EpochPlan(epoch, 0, 1, (routes,), "")
        delivery = Delivery(
            self._flow, plan, Task(0, epoch), self._access, _TIMEOUT_MS, _TIMEOUT_MS
        )
        with HostRoad(delivery, 0, self._step) as road:
            road.send([batches])
            answer = list(road.answer())
        for server in servers:
            host = endpoint(server, self._access)
            host.call("seal", _TIMEOUT_MS, epoch=epoch, run=0, partitions=1)
        return answer

    def close(self) -> None:
        """Stop the hosts."""
        self._task.end()
        self._task.shutdown()


def epochs(rows: int, seed: int = 3) -> Iterator[list[pa.RecordBatch]]:
    """Endless epochs of rows (k, v)."""
    chance = np.random.default_rng(seed)
    while True:
        columns = [chance.integers(0, KEYS, rows), np.arange(rows)]
        whole = pa.record_batch(columns, schema=SCHEMA)
        yield [whole.slice(begin, BATCH) for begin in range(0, rows, BATCH)]


def measure(rounds: int, repeats: int, show: Show, rows: int = ROWS) -> list[Result]:
    """Rows per second by step, with and without order; the sides take turns, epoch by epoch."""
    plans: dict[str, StepPlan] = {
        "sum": AggregatePlan(SCHEMA, ["k"], {"s": sum("v")}),
        "process": ProcessPlan(SCHEMA, ["k"], Before()),
    }
    results: list[Result] = []
    for name, plan in plans.items():
        with (
            closing(StepInProcess(plan, True)) as in_order,
            closing(StepInProcess(plan, False)) as unordered,
        ):
            rates = _rates({True: in_order, False: unordered}, rounds, repeats, rows)
        for ordered, per_round in rates.items():
            results.append({"step": name, "ordered": ordered, "records_per_s": per_round})
            show(line("flow", results[-1]))
    return results


def _rates(
    sides: dict[bool, StepInProcess], rounds: int, repeats: int, rows: int
) -> dict[bool, list[float]]:
    """Rows per second of each side, by round."""
    input, epoch = epochs(rows), 0
    rates: dict[bool, list[float]] = {side: [] for side in sides}
    # The first round compiles kernels and sees most keys for the first time: it does not count.
    for _ in range(rounds + 1):
        took = dict.fromkeys(sides, 0.0)
        for _ in range(repeats):
            batches = next(input)
            for side in sides if epoch % 2 else reversed(sides):
                began = time.perf_counter()
                sides[side].run(epoch, batches)
                took[side] += time.perf_counter() - began
            epoch += 1
        for side, seconds in took.items():
            rates[side].append(repeats * rows / seconds)
    return {side: per_round[1:] for side, per_round in rates.items()}
