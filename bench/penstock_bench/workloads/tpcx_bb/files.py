"""A stream as files, which Spark reads batch by batch; and the partitioning of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.tpcx_bb.clicks import clicks
from penstock_bench.workloads.tpcx_bb.config import PARTITIONED_BY, SCHEMAS, Stream, TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.store_sales import store_sales

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST_MTIME = 1_600_000_000


def batches_of(config: TpcxBbConfig, stream: Stream, batches: int) -> Iterator[pa.Table]:
    """All rows of a stream, in `batches` batches with equal numbers of tickets or sessions.

    >>> config = TpcxBbConfig(tickets=10, sessions=10)
    >>> sum(len(table) for table in batches_of(config, "clicks", 3)) == len(clicks(config, 0, 10))
    True
    """
    if batches < 1:
        raise SettingError(f"batches is {batches}", hint="use 1 or more")
    make, whole = (
        (store_sales, config.tickets) if stream == "store_sales" else (clicks, config.sessions)
    )
    for batch in range(batches):
        first, end = (whole * (batch + i) // batches for i in (0, 1))
        yield make(config, first, end - first)


def parted(stream: Stream, rows: pa.Table, parts: int) -> list[pa.Table]:
    """Rows by partition of the source: rows of a ticket, or of a user, are in one partition, in order.

    >>> rows = pa.table({"user": [4, 5, None, 6], "item": [1, 2, 3, 4]})
    >>> [part.column("item").to_pylist() for part in parted("clicks", rows, 2)]
    [[1, 3, 4], [2]]
    """
    keys = rows.column(PARTITIONED_BY[stream]).fill_null(0).to_numpy()
    return [rows.take(pa.array(np.flatnonzero(keys % parts == part))) for part in range(parts)]


def write(
    config: TpcxBbConfig, stream: Stream, folder: str | Path, batches: int = 1, parts: int = 2
) -> int:
    """Write a stream as Parquet files, `parts` per batch; return the number of rows.

    A partition of a batch is one file with one row group, so that one task reads it in order. Each
    file's modification time is a second after the one before: with `maxFilesPerTrigger` = parts Spark
    reads one batch per trigger.
    """
    folder, written = Path(folder), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StoreError(f"{folder} has files already", hint="name a new or empty folder")
        for batch, rows in enumerate(batches_of(config, stream, batches)):
            for part, chosen in enumerate(parted(stream, rows, parts)):
                file = folder / f"{batch:08d}-{part}.parquet"
                pq.write_table(chosen, file, row_group_size=max(len(chosen), 1))
                modified = _FIRST_MTIME + batch * parts + part
                os.utime(file, (modified, modified))
            written += len(rows)
    except OSError as error:
        raise StoreError(
            f"the rows cannot be written to {folder}: {error.strerror or error}",
            hint="name a writable folder on a disk with free space",
        ) from error
    return written


def streaming(spark: SparkSession, stream: Stream, folder: str | Path, parts: int = 2) -> DataFrame:
    """The files of `write` as a stream: each batch is an epoch."""
    from penstock.spark.schema import spark_schema

    read = spark.readStream.schema(spark_schema(SCHEMAS[stream]))
    return read.option("maxFilesPerTrigger", parts).parquet(str(folder))


def static(spark: SparkSession, stream: Stream, folder: str | Path) -> DataFrame:
    """The files of `write` as a static DataFrame. Only for one batch: Spark reads several in any order."""
    from penstock.spark.schema import spark_schema

    if len({file.name.partition("-")[0] for file in Path(folder).glob("*.parquet")}) > 1:
        raise SettingError(
            f"{folder} holds several batches", hint="write it as one batch, or read it as a stream"
        )
    return spark.read.schema(spark_schema(SCHEMAS[stream])).parquet(str(folder))
