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
_LEAD_IN = 6
"""Epochs that a query gets to come up and run smoothly, where it is not told when rows arrive."""


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
    start_ms: int | None


class _Reader(DataSourceStreamReader):
    """Offsets are {"row": n, "start_ms": t}: the first n rows, of which row 0 arrives at t."""

    def __init__(self, rate: int, keys: int, partitions: int, start_ms: int | None) -> None:
        self._rate, self._keys, self._partitions, self._start_ms = rate, keys, partitions, start_ms

    def initialOffset(self) -> dict[str, int | None]:  # noqa: N802 - Spark's name
        return {"row": 0, "start_ms": self._start_ms}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        now_ms = int(time.time() * 1000)
        start_ms = start["start_ms"] or self._start_ms
        if start_ms is None:
            at_once = max(self._partitions, self._rate // 10)
            if start["row"] < _LEAD_IN * at_once:
                return {"row": start["row"] + at_once, "start_ms": None}
            start_ms = self._start_ms = now_ms - start["row"] * 1000 // self._rate
        row = (now_ms - start_ms) * self._rate // 1000
        return {"row": row, "start_ms": start_ms} if row > start["row"] else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        cuts = np.linspace(start["row"], end["row"], self._partitions + 1).astype(np.int64)
        return [_Rows(int(a), int(b), end["start_ms"]) for a, b in pairwise(cuts) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        number = np.arange(partition.start, partition.end, dtype=np.int64)
        type = pa.timestamp("us", tz="UTC")
        if partition.start_ms is None:
            arrival = pa.nulls(len(number), type)
        else:
            arrival_us = partition.start_ms * 1000 + number * 1_000_000 // self._rate
            arrival = pa.array(arrival_us).cast(type)
        k, v = keys_and_values(number, self._keys)
        yield pa.RecordBatch.from_arrays([arrival, pa.array(k), pa.array(v)], ["arrival", "k", "v"])

    def commit(self, end: dict[str, Any]) -> None:
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
            number.get("start_ms"),
        )


def steady(
    spark: SparkSession, rate: int, keys: int, partitions: int = 2, start_ms: int | None = None
) -> DataFrame:
    """A stream of (arrival, k, v) with `rate` rows arriving each second from `start_ms` on.

    Without a `start_ms` rows begin to arrive when the query has come up. Until then it gets some
    epochs of rows that are simply there, with no time of arrival.
    """
    spark.dataSource.register(SteadySource)
    options = {"rate": rate, "keys": keys, "partitions": partitions, "start_ms": start_ms}
    given = {name: value for name, value in options.items() if value is not None}
    return spark.readStream.format("steady").options(**given).load()
