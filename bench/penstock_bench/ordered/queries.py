"""The five queries of TPCx-BB with their real operators, all steps on one host.

Epochs go through `host.chain.StepChain`, the part of a host that couriers talk to, without sockets.
The machine may have fewer cores than the host has workers, so every record also sleeps for a set time.
Without the sleep, the run measures real cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.host.chain import StepChain
from penstock.host.load import SpareCores
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.operators.operator import ROWS, Answer, EpochTime, Operator
from penstock.operators.places import Places
from penstock.plan.assignment import Assignment
from penstock.plan.steps import FlowPlan, KeyedStep, Step
from penstock.plan.watermarks import step_watermarks
from penstock.runtime.cores import WorkersByLoad
from penstock.settings import AUTO, Settings
from penstock.wire.messages import ChannelHeader
from penstock_bench.ordered.chains import Asleep
from penstock_bench.ordered.trials import line
from penstock_bench.report import Result, Show
from penstock_bench.workloads.tpcx_bb import catalog
from penstock_bench.workloads.tpcx_bb.clicks import clicks
from penstock_bench.workloads.tpcx_bb.config import EVENT_TIME, Stream, TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.store_sales import store_sales

QUERIES = tuple(catalog.TITLES)
SLOTS = 4
"""Slots of a keyed step with the default number of parts."""
MOST = 2
"""Most workers of a host that chooses their number by load."""
Workers = int | Literal["auto"]
DAYS = 8
"""Days of event time that a query's input covers, whatever its size."""


@dataclass(frozen=True)
class HostLoad:
    """Input of a query: its chunks, parts, and the added cost of a record."""

    chunks: int
    """Chunks in the measured epochs together. Warm-up epochs with a quarter as many come first."""
    chunk_rows: int
    parts: int | None
    """Parts of a keyed step, and slots: a processor is called for each slot separately. None: the default
    for the number of workers, and `SLOTS` slots."""
    pause_s: float = 0.0
    """Seconds between two epochs, which do not count."""
    epochs: int = 2
    """Number of measured epochs."""
    us: float = 0.0
    """Microseconds of sleep per record at each step but global ones; 0 leaves the operators' own cost."""


class Costly:
    """An operator that wraps another and adds a cost to each record."""

    def __init__(self, inner: Operator, cost: Asleep) -> None:
        self._inner, self._cost = inner, cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        self._cost.spend(sum(batch.num_rows for batch in batches), None)
        return self._inner.apply(kind, batches, places)


class QueryInProcess:
    """A query on one host with a number of workers, in this process."""

    def __init__(self, query: int, workers: Workers, schedule: Any, load: HostLoad) -> None:
        self._cost = Asleep(load.us) if load.us else None
        plan = catalog.plan(query)
        steps = tuple(self._changed(step, load.parts or SLOTS) for step in plan.steps)
        flow: FlowPlan = replace(plan, steps=steps, one_host=True)
        by_load = WorkersByLoad(MOST, SpareCores()) if workers == AUTO else None
        self._settings = Settings(
            host_cores=workers,
            host_parts=load.parts,
            chunk_rows=load.chunk_rows,
            schedule=schedule,
        )
        self._flow, self._steps = flow, flow.keyed
        self._watermarks: dict[str, int | None] = {step.id: None for step in self._steps}
        self._time = EVENT_TIME[catalog.find(query).stream]
        most = MOST if by_load is not None else self._settings.workers
        self._machines = [self._machine(step, most) for step in self._steps]
        self._chain = StepChain(flow, self._machines, self._settings, by_load=by_load)

    def run(self, epoch: int, rows: pa.Table) -> list[pa.RecordBatch]:
        """Run an epoch through all steps and seal it; advance the watermarks for the next epoch."""
        first, *others = (
            (step.id, EpochTime(epoch, epoch, self._watermarks[step.id])) for step in self._steps
        )
        header = ChannelHeader(*(epoch, 0, first[0], 0, epoch, 1, first[1]), chained=tuple(others))
        answer = self._chain.close_channel(header, ROWS, rows.to_batches())
        for machine in self._machines:
            machine.seal(epoch, 0, 1)
        newest_ms = pc.max(rows.column(self._time)).cast(pa.timestamp("ms")).value
        self._watermarks = step_watermarks(self._flow.graph, (newest_ms,), self._watermarks)
        return answer.batches

    def close(self) -> None:
        """End the workers."""
        self._chain.end()
        for machine in self._machines:
            machine.operator.shutdown()

    def _machine(self, step: KeyedStep, workers: int) -> HostMachine:
        def make() -> Operator:
            operator = step.operator(ordered=True)
            if self._cost is None or step.slots == 1:
                return operator
            return cast("Operator", Costly(operator, self._cost))

        parted = PartedOperator(
            make,
            self._settings.parts(step.slots, workers),
            workers=workers,
            chunk_rows=self._settings.chunk_rows,
        )
        machine = HostMachine(parted)
        machine.assign(Assignment(-1, tuple(range(step.slots))))
        return machine

    def _changed(self, step: Step, slots: int) -> Step:
        cost = self._cost
        if isinstance(step, KeyedStep):
            return replace(step, slots=min(slots, step.slots))
        if cost is None:
            return step
        function = step.function

        def slower(batch: pa.RecordBatch) -> Any:
            cost.spend(batch.num_rows, None)
            return function(batch)

        return replace(step, function=slower)


def epochs(stream: Stream, load: HostLoad) -> list[pa.Table]:
    """Warm-up epochs and those that are measured, in order of event time, over `DAYS` days together."""
    each = load.chunks * load.chunk_rows // load.epochs
    warm_up = [each] * (load.epochs // 4) or [each // 2]
    lengths = warm_up + [each] * load.epochs
    generate: Callable[[TpcxBbConfig, int, int], pa.Table] = (
        store_sales if stream == "store_sales" else clicks
    )
    # A ticket has several lines, a session several clicks: a sample shows how many of them are enough.
    sample = generate(TpcxBbConfig(tickets=1_000, sessions=1_000), 0, 1_000)
    many = int(1.2 * sum(lengths) * 1_000 / len(sample)) + 100
    daily = many // DAYS + 1
    config = TpcxBbConfig(
        tickets=many, sessions=many, tickets_per_day=daily, sessions_per_day=daily
    )
    whole = generate(config, 0, many).sort_by(EVENT_TIME[stream])
    begins = accumulate(lengths, initial=0)
    return [
        whole.slice(at, rows).combine_chunks() for at, rows in zip(begins, lengths, strict=False)
    ]


def run_one(
    query: int, workers: Workers, schedule: str, load: HostLoad, data: Sequence[pa.Table]
) -> float:
    """Rows per second of work. Warm-up epochs do not count: they compile kernels and learn costs."""
    host = QueryInProcess(query, workers, schedule, load)
    try:
        spent_s, warm_up = 0.0, len(data) - load.epochs
        for epoch, rows in enumerate(data):
            began = time.perf_counter()
            host.run(epoch, rows)
            if epoch >= warm_up:
                spent_s += time.perf_counter() - began
            if load.pause_s:
                time.sleep(load.pause_s)
        return sum(map(len, data[warm_up:])) / spent_s
    finally:
        host.close()


def measure(
    group: str,
    load: HostLoad,
    sides: Sequence[tuple[Workers, str]],
    rounds: int,
    show: Show,
) -> list[Result]:
    """Run every query with each (workers, schedule) of `sides`, in turn; every other round backwards."""
    results: list[Result] = []
    for query in QUERIES:
        data = epochs(catalog.find(query).stream, load)
        rates: dict[tuple[Workers, str], list[float]] = {side: [] for side in sides}
        for number in range(rounds):
            for workers, schedule in sides if number % 2 == 0 else reversed(sides):
                rate = run_one(query, workers, schedule, load, data)
                rates[workers, schedule].append(rate)
        for (workers, schedule), per_round in rates.items():
            facts = {"query": query, "workers": workers, "schedule": schedule}
            results.append({**facts, "records_per_s": per_round})
            show(line(group, results[-1]))
    return results
