"""Order for users, on real hosts: ordered flows, and whole chains on one host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import run, stream, write_files

MANY_CORES = ps.Settings(host_cores=3, chunk_rows=50)


class Hashes(ps.KeyedProcessor):
    """A running hash per key, which depends on the order of its rows; gives each row once or twice."""

    output_schema = "n long, g long, h long"

    def init(self, handle: Any) -> None:
        self.hash = handle.get_value_state("h", "h long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (h,) = self.hash.get() or (0,)
        for row in rows:
            h = (h * 31 + row.n) % 1_000_003
            yield (row.n, h % 5, h)
            if row.n % 7 == 0:
                yield (row.n, h % 3, h)
        self.hash.update((h,))


def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(pc.bit_wise_and(batch["n"], 3), 0))


def tables(files: int, rows: int) -> list[pa.Table]:
    rng = np.random.default_rng(3)
    return [
        pa.table(
            {
                "n": np.arange(number * rows, (number + 1) * rows),
                "g": rng.zipf(1.6, rows) % 40,
                "h": np.zeros(rows, np.int64),
            }
        )
        for number in range(files)
    ]


def chain(spark: SparkSession, folder: Path) -> ps.Flow:
    """Stateless, keyed, keyed by something else, global."""
    return (
        ps.flow(stream(spark, folder))
        .map_batches(odd)
        .key_by("g", slots=16)
        .process(Hashes())
        .key_by("g", slots=8)
        .process(Hashes())
        .global_(Hashes())
    )


def serially(inputs: list[pa.Table]) -> list[tuple[int, int, int]]:
    """Output of one thread that takes one row after another."""
    rows = [(n, g, h) for t in inputs for n, g, h in zip(*t.to_pydict().values(), strict=True)]
    rows = [row for row in rows if row[0] & 3]
    for keyed in (True, True, False):
        hashes: dict[int, int] = {}
        given = []
        for n, g, _ in rows:
            key = g if keyed else -1
            h = hashes[key] = (hashes.get(key, 0) * 31 + n) % 1_000_003
            given.append((n, h % 5, h))
            if n % 7 == 0:
                given.append((n, h % 3, h))
        rows = given
    return rows


def collected(sink: Any) -> list[tuple[int, int, int]]:
    return [(row["n"], row["g"], row["h"]) for row in sink.rows()]


def test_ordered_output_is_that_of_one_thread(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    inputs = tables(files=4, rows=400)
    write_files(tmp_path / "in", inputs)
    _, sink = run(chain(spark, tmp_path / "in").ordered(), checkpoint, hosts=2)
    assert collected(sink) == serially(inputs)


def test_a_chain_on_one_host_goes_on_after_a_restart_and_a_dead_host(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    inputs = tables(files=6, rows=400)
    write_files(tmp_path / "in", inputs[:2])
    flow = chain(spark, tmp_path / "in").on_one_host()
    query, before = run(flow, checkpoint, settings=MANY_CORES)
    assert collected(before) == serially(inputs[:2])
    assert {host.host for host in query.progress[-1].hosts} == {
        "process-1/0",
        "process-2/0",
        "process-3/0",
    }

    write_files(tmp_path / "in", inputs[2:4], start=2)
    after = ps.collect()
    query = flow.start(after, checkpoint=checkpoint, settings=MANY_CORES)
    while len(collected(after)) < len(serially(inputs[:4])) - len(serially(inputs[:2])):
        assert not query.await_termination(0.05)
    [pid] = set(query.status.hosts.values())
    os.kill(pid, signal.SIGKILL)
    write_files(tmp_path / "in", inputs[4:], start=4)
    expected = serially(inputs)[len(serially(inputs[:2])) :]
    while len(collected(after)) < len(expected):
        assert not query.await_termination(0.05)
    query.stop()
    assert query.exception() is None
    assert collected(after) == expected


def test_a_host_with_several_cores_gives_the_same(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    inputs = tables(files=3, rows=500)
    write_files(tmp_path / "in", inputs)
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("g", slots=16)
    _, sink = run(flow.aggregate(n=ps.count(), total=ps.sum("n")), checkpoint, settings=MANY_CORES)
    whole = pa.concat_tables(inputs).group_by("g").aggregate([("n", "count"), ("n", "sum")])
    assert {k: (row["n"], row["total"]) for k, row in sink.latest("g").items()} == {
        row["g"]: (row["n_count"], row["n_sum"]) for row in whole.to_pylist()
    }


def test_what_one_host_cannot_do_is_refused(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", tables(files=1, rows=10))
    flow = chain(spark, tmp_path / "in")
    with pytest.raises(ps.FlowError, match="join"):
        flow.join(flow, on="n", ttl="1h").on_one_host()
    with pytest.raises(ps.FlowError, match="elastic"):
        flow.on_one_host().sla("1s").elastic().start(ps.collect(), checkpoint=checkpoint)
    query = flow.on_one_host().start(ps.collect(), checkpoint=checkpoint)
    try:
        with pytest.raises(ps.SettingError, match="one host"):
            query.scale("process-1", hosts=2)
        with pytest.raises(ps.SettingError, match="one host"):
            query.migration = "lazy"
    finally:
        query.stop()
