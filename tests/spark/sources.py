"""Inputs for tests: small files that Spark streams one (or a few) at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import penstock as ps


def numbers(files: int, rows: int, keys: int, seed: int = 7) -> list[pa.Table]:
    """Tables with a key, an integer with nulls, and a double."""
    rng = np.random.default_rng(seed)
    return [
        pa.table(
            {
                "k": rng.integers(0, keys, rows),
                "v": pa.array(rng.integers(-1000, 1000, rows), mask=rng.random(rows) < 0.05),
                "x": rng.random(rows),
            }
        )
        for _ in range(files)
    ]


def write_files(folder: Path, tables: list[pa.Table], start: int = 0) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    for number, table in enumerate(tables, start):
        file = folder / f"{number:05d}.parquet"
        pq.write_table(table, file)
        # Spark takes files in the order of their times, and these may fall into one tick.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def stream(spark: SparkSession, folder: Path, files_per_epoch: int = 1) -> DataFrame:
    schema = spark.read.parquet(str(folder)).schema
    return (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", files_per_epoch)
        .parquet(str(folder))
    )


def run(flow: ps.Flow, checkpoint: str, **options: Any) -> tuple[ps.FlowQuery, Any]:
    """Run a streaming flow over all that is there, and give back the query and what it collected."""
    sink = options.pop("sink", None) or ps.collect()
    query = flow.start(sink, checkpoint=checkpoint, trigger="available_now", **options)
    query.await_termination(120)
    return query, sink
