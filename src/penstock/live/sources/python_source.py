"""Python data sources of Spark (`DataSourceStreamReader`, `SimpleDataSourceStreamReader`), read in a courier.

Such a source reads ranges between two of its offsets, and gives the same rows each time. A position is
{"from": offset}, or inside a range {"from": offset, "to": offset, "rows": n}: n rows of it were read.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.exchange.step_work import as_schema
from penstock.live.sources.source import LiveReader, LiveSource, Polled

_ONLY = "0"
"""Name of its only partition."""
_PAUSE_S = 0.01
"""Seconds between two requests for a newer offset, as in Spark."""


@dataclass(frozen=True)
class PythonSource(LiveSource):
    """A Python data source. Made by `penstock.source`."""

    columns: pa.Schema
    make: Callable[[], Any]
    """Makes the stream reader, in the driver and in a courier. Picklable."""
    name: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def partitions(self) -> list[str]:
        return [_ONLY]

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        return {partition: {"from": self.make().initialOffset()} for partition in partitions}

    def positions_at(self, offset: Any) -> dict[str, Any]:
        return {_ONLY: {"from": offset}}

    def offset_at(self, positions: Mapping[str, Any]) -> Any:
        (place,) = positions.values()
        if "to" not in place:
            return place["from"]
        reader = self.reader(positions)
        try:
            if not reader.is_between_ranges():
                raise self._one_way("it was stopped in the middle of a range of offsets")
        finally:
            reader.close()
        return place["to"]

    def reader(self, positions: Mapping[str, Any]) -> PythonReader:
        return PythonReader(self, positions)


class _Ranges:
    """Offset ranges of a `DataSourceStreamReader`."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        if inspect.signature(reader.latestOffset).parameters:
            limit = reader.getDefaultReadLimit()
            self._latest: Callable[[Any], Any] = lambda start: reader.latestOffset(start, limit)
        else:  # as it was before Spark 4.2
            self._latest = lambda start: reader.latestOffset()

    def after(self, start: Any) -> tuple[Any, Iterator[Any]] | None:
        """The range from an offset to the newest: its end and its rows; None if there is nothing new."""
        end = self._latest(start)
        return None if end is None or end == start else (end, self.between(start, end))

    def between(self, start: Any, end: Any) -> Iterator[Any]:
        """Yield the rows of a range: tuples or batches."""
        for partition in self._reader.partitions(start, end):
            yield from self._reader.read(partition)


class _SimpleRanges:
    """Offset ranges of a `SimpleDataSourceStreamReader`."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def after(self, start: Any) -> tuple[Any, Iterator[Any]] | None:
        rows, end = self._reader.read(start)
        return None if end == start else (end, iter(rows))

    def between(self, start: Any, end: Any) -> Iterator[Any]:
        return iter(self._reader.readBetweenOffsets(start, end))


class PythonReader(LiveReader):
    """Reads a Python data source range by range. Calls to the data source block the courier's reader."""

    def __init__(self, source: PythonSource, positions: Mapping[str, Any]) -> None:
        self._schema, self._reader = source.schema, source.make()
        simple = hasattr(self._reader, "readBetweenOffsets")
        self._ranges = _SimpleRanges(self._reader) if simple else _Ranges(self._reader)
        self._at: dict[str, Any] | None = next(iter(positions.values()), None)
        self._rows: Iterator[Any] | None = None
        self._rest: pa.RecordBatch | None = None
        self._committed: Any = None
        if self._at is not None and "to" in self._at:
            self._rows = self._ranges.between(self._at["from"], self._at["to"])
            self._skip(self._at["rows"])

    def _skip(self, count: int) -> None:
        while count:
            batch = self._next(count)
            if batch is None:
                raise FlowError(
                    "a Python data source returned fewer rows between two offsets than before",
                    hint="a stream reader must return the same rows for the same offsets",
                )
            count -= batch.num_rows

    def is_between_ranges(self) -> bool:
        """Whether the position is at the end of its range: all rows of the range have been read."""
        return self._next(1) is None

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        if self._at is None:
            time.sleep(wait_ms / 1000)
            return []
        until = time.monotonic() + wait_ms / 1000
        while True:
            if self._rows is None and (newer := self._ranges.after(self._at["from"])):
                end, self._rows = newer
                self._at = {"from": self._at["from"], "to": end, "rows": 0}
            if self._rows is not None:
                batch = self._next(most_rows)
                if batch is not None:
                    self._at = self._at | {"rows": self._at["rows"] + batch.num_rows}
                    return [Polled(batch, _ONLY, self._at)]
                self._at, self._rows = {"from": self._at["to"]}, None
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                return []
            time.sleep(min(left_s, _PAUSE_S))

    def _next(self, most_rows: int) -> pa.RecordBatch | None:
        """The next rows of the range, at most `most_rows`; None at its end."""
        rows: list[Any] = []
        while self._rest is None and len(rows) < most_rows:
            row = next(self._rows or iter(()), None)
            if row is None:
                break
            if isinstance(row, pa.RecordBatch):
                self._rest = row if row.num_rows else None
                continue
            rows.append(row)
        if rows:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._rest is None:
            return None
        batch, rest = self._rest.slice(0, most_rows), self._rest.slice(most_rows)
        self._rest = rest if rest.num_rows else None
        return as_schema(batch, self._schema, "source")

    def commit(self, positions: Mapping[str, Any]) -> None:
        for position in positions.values():
            if position["from"] != self._committed:
                self._committed = position["from"]
                self._reader.commit(self._committed)

    def close(self) -> None:
        stop = getattr(self._reader, "stop", None)
        if stop is not None:
            stop()
