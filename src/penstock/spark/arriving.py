"""A Spark source whose rows arrive one by one, with microsecond times, at a given rate over time.

Spark's own `rate` source emits rows once per second, which hides any latency below that. Here an epoch gets
every row that has arrived when it begins. A row depends only on its number, so an epoch that is run again
gets the same rows. The clock is read in one place: at the start of an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.live.sources.rate import TIME, ArrivalTimes, Content
from penstock.state.variables.ddl import schema_of

_LEAD_IN = 6
"""Number of warm-up epochs of a query without a start time."""
_AT_ONCE = 1 << 17
"""Most rows in memory at the same time."""


@dataclass(frozen=True)
class Arriving:
    """A load: arrival times and contents of rows."""

    arrivals: ArrivalTimes
    content: Content
    partitions: int = 2
    start_ms: int | None = None
    """Start of the load, in milliseconds since 1970. None: once the query is up."""
    at_most: int | None = None
    """Most rows of an epoch, like `maxOffsetsPerTrigger`. None: all rows that have arrived."""
    rows: int | None = None
    """Number of rows. None: unlimited."""


@dataclass
class _Rows(InputPartition):
    start: int
    end: int
    first: int
    start_ms: int | None


class ArrivingReader(DataSourceStreamReader):
    """Stream reader of a load. An offset {"row": n, "start_ms": t, "first": f} stands for the first n rows.
    The load began at time t with row f. Rows before f are the warm-up and have no arrival time."""

    def __init__(self, load: Arriving) -> None:
        self._load = load
        self._start_ms = load.start_ms
        self._schema = schema_of(_ddl(load.content))

    def initialOffset(self) -> dict[str, int | None]:  # noqa: N802 - Spark's name
        return {"row": 0, "start_ms": self._start_ms, "first": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        now_ms, arrivals = int(time.time() * 1000), self._load.arrivals
        row, first = start["row"], start["first"]
        start_ms = start["start_ms"] or self._start_ms
        if start_ms is None:
            at_once = max(self._load.partitions, int(arrivals.rate_at(0)) // 10)
            if row < _LEAD_IN * at_once:
                return {"row": row + at_once, "start_ms": None, "first": row + at_once}
            # no row has arrived yet, so the offset has no start time
            start_ms = self._start_ms = now_ms
        arrived = first + int(arrivals.cumulative(now_ms - start_ms))
        if self._load.at_most is not None:
            arrived = min(arrived, row + self._load.at_most)
        if self._load.rows is not None:
            arrived = min(arrived, self._load.rows)
        return {"row": arrived, "start_ms": start_ms, "first": first} if arrived > row else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        cuts = np.linspace(start["row"], end["row"], self._load.partitions + 1).astype(np.int64)
        begin = (end["first"], end["start_ms"])
        return [_Rows(int(a), int(b), *begin) for a, b in pairwise(cuts) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        for start in range(partition.start, partition.end, _AT_ONCE):
            number = np.arange(start, min(start + _AT_ONCE, partition.end), dtype=np.int64)
            if partition.start_ms is None:
                t_us, arrival = np.zeros_like(number), pa.nulls(len(number), TIME)
            else:
                t_us = self._load.arrivals.arrival_us(number - partition.first)
                arrival = pa.array(partition.start_ms * 1000 + t_us).cast(TIME)
            columns = self._load.content.rows(number, t_us)
            yield pa.RecordBatch.from_arrays([arrival, *columns], schema=self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the reader keeps no rows."""


def arriving(spark: SparkSession, name: str, load: Arriving) -> DataFrame:
    """A stream of the rows of a load, with a column `arrival` and the columns of its content.

    `name` is the name of the source in Spark. Without `start_ms`, rows begin to arrive once the query is up;
    before that it gets some warm-up epochs, whose rows have no arrival time.
    """

    class ArrivingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return _ddl(load.content)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return ArrivingReader(load)

    spark.dataSource.register(ArrivingSource)
    return spark.readStream.format(name).load()


def _ddl(content: Content) -> str:
    return f"arrival timestamp, {content.columns}"
