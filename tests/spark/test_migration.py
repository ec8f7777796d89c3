"""Slots that change hands while a query runs on Spark: nothing is lost, nothing counts twice."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock.console.running.query import RunningQuery
from penstock.settings import Settings
from penstock.testing import Fault
from tests.spark.sources import numbers, stream, write_files
from tests.spark.test_faults import await_condition
from tests.spark.test_flow import sums

STEP = "aggregate-1"
Hook = Callable[[ps.FlowQuery, int], None]


class Watched:
    """Collects what a query gives, and lets a test act after each epoch's output is written."""

    def __init__(self, hook: Hook) -> None:
        self.kept, self._hook = ps.collect(), hook
        self.query: ps.FlowQuery | None = None

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        self.kept.write(df, epoch, flow_id)
        if self.query is not None:
            self._hook(self.query, epoch)

    def run(self, flow: ps.Flow, checkpoint: str, **options: Any) -> ps.FlowQuery:
        query = flow.start(self, checkpoint=checkpoint, trigger="available_now", **options)
        self.query = query
        query.await_termination(180)
        return query

    def sums(self) -> dict[int, tuple[int | None, int]]:
        return {k: (r["total"], r["n"]) for k, r in self.kept.latest("k").items()}


def totals(source: DataFrame) -> ps.Flow:
    return ps.flow(source).key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())


def test_every_migration_in_one_running_query(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    tables = numbers(files=16, rows=400, keys=300)
    write_files(tmp_path / "in", tables)
    plan = {1: "lazy(0)", 3: "all_at_once", 5: "batched(3)", 9: "fluid", 12: "pause"}

    def hook(query: ps.FlowQuery, epoch: int) -> None:
        if epoch in plan:
            query.migration = plan[epoch]
            there = list(plan).index(epoch) % 2 == 0
            query.move(STEP, range(0, 5), to=f"{STEP}/{1 if there else 0}")
            query.move(STEP, [9, 12, 15], to=f"{STEP}/{0 if there else 1}")
        if epoch == 14:
            told.append(RunningQuery(checkpoint).status())

    told: list[dict[str, Any]] = []
    watched = Watched(hook)
    query = watched.run(totals(stream(spark, tmp_path / "in")), checkpoint, hosts=2)
    assert watched.sums() == sums(tables)
    moves = {p.epoch: sum(len(h.slots) for h in p.migration.handovers) for p in query.progress}
    assert moves[2] == 8
    assert [moves[e] for e in (6, 7, 8)] == [3, 3, 2]
    assert moves[10] == moves[11] == moves[12] == 1
    lazy = next(p.migration for p in query.progress if p.epoch == 2)
    assert lazy.fetched_keys > 0
    assert lazy.fetches > 0
    assert lazy.partial_slots == 8
    whole = next(p.migration for p in query.progress if p.epoch == 4)
    assert whole.partial_slots == 0
    assert told[0]["status"]["migration"] == "pause"
    with pytest.raises(ps.SettingError, match="no query"):
        RunningQuery(checkpoint).status()


def test_a_step_scales_out_and_in(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    tables = numbers(files=9, rows=400, keys=300)
    write_files(tmp_path / "in", tables)

    def hook(query: ps.FlowQuery, epoch: int) -> None:
        if epoch == 1:
            query.scale(STEP, 3)
            with pytest.raises(ps.SettingError, match="cannot have 0 hosts"):
                query.scale(STEP, 0)
            await_condition(lambda: query._parts.registry.host(f"{STEP}/2") is not None)
        if epoch == 4:
            query.scale(STEP, 1)

    watched = Watched(hook)
    query = watched.run(totals(stream(spark, tmp_path / "in")), checkpoint, hosts=2)
    assert watched.sums() == sums(tables)
    hosts = {p.epoch: len(p.hosts) for p in query.progress}
    assert (hosts[1], hosts[3], hosts[5], hosts[8]) == (2, 3, 1, 1)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("host.fetch", "kill", where={"host": f"{STEP}/1"}),
        Fault("host.serve", "kill", where={"host": f"{STEP}/0"}),
        Fault("host.seal", "kill", where={"host": f"{STEP}/1", "epoch": 3, "run": 0}),
    ],
    ids=lambda fault: fault.point,
)
def test_a_host_that_dies_in_the_middle_of_a_migration(
    spark: SparkSession, tmp_path: Path, checkpoint: str, fault: Fault
) -> None:
    """The epoch is run again inside the callback, and the dead host's slots have owners at once."""
    tables = numbers(files=6, rows=400, keys=300)
    write_files(tmp_path / "in", tables)

    def hook(query: ps.FlowQuery, epoch: int) -> None:
        if epoch == 2:
            query.move(STEP, range(0, 4), to=f"{STEP}/1")

    watched = Watched(hook)
    query = watched.run(
        totals(stream(spark, tmp_path / "in")),
        checkpoint,
        hosts=3,
        migration="lazy(0)",
        settings=Settings(faults=(fault,)),
    )
    assert watched.sums() == sums(tables)
    if fault.point != "host.serve":  # else it may have sealed the epoch before it died
        assert {p.epoch: p.runs for p in query.progress}[3] > 1
    again = [h for p in query.progress for h in p.migration.handovers if h.why == "host lost"]
    assert again
    assert all(handover.source is None for handover in again)


@pytest.mark.slow
def test_state_larger_than_memory(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    keys, payload = 6000, 3000
    source = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=2000, numPartitions=2, startTimestamp=0)
        .load()
        .select((F.col("value") % keys).alias("k"), F.col("value").alias("v"))
    )
    flow = ps.flow(source).key_by("k", slots=16).process(Hoard(payload))
    watched = Watched(lambda query, epoch: None)
    query = flow.start(
        watched,
        checkpoint=checkpoint,
        hosts=2,
        settings=Settings(host_memory_mb=2, compact_epochs=4),
    )
    await_condition(lambda: not query.is_active or len(query.progress) >= 12)
    query.stop()
    assert query.exception() is None
    done = query.progress[-1].epoch + 1
    assert keys * payload > 4 * 2 * (2 << 20)
    held = {k: r["n"] for k, r in watched.kept.latest("k").items()}
    assert held == {k: len(range(k, done * 2000, keys)) for k in range(keys)}
    assert sum(p.migration.evicted for p in query.progress) > keys
    newest = query.progress[-1]
    assert all(host.state_bytes < 12 << 20 for host in newest.hosts), "one epoch's keys and slack"


class Hoard(ps.KeyedProcessor):
    """Counts, and holds a big payload that must stay as it was."""

    output_schema = "k long, n long"

    def __init__(self, payload: int) -> None:
        self._size = payload

    def init(self, handle: Any) -> None:
        self._state = handle.get_value_state("state", "n long, payload binary")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[tuple[int, int]]:
        payload = str(key[0]).encode() * (self._size // len(str(key[0])))
        n, held = self._state.get() or (0, payload)
        assert held == payload
        n += len(list(rows))
        self._state.update((n, payload))
        yield key[0], n


class Cart(ps.KeyedProcessor):
    """The processor that wrote `checkpoint-format-1.tar.gz`."""

    output_schema = "k long, n long, items long, last long"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")
        self.items = handle.get_map_state("items", "item long", "count long")
        self.last = handle.get_list_state("last", "v long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[tuple[int, ...]]:
        (n,) = self.n.get() or (0,)
        for row in rows:
            n += 1
            item = (row.v % 5,)
            (count,) = self.items.get_value(item) or (0,)
            self.items.update_value(item, (count + 1,))
            self.last.append_value((row.v,))
        self.n.update((n,))
        yield (
            key[0],
            n,
            sum(value.count for value in self.items.values()),
            len(list(self.last.get())),
        )


def test_a_checkpoint_of_format_1_goes_on(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Written by an earlier commit, with value, map and list state, four epochs of 200 rows."""
    packed = Path(__file__).parent.parent / "data" / "checkpoint-format-1.tar.gz"
    with tarfile.open(packed) as archive:
        archive.extractall(checkpoint, filter="data")
    source = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=200, numPartitions=2, startTimestamp=0)
        .load()
        .select((F.col("value") % 17).alias("k"), F.col("value").alias("v"))
    )
    watched = Watched(lambda query, epoch: None)
    flow = ps.flow(source).key_by("k", slots=8).process(Cart())
    query = flow.start(watched, checkpoint=checkpoint, hosts=3)
    await_condition(lambda: not query.is_active or len(query.progress) >= 6)
    query.stop()
    assert query.exception() is None
    assert query.progress[0].epoch == 4
    done = query.progress[-1].epoch + 1
    for k in range(17):
        # a key of two partitions has two rows in an epoch: the greater one is the later one
        newest = max((r for r in watched.kept.rows() if r["k"] == k), key=lambda r: r["n"])
        count = len(range(k, done * 200, 17))
        assert (newest["n"], newest["items"], newest["last"]) == (count, count, count)
