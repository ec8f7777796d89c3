"""Rows at a steady rate: the key and value of row i are functions of i."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Steady
from penstock.spark.arriving import Arriving, arriving


@dataclass(frozen=True)
class _Content:
    keys: int

    columns = "k long, v long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return [pa.array((number * 2_654_435_761) % self.keys), pa.array(number % 1000)]


def steady(
    spark: SparkSession, rate: int, keys: int, partitions: int = 2, start_ms: int | None = None
) -> DataFrame:
    """A stream of (arrival, k, v) with `rate` rows arriving each second from `start_ms` on.

    Without `start_ms`, rows begin to arrive when the query is up. The epochs before that have rows without
    an arrival time.
    """
    return arriving(spark, "steady", Arriving(Steady(rate), _Content(keys), partitions, start_ms))
