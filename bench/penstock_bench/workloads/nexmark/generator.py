"""The events as files: `person`, `auction` and `bid`, as NDJSON or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.draws import Draws, Numbers
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS, Stream
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.events import events, events_of
from penstock_bench.workloads.nexmark.shapes import EventTimes

__all__ = ["Format", "NexmarkConfig", "events", "generate"]

Format = Literal["ndjson", "parquet"]
CHUNK = 100_000
"""Events generated at once: about 40 MB."""


def generate(
    config: NexmarkConfig,
    folder: str | Path,
    format: Format = "ndjson",
    progress: Callable[[int], None] | None = None,
    chunk: int = CHUNK,
) -> dict[Stream, int]:
    """Write the three files; return the number of events in each.

    Files of an earlier run, in either format, are replaced at the end. `progress` is called with the
    number of events written so far. The files do not depend on `chunk`.
    """
    if format not in get_args(Format):
        raise SettingError(f"Unknown format {format!r}", hint="use ndjson or parquet")
    folder = Path(folder)
    new = {stream: folder / f".{stream}.{format}.new" for stream in STREAMS}
    counts: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with ExitStack() as stack:
                files = {
                    stream: stack.enter_context(closing(_WRITERS[format](path, SCHEMAS[stream])))
                    for stream, path in new.items()
                }
                for numbers in _departures(config, chunk):
                    for stream, table in events_of(config, numbers).items():
                        files[stream].write(table)
                        counts[stream] += table.num_rows
                    if progress:
                        progress(sum(counts.values()))
            for stream, path in new.items():
                for other in get_args(Format):
                    (folder / f"{stream}.{other}").unlink(missing_ok=True)
                path.rename(folder / f"{stream}.{format}")
        finally:
            for path in new.values():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"the events cannot be written to {folder}: {error.strerror or error}",
            hint="name a writable folder on a disk with about 270 bytes of free space per event",
        ) from error
    return counts


def _departures(config: NexmarkConfig, chunk: int) -> Iterator[Numbers]:
    """Numbers of the events, ordered by time of departure; the order does not depend on `chunk`."""
    waiting = np.zeros(0, np.int64)
    times = EventTimes(config)
    for first in range(0, config.events, chunk):
        end = min(first + chunk, config.events)
        numbers = np.concatenate([waiting, np.arange(first, end, dtype=np.int64)])
        if config.disorder_ms == 0:
            yield numbers
            continue
        after_us = Draws(config.seed, numbers).below(config.disorder_ms * 1000 + 1, "depart")
        leaves_us = times.micros(numbers) + after_us
        order = np.lexsort([numbers, leaves_us])
        numbers, leaves_us = numbers[order], leaves_us[order]
        last = end == config.events
        ready = len(numbers) if last else np.searchsorted(leaves_us, times.micros(np.array(end)))
        yield numbers[:ready]
        waiting = numbers[ready:]


class _File(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _NdjsonFile:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")

    def write(self, table: pa.Table) -> None:
        self._file.write(ndjson_lines(table))

    def close(self) -> None:
        self._file.close()


def ndjson_lines(table: pa.Table) -> bytes:
    """One JSON object per line. Only for generated events, whose text needs no escaping."""
    parts: list[Any] = []
    for i, field in enumerate(table.schema):
        column = table.column(i).combine_chunks()
        before = after = "" if pa.types.is_integer(field.type) else '"'
        if pa.types.is_timestamp(field.type):
            column, after = column.cast(pa.timestamp("ms")), 'Z"'
            column = pc.binary_replace_slice(column.cast(pa.string()), 10, 11, "T")
        elif pa.types.is_integer(field.type):
            column = column.cast(pa.string())
        parts += [f'{"," if i else "{"}"{field.name}":{before}', column, after]
    lines = pc.binary_join_element_wise(*parts, "}\n", "")
    _, offsets, data = lines.buffers()
    used = int(np.frombuffer(offsets, np.int32)[len(lines)])
    return b"" if data is None else data.slice(0, used).to_pybytes()


class _ParquetFile:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = pq.ParquetWriter(path, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._file.write_table(table)

    def close(self) -> None:
        self._file.close()


_WRITERS: dict[Format, Callable[[Path, pa.Schema], _File]] = {
    "ndjson": _NdjsonFile,
    "parquet": _ParquetFile,
}
