"""Rows that arrive at a steady rate; row i of them has a key and a value that follow from i."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Steady
from penstock.spark.arriving import Arriving, arriving

__all__ = ["Numbers", "keys_and_values", "steady"]


def keys_and_values(number: Numbers, keys: int) -> tuple[Numbers, Numbers]:
    """What the rows of these numbers hold, for whoever checks a result against them.

    >>> import numpy as np
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
