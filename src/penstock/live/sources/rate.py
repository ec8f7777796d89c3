"""Made-up rows that arrive at a rate: for demos, tests and trials.

A row follows from its number alone, and so does the time of its arrival: who reads it again, in either
mode, gets the same. Row n is in partition n modulo the number of partitions.
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
"""Spreads numbers that follow one another over all keys."""


class ArrivalTimes(Protocol):
    """When rows arrive: a `Shape`, or what is like one. Picklable."""

    def rate_at(self, t_s: npt.ArrayLike) -> npt.NDArray[np.float64]: ...

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers: ...

    def arrival_us(self, number: Numbers) -> Numbers: ...


class Content(Protocol):
    """What rows hold besides their time of arrival. Goes to couriers: picklable."""

    @property
    def columns(self) -> str:
        """Their names and types, as DDL."""
        ...

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        """The columns of the rows of these numbers, which arrive so long after the load began.

        Rows are numbered from 0 as they come.
        """
        ...


@dataclass(frozen=True)
class Even:
    """The same rate for ever: row n arrives n+1 intervals after the beginning."""

    rate: float

    def rate_at(self, t_s: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.full_like(np.asarray(t_s, np.float64), self.rate)

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        # Once more than by multiplying: `arrival_us` decides, and that is rounded.
        about = np.floor(np.asarray(t_ms, np.float64) * self.rate / 1000).astype(np.int64) + 1
        late = self.arrival_us(about - 1) > np.floor(np.asarray(t_ms, np.float64) * 1000)
        counted: Numbers = about - late.astype(np.int64)
        return counted

    def arrival_us(self, number: Numbers) -> Numbers:
        times: Numbers = np.ceil((number + 1) * (1e6 / self.rate)).astype(np.int64)
        return times


@dataclass(frozen=True)
class Keyed:
    """Rows of a key, one of so many, and their number as a value."""

    keys: int = 1_000
    columns: str = "key long, value long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        spread = (number.astype(np.uint64) * _SPREAD) >> np.uint64(33)
        return [pa.array((spread % np.uint64(self.keys)).astype(np.int64)), pa.array(number)]


@dataclass(frozen=True)
class RateSource(LiveSource):
    """Made-up rows at a rate. Made by `rate`. A position is {"row": n, "start_ms": t}: the first n rows of
    the partition have been read, of a load that began at t."""

    arrivals: ArrivalTimes
    content: Content
    count: int = 1
    rows: int | None = None
    """Rows of all partitions together; None: they never end."""
    clock: Callable[[], float] = time.time
    """The time in seconds since 1970."""

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
            raise self._one_way("its partitions have not come equally far")
        return offset

    def reader(self, positions: Mapping[str, Any]) -> RateReader:
        return RateReader(self, positions)

    def made(self, number: Numbers, start_ms: int) -> pa.RecordBatch:
        """The rows of these numbers."""
        t_us = self.arrivals.arrival_us(number)
        arrival = pa.array(start_ms * 1000 + t_us).cast(TIME)
        return pa.RecordBatch.from_arrays(
            [arrival, *self.content.rows(number, t_us)], schema=self.schema
        )


class RateReader(LiveReader):
    """Gives the rows whose time has come."""

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
        while not (found := self._due(most_rows)):
            left_s = min(until, self._next()) - self._source.clock()
            if self._source.clock() >= until:
                return []
            time.sleep(max(left_s, 0.0002))
        return found

    def behind(self) -> int:
        return sum(max(0, self._end(name, at) - at["row"]) for name, at in self._at.items())

    def _end(self, name: str, at: Mapping[str, Any]) -> int:
        """Rows of a partition that have arrived by now."""
        source = self._source
        passed_ms = source.clock() * 1000 - at["start_ms"]
        arrived = max(0, int(source.arrivals.cumulative(max(0.0, passed_ms))))
        if source.rows is not None:
            arrived = min(arrived, source.rows)
        return -(-(arrived - int(name)) // source.count)

    def _due(self, most_rows: int) -> list[Polled]:
        source, found = self._source, []
        for name, at in self._at.items():
            end = min(self._end(name, at), at["row"] + most_rows)
            if end <= at["row"]:
                continue
            number = np.arange(at["row"], end, dtype=np.int64) * source.count + int(name)
            at["row"] = end
            found.append(Polled(source.made(number, at["start_ms"]), name, dict(at)))
        return found

    def _next(self) -> float:
        """When the next row arrives, in seconds since 1970."""
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
        """Nothing is held."""


def rate(
    rows_per_second: float | ArrivalTimes,
    *,
    rows: int | None = None,
    partitions: int = 1,
    keys: int = 1_000,
    content: Content | None = None,
) -> RateSource:
    """Made-up rows at a rate, as the source of a flow: columns `arrival`, `key` and `value`.

    `value` is the row's number, `key` one of `keys`; `content` makes other columns. There are `rows` rows,
    or no end of them. Instead of a number, `rows_per_second` can be a shape over time.

    >>> rate(1000, rows=5, keys=10).schema.names
    ['arrival', 'key', 'value']
    """
    if isinstance(rows_per_second, int | float):
        if not rows_per_second > 0:
            raise SettingError(f"rows_per_second is {rows_per_second}", hint="use more than 0")
        rows_per_second = Even(float(rows_per_second))
    if partitions < 1 or keys < 1 or (rows is not None and rows < 0):
        raise SettingError(
            f"rate() got rows {rows}, partitions {partitions} and keys {keys}",
            hint="use 1 or more for partitions and keys, and 0 or more for rows",
        )
    return RateSource(rows_per_second, content or Keyed(keys), partitions, rows)
