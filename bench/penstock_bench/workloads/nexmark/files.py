"""The events of a folder: as tables, or as a sequence of batches for Spark's file source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.draws import Numbers
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS, Stream
from penstock_bench.workloads.nexmark.streams import find_files, schema_of, stream_batches

_BEFORE_ALL = -(2**62)


@dataclass(frozen=True)
class Merged:
    """Merged rows: row i is the next row of stream `order[i]`."""

    order: npt.NDArray[np.int8]
    rows: tuple[pa.RecordBatch | None, ...]
    """Rows of each stream; None if it has none here."""


class TimedStream:
    """Batches with a `date_time`, and statistics of the times so far."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._newest = _BEFORE_ALL
        self.disorder_us = 0
        """Most microseconds by which a row is older than the newest before it."""
        self.first_us: int | None = None
        self.last_us: int | None = None
        self.done = False
        self.held: pa.RecordBatch | None = None
        self.places: Numbers = np.zeros(0, np.int64)

    def fill(self) -> None:
        """Read until at least one row is held, or the stream is done."""
        while not self.done and not len(self.places):
            batch = next(self._batches, None)
            if batch is None:
                self.done, self.held = True, None
            elif batch.num_rows:
                self.held, self.places = batch, self._watch(batch.column("date_time"))

    def release(self, count: int) -> pa.RecordBatch | None:
        """Remove and return the first `count` held rows."""
        if not count:
            return None
        assert self.held is not None
        rows = self.held.slice(0, count)
        self.held, self.places = self.held.slice(count), self.places[count:]
        return rows

    def _watch(self, column: pa.Array) -> Numbers:
        times = pc.fill_null(column.cast(pa.int64()), _BEFORE_ALL).to_numpy(zero_copy_only=False)
        known = times != _BEFORE_ALL
        places = np.maximum(np.maximum.accumulate(times), self._newest)
        self._newest = int(places[-1])
        if known.any():
            seen = times[known]
            self.disorder_us = max(self.disorder_us, int((places[known] - seen).max()))
            first, last = int(seen.min()), int(seen.max())
            self.first_us = first if self.first_us is None else min(self.first_us, first)
            self.last_us = last if self.last_us is None else max(self.last_us, last)
        return places


def merge(streams: Sequence[TimedStream]) -> Iterator[Merged]:
    """Merge the rows of the streams by event time; the order within each stream stays.

    >>> def times(*micros):
    ...     return pa.record_batch({"date_time": pa.array(micros, pa.timestamp("us"))})
    >>> two = [TimedStream(iter([times(1, 5, 2), times(9)])), TimedStream(iter([times(5, 6)]))]
    >>> [int(stream) for part in merge(two) for stream in part.order]
    [0, 0, 0, 1, 1, 0]
    """
    while True:
        for stream in streams:
            stream.fill()
        if all(stream.done for stream in streams):
            return
        counts = [_placeable(streams, s) for s in range(len(streams))]
        places = np.concatenate(
            [stream.places[:count] for stream, count in zip(streams, counts, strict=True)]
        )
        numbers = np.repeat(np.arange(len(streams), dtype=np.int8), counts)
        order = numbers[np.lexsort([numbers, places])]
        rows = [stream.release(count) for stream, count in zip(streams, counts, strict=True)]
        yield Merged(order, tuple(rows))


def _placeable(streams: Sequence[TimedStream], s: int) -> int:
    """Number of held rows of stream s that precede all rows that other streams may still bring."""
    places = streams[s].places
    count = len(places)
    for t, other in enumerate(streams):
        if t != s and not other.done:
            bound = other.places[-1]
            count = min(count, int(np.searchsorted(places, bound, "right" if t > s else "left")))
    return count


_FIRST_MTIME = 1_600_000_000


def read(folder: str | Path) -> dict[Stream, pa.Table]:
    """All events of a folder, each stream in its file's order; a stream without a file is empty.

    Extra columns are left out. Raises `InputError` if a file cannot be read.
    """
    files = find_files(folder)
    return {
        stream: pa.Table.from_batches(
            stream_batches(files.get(stream), stream, SCHEMAS[stream].names), SCHEMAS[stream]
        )
        for stream in STREAMS
    }


@dataclass(frozen=True)
class ReplayInfo:
    """Facts about the batches that `chunked` wrote."""

    batches: int
    parts: int
    """Files per stream and batch: the value for Spark's `maxFilesPerTrigger`."""
    rows: dict[Stream, int]
    disorder_ms: dict[Stream, int]
    """Most milliseconds by which a row is older than the newest before it: with that delay no row is late."""
    first_ms: int | None
    last_ms: int | None
    """First and last event time, in milliseconds of Unix time; None if there are no events."""


def chunked(
    folder: str | Path,
    into: str | Path,
    batch_rows: int,
    needed: Mapping[Stream, Sequence[str]],
    parts: int = 1,
    progress: Callable[[int], None] | None = None,
) -> ReplayInfo:
    """Write the events as batches of Parquet files, in a sub-folder for each stream.

    `needed` names the streams and their columns. Streams are merged by event time and cut into batches
    of `batch_rows` events. Each stream has `parts` files in each batch, even if they are empty. Each
    file's modification time is a second after the one before, so that with `maxFilesPerTrigger` = parts
    Spark reads one batch per trigger and its streams stay in step. There is always at least one batch.
    `progress` is called with the number of rows written so far.
    """
    _check(batch_rows, needed, parts)
    files = find_files(folder)
    streams = [stream for stream in STREAMS if stream in needed]
    timed = []
    for stream in streams:
        columns = list(dict.fromkeys([*needed[stream], "date_time"]))
        timed.append(TimedStream(stream_batches(files.get(stream), stream, columns)))
    writer = _BatchWriter(Path(into), {s: tuple(needed[s]) for s in streams}, batch_rows, parts)
    try:
        writer.begin()
        for merged in merge(timed):
            writer.add(merged)
            if progress:
                progress(sum(writer.rows.values()))
        writer.end()
    except OSError as error:
        raise StoreError(
            f"the batches cannot be written to {into}: {error.strerror or error}",
            hint="name a writable folder on a disk with free space",
        ) from error
    firsts = [stream.first_us for stream in timed if stream.first_us is not None]
    lasts = [stream.last_us for stream in timed if stream.last_us is not None]
    disorder = [-(-stream.disorder_us // 1000) for stream in timed]
    return ReplayInfo(
        writer.batches,
        parts,
        writer.rows,
        dict(zip(streams, disorder, strict=True)),
        min(firsts) // 1000 if firsts else None,
        max(lasts) // 1000 if lasts else None,
    )


def _check(batch_rows: int, needed: Mapping[Stream, Sequence[str]], parts: int) -> None:
    if batch_rows < 1 or parts < 1 or not needed:
        raise SettingError(
            f"cannot write batches of {batch_rows} rows in {parts} parts of {len(needed)} streams",
            hint="batch_rows and parts must be 1 or more, and at least one stream must be needed",
        )
    for stream, columns in needed.items():
        unknown = [name for name in columns if name not in SCHEMAS[stream].names]
        if unknown or not columns:
            raise SettingError(
                f"{stream} has no column {', '.join(unknown)}"
                if unknown
                else f"no columns of {stream} are needed",
                hint=f"its columns are {', '.join(SCHEMAS[stream].names)}",
            )


class _BatchWriter:
    """Cuts merged rows into batches of equal size and writes each stream's part of them."""

    def __init__(
        self, into: Path, columns: dict[Stream, tuple[str, ...]], batch_rows: int, parts: int
    ) -> None:
        self._into, self._batch_rows, self._parts = into, batch_rows, parts
        self._columns = columns
        self._schemas = {stream: schema_of(stream, names) for stream, names in columns.items()}
        self._waiting: dict[Stream, list[pa.RecordBatch]] = {stream: [] for stream in columns}
        self._filled = 0
        self.batches = 0
        self.rows: dict[Stream, int] = dict.fromkeys(columns, 0)

    def begin(self) -> None:
        for stream in self._columns:
            folder = self._into / stream
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise StoreError(f"{folder} has files already", hint="name a new or empty folder")

    def add(self, merged: Merged) -> None:
        taken = [0] * len(self._columns)
        start = 0
        while start < len(merged.order):
            end = start + self._batch_rows - self._filled
            counts = np.bincount(merged.order[start:end], minlength=len(taken)).tolist()
            for s, (stream, count) in enumerate(zip(self._columns, counts, strict=True)):
                rows = merged.rows[s]
                if count and rows is not None:
                    part = rows.slice(taken[s], count).select(list(self._columns[stream]))
                    self._waiting[stream].append(part)
                    taken[s] += count
                    self.rows[stream] += count
            self._filled += sum(counts)
            start = end
            if self._filled == self._batch_rows:
                self._write()

    def end(self) -> None:
        if self._filled or not self.batches:
            self._write()

    def _write(self) -> None:
        for stream, batches in self._waiting.items():
            table = pa.Table.from_batches(batches, self._schemas[stream])
            for part in range(self._parts):
                start, end = (table.num_rows * (part + i) // self._parts for i in (0, 1))
                file = self._into / stream / f"{self.batches:08d}-{part}.parquet"
                pq.write_table(table.slice(start, end - start), file)
                modified = _FIRST_MTIME + self.batches * self._parts + part
                os.utime(file, (modified, modified))
            batches.clear()
        self.batches += 1
        self._filled = 0
