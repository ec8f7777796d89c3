"""A source with a steady arrival rate, exact to the millisecond.

Spark's own `rate` source lets rows out once a second, which hides any latency below that. Here row
*i* arrives at `start + i / rate`, and an epoch gets every row that has arrived when it starts. The
rows follow from their number alone, so an epoch that is run again gets the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

_SCHEMA = "arrival timestamp, k long, v long"


Numbers = npt.NDArray[np.int64]


def keys_and_values(number: Numbers, keys: int) -> tuple[Numbers, Numbers]:
    """What the rows of these numbers hold, for whoever checks a result against them.

    >>> keys_and_values(np.arange(3), keys=10)
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    return (number * 2_654_435_761) % keys, number % 1000


@dataclass
class _Rows(InputPartition):
    start: int
    end: int


class _Reader(DataSourceStreamReader):
    def __init__(self, rate: int, keys: int, partitions: int, start_ms: int) -> None:
        self._rate, self._keys, self._partitions, self._start_ms = rate, keys, partitions, start_ms

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        elapsed_ms = time.time() * 1000 - self._start_ms
        return {"row": max(0, int(elapsed_ms * self._rate / 1000))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        cuts = np.linspace(start["row"], end["row"], self._partitions + 1).astype(np.int64)
        return [_Rows(int(a), int(b)) for a, b in pairwise(cuts) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        number = np.arange(partition.start, partition.end, dtype=np.int64)
        arrival_us = self._start_ms * 1000 + number * 1_000_000 // self._rate
        k, v = keys_and_values(number, self._keys)
        yield pa.RecordBatch.from_arrays(
            [pa.array(arrival_us).cast(pa.timestamp("us", tz="UTC")), pa.array(k), pa.array(v)],
            ["arrival", "k", "v"],
        )

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is held, so there is nothing to let go."""


class SteadySource(DataSource):
    """`spark.readStream.format("steady")` with `rate`, `keys`, `partitions`, `start_ms`."""

    @classmethod
    def name(cls) -> str:
        return "steady"

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        number = {key: int(value) for key, value in self.options.items() if value.isdigit()}
        return _Reader(
            number.get("rate", 1000),
            number.get("keys", 1000),
            number.get("partitions", 2),
            number["start_ms"],
        )


def steady(
    spark: SparkSession, rate: int, keys: int, partitions: int = 2, start_ms: int | None = None
) -> DataFrame:
    """A stream of (arrival, k, v) with `rate` rows arriving each second, beginning now."""
    spark.dataSource.register(SteadySource)
    began = int(time.time() * 1000) if start_ms is None else start_ms
    return (
        spark.readStream.format("steady")
        .options(rate=rate, keys=keys, partitions=partitions, start_ms=began)
        .load()
    )
