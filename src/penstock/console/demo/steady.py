"""The demo's rows: row i has a key and a value that follow from i, so that sums can be checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Steady
from penstock.spark.arriving import Arriving, arriving

_CHUNK = 1 << 20


def keys_and_values(number: Numbers, keys: int) -> tuple[Numbers, Numbers]:
    """What the rows of these numbers hold, for whoever checks a result against them.

    >>> keys_and_values(np.arange(3), keys=10)
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    return (number * 2_654_435_761) % keys, number % 1000


@dataclass(frozen=True)
class _Content:
    keys: int

    columns = "k long, v long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return [pa.array(column) for column in keys_and_values(number, self.keys)]


def steady(
    spark: SparkSession, rate: int, keys: int, partitions: int = 2, start_ms: int | None = None
) -> DataFrame:
    """A stream of (arrival, k, v) with `rate` rows arriving each second from `start_ms` on.

    Without a `start_ms` rows begin to arrive when the query has come up. Until then it gets some
    epochs of rows that are simply there, with no time of arrival.
    """
    return arriving(spark, "steady", Arriving(Steady(rate), _Content(keys), partitions, start_ms))


class Totals:
    """A sink that keeps the newest row of each key. An epoch that comes again changes nothing."""

    def __init__(self, keys: int) -> None:
        self.sums: Numbers = np.zeros(keys, np.int64)
        self.counts: Numbers = np.zeros(keys, np.int64)
        self.epoch = -1
        """The newest epoch taken."""

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        rows = df.toArrow()
        k, total, n = (rows.column(name).to_numpy() for name in ("k", "total", "n"))
        self.sums[k], self.counts[k] = total, n
        self.epoch = epoch

    def faults(self, rows: int) -> str:
        """What is wrong, if these should be the totals of the first `rows` rows; empty if fine."""
        keys = len(self.sums)
        sums, counts = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        for start in range(0, rows, _CHUNK):
            k, v = keys_and_values(np.arange(start, min(start + _CHUNK, rows)), keys)
            np.add.at(sums, k, v)
            counts += np.bincount(k, minlength=keys)
        wrong = int(np.count_nonzero((sums != self.sums) | (counts != self.counts)))
        if wrong == 0:
            return ""
        counted = int(self.counts.sum())
        return f"{wrong:,} of {keys:,} keys are wrong; {counted:,} rows were counted, {rows:,} came"


def rows_taken(checkpoint: Path, epoch: int) -> int:
    """How many rows Spark's own log says the source has given, up to the end of an epoch."""
    if epoch < 0:
        return 0
    offset = (checkpoint / "offsets" / str(epoch)).read_text().splitlines()[-1]
    return int(json.loads(offset)["row"])
