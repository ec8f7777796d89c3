"""A Spark source whose rows arrive one by one, exact to the microsecond, at the rate of a shape.

Spark's own `rate` source lets rows out once a second, which hides any latency below that. Here an
epoch gets every row that has arrived when it begins. Rows follow from their number alone, so an
epoch that is run again gets the same ones. The clock is read in one place: where an epoch begins.
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
"""Epochs that a query gets to come up and run smoothly, where it is not told when rows arrive."""
_AT_ONCE = 1 << 17
"""Rows in memory at a time."""


@dataclass(frozen=True)
class Arriving:
    """A load: when rows arrive, and what they hold."""

    arrivals: ArrivalTimes
    content: Content
    partitions: int = 2
    start_ms: int | None = None
    """When the load begins, in milliseconds since 1970. None: when the query has come up."""
    at_most: int | None = None
    """Rows of an epoch at most, as `maxOffsetsPerTrigger` has it; None: all that have arrived."""
    rows: int | None = None
    """How many rows there are; None: they never end."""


@dataclass
class _Rows(InputPartition):
    start: int
    end: int
    first: int
    start_ms: int | None


class ArrivingReader(DataSourceStreamReader):
    """Offsets are {"row": n, "start_ms": t, "first": f}: the first n rows. The load began at t with
    row f; those before it, the lead-in, have no time of arrival."""

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
            # no row has arrived by now, so no offset tells it yet
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
        """Nothing is held, so there is nothing to let go."""


def arriving(spark: SparkSession, name: str, load: Arriving) -> DataFrame:
    """The stream of a load: a column `arrival`, and those of its content.

    `name` is what Spark calls the source. Without a `start_ms` rows begin to arrive when the query
    has come up. Until then it gets some epochs of rows that are simply there, with no time of
    arrival.
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
