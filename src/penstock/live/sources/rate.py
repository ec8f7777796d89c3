"""Generated rows that arrive at a rate: for demos, tests and trials.

A row and its arrival time depend on its number alone. Reading it again, in either mode, gives the same row.
Row n is in partition n modulo the number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SettingError
from penstock.live.sources.source import LiveReader, LiveSource, Polled
from penstock.state.variables.ddl import schema_of

Numbers = npt.NDArray[np.int64]
TIME = pa.timestamp("us", tz="UTC")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that spreads consecutive numbers over all keys."""


class ArrivalTimes(Protocol):
    """Arrival times of rows: a `Shape` or the like. Picklable."""

    def rate_at(self, t_s: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Rows per second at these times, in seconds after the start."""
        ...

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        """Number of rows that have arrived by these times, in milliseconds after the start."""
        ...

    def arrival_us(self, number: Numbers) -> Numbers:
        """Arrival times of the rows with these numbers, in microseconds after the start."""
        ...


class Content(Protocol):
    """Columns of generated rows, other than their arrival time. Picklable."""

    @property
    def columns(self) -> str:
        """Names and types of the columns, as DDL."""
        ...

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        """Columns of the rows with these numbers, which arrive `t_us` microseconds after the start.

        Rows are numbered from 0 in order of arrival.
        """
        ...


@dataclass(frozen=True)
class Even:
    """A constant rate: row n arrives n + 1 intervals after the start."""

    rate: float

    def rate_at(self, t_s: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.full_like(np.asarray(t_s, np.float64), self.rate)

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        # One more than the product, then corrected: `arrival_us` decides, and it is rounded.
        about = np.floor(np.asarray(t_ms, np.float64) * self.rate / 1000).astype(np.int64) + 1
        late = self.arrival_us(about - 1) > np.floor(np.asarray(t_ms, np.float64) * 1000)
        counted: Numbers = about - late.astype(np.int64)
        return counted

    def arrival_us(self, number: Numbers) -> Numbers:
        times: Numbers = np.ceil((number + 1) * (1e6 / self.rate)).astype(np.int64)
        return times


@dataclass(frozen=True)
class Keyed:
    """Rows with one of `keys` keys, and their number as the value."""

    keys: int = 1_000
    columns: str = "key long, value long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        spread = (number.astype(np.uint64) * _SPREAD) >> np.uint64(33)
        return [pa.array((spread % np.uint64(self.keys)).astype(np.int64)), pa.array(number)]


@dataclass(frozen=True)
class RateSource(LiveSource):
    """Generated rows at a rate. Made by `rate`. A position is {"row": n, "start_ms": t}: the first n rows of
    the partition have been read, and the load started at t."""

    arrivals: ArrivalTimes
    content: Content
    count: int = 1
    rows: int | None = None
    """Number of rows of all partitions together; None for no end."""
    clock: Callable[[], float] = time.time
    """Time of day, in seconds since 1970."""

    @property
    def schema(self) -> pa.Schema:
        return schema_of(f"arrival timestamp, {self.content.columns}")

    @property
    def arrival(self) -> str | None:
        return "arrival"

    def partitions(self) -> list[str]:
        return [str(number) for number in range(self.count)]

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        begins = {"row": 0, "start_ms": int(self.clock() * 1000)}
        return {partition: dict(begins) for partition in partitions}

    def positions_at(self, offset: Any) -> dict[str, Any]:
        begins = {"start_ms": offset["start_ms"]}
        return {
            name: {"row": -(-(offset["row"] - int(name)) // self.count), **begins}
            for name in self.partitions()
        }

    def offset_at(self, positions: Mapping[str, Any]) -> Any:
        row = sum(place["row"] for place in positions.values())
        (start_ms,) = {place["start_ms"] for place in positions.values()}
        offset = {"row": row, "start_ms": start_ms, "first": 0}
        if self.positions_at(offset) != positions:
            raise self._one_way("its partitions were not read equally far")
        return offset

    def reader(self, positions: Mapping[str, Any]) -> RateReader:
        return RateReader(self, positions)

    def made(self, number: Numbers, start_ms: int) -> pa.RecordBatch:
        """Make the rows with these numbers."""
        t_us = self.arrivals.arrival_us(number)
        arrival = pa.array(start_ms * 1000 + t_us).cast(TIME)
        return pa.RecordBatch.from_arrays(
            [arrival, *self.content.rows(number, t_us)], schema=self.schema
        )


class RateReader(LiveReader):
    """Returns the rows that have arrived by now."""

    def __init__(self, source: RateSource, positions: Mapping[str, Any]) -> None:
        self._source, self._schema = source, source.schema
        self._at = {name: dict(position) for name, position in positions.items()}

    @property
    def ended(self) -> bool:
        end = self._source.rows
        return end is not None and all(
            self._number(name, position["row"]) >= end for name, position in self._at.items()
        )

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        until = self._source.clock() + wait_ms / 1000
        while not (polled := self._due(most_rows)):
            left_s = min(until, self._next()) - self._source.clock()
            if self._source.clock() >= until:
                return []
            time.sleep(max(left_s, 0.0002))
        return polled

    def behind(self) -> int:
        return sum(max(0, self._end(name, at) - at["row"]) for name, at in self._at.items())

    def _end(self, name: str, at: Mapping[str, Any]) -> int:
        """Number of rows of a partition that have arrived by now."""
        source = self._source
        passed_ms = source.clock() * 1000 - at["start_ms"]
        arrived = max(0, int(source.arrivals.cumulative(max(0.0, passed_ms))))
        if source.rows is not None:
            arrived = min(arrived, source.rows)
        return -(-(arrived - int(name)) // source.count)

    def _due(self, most_rows: int) -> list[Polled]:
        source, polled = self._source, []
        for name, at in self._at.items():
            end = min(self._end(name, at), at["row"] + most_rows)
            if end <= at["row"]:
                continue
            number = np.arange(at["row"], end, dtype=np.int64) * source.count + int(name)
            at["row"] = end
            polled.append(Polled(source.made(number, at["start_ms"]), name, dict(at)))
        return polled

    def _next(self) -> float:
        """Arrival time of the next row, in seconds since 1970."""
        times = []
        for name, at in self._at.items():
            number = np.array([self._number(name, at["row"])], dtype=np.int64)
            if self._source.rows is None or number[0] < self._source.rows:
                arrives_us = int(self._source.arrivals.arrival_us(number)[0])
                times.append(at["start_ms"] / 1e3 + arrives_us / 1e6)
        return min(times, default=float("inf"))

    def _number(self, name: str, row: int) -> int:
        return int(name) + row * self._source.count

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def rate(
    rows_per_second: float | ArrivalTimes,
    *,
    rows: int | None = None,
    partitions: int = 1,
    keys: int = 1_000,
    content: Content | None = None,
) -> RateSource:
    """Generated rows at a rate, as the source of a flow, with columns `arrival`, `key` and `value`.

    `value` is the row's number, `key` is one of `keys` keys. `content` makes other columns. The source ends
    after `rows` rows, or never. `rows_per_second` is a number, or a shape over time.

    >>> rate(1000, rows=5, keys=10).schema.names
    ['arrival', 'key', 'value']
    """
    if isinstance(rows_per_second, int | float):
        if not rows_per_second > 0:
            raise SettingError(f"rows_per_second is {rows_per_second}", hint="use more than 0")
        rows_per_second = Even(float(rows_per_second))
    if partitions < 1 or keys < 1 or (rows is not None and rows < 0):
        raise SettingError(
            f"rows is {rows}, partitions is {partitions}, keys is {keys}",
            hint="use at least 1 partition and 1 key, and 0 or more rows",
        )
    return RateSource(rows_per_second, content or Keyed(keys), partitions, rows)
