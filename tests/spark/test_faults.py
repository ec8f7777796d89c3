"""Exactly once through failing tasks, dead hosts and a dead driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.state.store.store import Store
from penstock.testing import Fault
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_flow import sums


def failing_once(
    marker: Path, when: Callable[[pa.RecordBatch], bool]
) -> Callable[..., pa.RecordBatch]:
    """A function for map_batches that raises once, in whichever process comes first."""

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and when(batch):
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return batch
            # Not an Exception: user code that fails is looked into row by row, a dying task is not.
            raise SystemExit("the task dies here")
        return batch

    return function


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_courier_that_dies_changes_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, place: str
) -> None:
    """In the middle of a batch, and after its channel has closed."""
    tables = numbers(files=4, rows=1000, keys=100)
    write_files(tmp_path / "in", tables)
    marker = tmp_path / "failed"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        source = stream(spark, tmp_path / "in", files_per_epoch=2)
        seen = {"batches": 0}

        def midway(batch: pa.RecordBatch) -> bool:
            seen["batches"] += 1
            return place == "after" or seen["batches"] > 3

        dying = failing_once(marker, midway)
        flow = ps.flow(source)
        if place == "before":
            flow = flow.map_batches(dying)
        flow = flow.key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())
        if place == "after":
            flow = flow.map_batches(dying)
        _, sink = run(flow, checkpoint)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists()
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)


def test_a_killed_host_is_replaced_inside_the_epoch(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    tables = numbers(files=6, rows=1000, keys=100)
    write_files(tmp_path / "in", tables)
    kept = ps.collect()
    where = {"host": "aggregate-1/0", "epoch": 2, "run": 0}
    settings = ps.Settings(faults=(Fault("host.applied", do="kill", where=where),))
    query = _sums(spark, tmp_path).start(
        kept, checkpoint=checkpoint, trigger="available_now", hosts=2, settings=settings
    )
    query.await_termination(120)
    assert [p.runs for p in query.progress] == [1, 1, 2, 1, 1, 1]
    assert {k: (r["total"], r["n"]) for k, r in kept.latest("k").items()} == sums(tables)


def test_a_host_that_dies_while_the_sink_works_loses_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """It may have sealed the epoch before. Then the epoch is not run again."""
    tables = numbers(files=6, rows=1000, keys=100)
    write_files(tmp_path / "in", tables)
    killed: list[int] = []
    holder: list[ps.FlowQuery] = []
    kept = ps.collect()

    class KillingSink:
        """Kills a host after the couriers of epoch 2 are done."""

        def write(self, df: object, epoch: int, flow_id: str) -> None:
            kept.write(df, epoch, flow_id)  # type: ignore[arg-type]
            if epoch == 2 and not killed:
                pid = next(iter(holder[0].status.hosts.values()))
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    query = _sums(spark, tmp_path).start(
        KillingSink(), checkpoint=checkpoint, trigger="available_now", hosts=2
    )
    holder.append(query)
    query.await_termination(120)
    assert killed
    assert len(query.progress) == 6
    assert {k: (r["total"], r["n"]) for k, r in kept.latest("k").items()} == sums(tables)


def _sums(spark: SparkSession, folder: Path) -> ps.Flow:
    keyed = ps.flow(stream(spark, folder / "in")).key_by("k", slots=16)
    return keyed.aggregate(total=ps.sum("v"), n=ps.count())


DRIVER = """
import sys
import penstock as ps
from pyspark.sql import functions as F
folder, rows = sys.argv[1], int(sys.argv[2])
spark = ps.session(cores=6)
source = (spark.readStream.format("rate-micro-batch")
    .options(rowsPerBatch=rows, numPartitions=2, startTimestamp=0).load()
    .select((F.col("value") % 97).alias("k"), F.col("value").alias("v")))
flow = ps.flow(source).key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())
sink = ps.to("parquet", path=folder + "/out")
query = flow.start(sink, checkpoint=folder + "/checkpoint", hosts=int(sys.argv[3]),
    settings=ps.Settings(driver_lost_ms=3_000))
print("started", flush=True)
query.await_termination()
"""


def epochs_in(folder: Path) -> list[int]:
    return Store(str(folder / "checkpoint/penstock")).epochs()


def await_condition(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def start_driver(folder: Path, hosts: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), "500", str(hosts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_killed_driver_continues_exactly(tmp_path: Path) -> None:
    """kill -9 in the middle of an epoch, a restart with another number of hosts, Ctrl-C at the end."""
    first = start_driver(tmp_path, hosts=2)
    await_condition(lambda: len(epochs_in(tmp_path)) >= 3)
    family = children_of(first)
    assert len(family) >= 4, "the JVM, Spark's Python daemon, and workers"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left, f"still running: {left}"

    before = len(epochs_in(tmp_path))
    second = start_driver(tmp_path, hosts=3)
    await_condition(lambda: len(epochs_in(tmp_path)) >= before + 3)
    family = children_of(second)
    second.send_signal(signal.SIGINT)
    second.wait(60)
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left, f"still running: {left}"

    # What the sink holds, key by key, must be what a plain sum over the same rows gives.
    newest = epochs_in(tmp_path)[-1]
    latest: dict[int, tuple[int, int]] = {}
    for epoch in range(newest + 1):
        table = pa.concat_tables(
            pq.read_table(f) for f in (tmp_path / f"out/epoch={epoch}").glob("*.parquet")
        )
        keys = table["k"].to_pylist()
        assert len(set(keys)) == len(keys) == 97
        latest |= dict(
            zip(
                keys,
                zip(table["total"].to_pylist(), table["n"].to_pylist(), strict=True),
                strict=True,
            )
        )
    rows = range(500 * (newest + 1))
    expected = {k: (sum(rows[k::97]), len(rows[k::97])) for k in range(97)}
    assert latest == expected
    manifest = Store(str(tmp_path / "checkpoint/penstock")).read_manifest(newest)
    assert manifest is not None
    assert len(manifest.routes["aggregate-1"]["hosts"]) == 3
