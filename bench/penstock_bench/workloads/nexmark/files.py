"""The events of a folder: as tables, or as a sequence of batches for Spark's file source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS, Stream
from penstock_bench.workloads.nexmark.merging import Merged, TimedStream, merge
from penstock_bench.workloads.nexmark.streams import find_files, schema_of, stream_batches

_FIRST_MTIME = 1_600_000_000


def read(folder: str | Path) -> dict[Stream, pa.Table]:
    """All events of a folder, each stream in its file's order; a stream without a file is empty.

    Extra columns are left out. Raises `InputError` for what cannot be read.
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
    """What `chunked` wrote."""

    batches: int
    parts: int
    """Files of each stream in each batch: Spark's `maxFilesPerTrigger`."""
    rows: dict[Stream, int]
    disorder_ms: dict[Stream, int]
    """The most that a row is behind the newest before it: a delay that makes none late."""
    first_ms: int | None
    last_ms: int | None
    """The earliest and the latest event time of all; None without any."""


def chunked(
    folder: str | Path,
    into: str | Path,
    batch_rows: int,
    needed: Mapping[Stream, Sequence[str]],
    parts: int = 1,
    progress: Callable[[int], None] | None = None,
) -> ReplayInfo:
    """Write the events as Parquet files, one batch after the other, a sub-folder for each stream.

    The streams named in `needed`, with the columns it names, merged by event time; batch i is the
    i-th `batch_rows` events of all. Each stream has `parts` files in each batch, even empty ones,
    modified a second after those before: with `maxFilesPerTrigger` = parts Spark takes one batch at
    a time, and its streams stay in step. There is always at least one batch. `progress` is called
    with the number of rows that are done.
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
            hint="name a folder that can be written, on a disk with room",
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
            f"no batches of {batch_rows} rows in {parts} parts of {len(needed)} streams",
            hint="batch_rows and parts must be 1 or more, and at least one stream needed",
        )
    for stream, columns in needed.items():
        unknown = [name for name in columns if name not in SCHEMAS[stream].names]
        if unknown or not columns:
            raise SettingError(
                f"{stream} has no column {', '.join(unknown) or 'at all that is needed'}",
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
