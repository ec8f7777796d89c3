"""The queries in live mode, with couriers and hosts in threads: their results agree with the oracle.

Spark only generates the input rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.plan.steps import FlowPlan
from penstock_bench.workloads.nexmark.catalog import TITLES
from penstock_bench.workloads.nexmark.output import final_rows, final_schema
from penstock_bench.workloads.nexmark.query import NexmarkQuery
from penstock_bench.workloads.nexmark.run import prepare
from tests.bench.workloads.test_nexmark_queries import STATELESS, check
from tests.live.pretence import Tap, TapSource, taps
from tests.trials.live_cluster import KeptRows, LiveCluster, live_cluster

CHUNK_ROWS = 250
STATEFUL = [name for name in TITLES if name not in STATELESS]


class LiveQuery:
    """A query of the catalog, and its events as Arrow."""

    def __init__(self, session: SparkSession, name: str, events: Path, work: Path) -> None:
        replay = prepare(name, events, work / "events", 100_000)
        read = {
            stream: session.read.parquet(str(replay.folder / stream))
            for stream in replay.query.needs
        }
        streams = replay.streams(session)
        flow = replay.query.on(type(streams)(session, read, streams.delay))
        self.query: NexmarkQuery = replay.query
        self.flow: FlowPlan = flow.plan
        self.rows = [
            source.frame(source.spark)
            .toArrow()
            .select(source.plan.schema.names)
            .cast(source.plan.schema)
            for source in flow.graph.sources
        ]

    def sources(self, partitions: int) -> list[tuple[dict[str, Tap], TapSource]]:
        made = []
        for number, plan in enumerate(self.flow.sources):
            by_name = taps(*(f"s{number}p{n}" for n in range(partitions)))
            made.append((by_name, TapSource(by_name, plan.schema)))
        return made

    def chunks(self, partitions: int) -> list[list[tuple[int, int, pa.RecordBatch]]]:
        """(source, partition, rows) in waves, each with a share of every source."""
        longest = max(len(rows) for rows in self.rows)
        waves = max(1, -(-longest // CHUNK_ROWS))
        all_waves = []
        for wave in range(waves):
            some = []
            for number, rows in enumerate(self.rows):
                low, high = (len(rows) * at // waves for at in (wave, wave + 1))
                for part in range(partitions):
                    at = np.arange(low + part, high, partitions)
                    if len(at):
                        (batch,) = rows.take(pa.array(at)).combine_chunks().to_batches()
                        some.append((number, part, batch))
            all_waves.append(some)
        return all_waves

    def answer(self, sink: KeptRows) -> pa.Table:
        schema = self.flow.output
        epochs = [
            pa.Table.from_pylist(rows, schema).to_batches() for _, rows in sorted(sink.rows.items())
        ]
        rows = final_rows(epochs, schema, self.query.latest)
        cast = [batch.cast(final_schema(schema)) for batch in rows]
        return pa.Table.from_batches(cast, final_schema(schema))


def answered(live: LiveQuery, store: Path, couriers: int, upheaval: bool = False) -> pa.Table:
    """Run a query to its end; with an upheaval slots move, steps scale, and a host and a courier are
    killed."""
    partitions = 2
    made = live.sources(partitions)
    with live_cluster(
        live.flow, [source for _, source in made], str(store), couriers=couriers, close=True
    ) as on:
        for number, wave in enumerate(live.chunks(partitions)):
            for source, part, batch in wave:
                made[source][0][f"s{source}p{part}"].give(batch)
            if upheaval and number % 4 == 3:
                on.pass_epochs(1)
                stir(on, number // 4)
        for by_name, _ in made:
            for tap in by_name.values():
                tap.give(end=True)
        on.until(lambda: on.outcome is not None, "finished")
        assert on.outcome == "finished"
        assert not any(p.late_rows for p in on.progress)
        assert not upheaval or on.deaths
        return live.answer(on.sink)


def stir(on: LiveCluster, turn: int) -> None:
    for step in on.flow.keyed:
        hosts = on.relocation.hosts(step.id)
        if turn % 3 == 2:
            on.relocation.scale(step.id, 1 + turn % 4)
        else:
            slots = range(turn % 2, step.slots, 2)
            on.relocation.move(step.id, slots, hosts[turn % len(hosts)])
    if turn == 1:
        on.jobs.kill(on.jobs.live[0])
    if turn == 3:
        on.courier_jobs.kill("courier/0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(q, marks=[pytest.mark.slow] if q in STATELESS[1:] else []) for q in TITLES],
)
def test_answers(session: SparkSession, name: str, events: Path, tmp_path: Path) -> None:
    live = LiveQuery(session, name, events, tmp_path)
    check(name, answered(live, tmp_path / "store", couriers=2), events)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATEFUL)
def test_one_courier(session: SparkSession, name: str, events: Path, tmp_path: Path) -> None:
    live = LiveQuery(session, name, events, tmp_path)
    check(name, answered(live, tmp_path / "store", couriers=1), events)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATEFUL)
def test_moves_and_deaths(session: SparkSession, name: str, events: Path, tmp_path: Path) -> None:
    live = LiveQuery(session, name, events, tmp_path)
    check(name, answered(live, tmp_path / "store", couriers=2, upheaval=True), events)
