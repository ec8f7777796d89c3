"""A sink of files: one file per courier and epoch, which appears when the epoch has passed.

    <path>/epoch=<epoch>/courier-<courier>.<format>      one folder per epoch, as in micro-batches

An epoch that runs again replaces its files.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from penstock.live.sinks.sink import Delivery, LiveSink, LiveWriter, RowIds
from penstock.live.sources.formats import Json
from penstock.state.store.files import Files

_KEPT_ROWS = 65_536
"""Rows that are collected before they are encoded: chunks are small, row groups should not be."""
_EPOCH = re.compile(r"epoch=(\d+)/courier-\d+\.")


def epoch_of(name: str) -> int | None:
    """The epoch of a file that a courier wrote; None for any other file.

    >>> epoch_of("epoch=7/courier-0.parquet"), epoch_of("epoch=7/part-0.parquet")
    (7, None)
    """
    match = _EPOCH.match(name)
    return None if match is None else int(match[1])


@dataclass(frozen=True)
class FileSink(LiveSink):
    """Files of a format below a path, local or in an object store.

    The courier keeps the encoded rows of an epoch in memory until the epoch has passed.
    """

    format: str
    path: str
    options: tuple[tuple[str, Any], ...] = ()
    """Options of pyarrow's writer for the format."""

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return FileWriter(self, courier, schema)

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        return FileDelivery(self)

    def rewind(self, epoch: int) -> None:
        """Remove what couriers wrote in later epochs, and all files of the next one: it may have been
        interrupted in micro-batches."""
        files, following = Files(self.path), f"epoch={epoch + 1}/"
        for file in files.below(""):
            of = epoch_of(file.name)
            if (of is not None and of > epoch) or file.name.startswith(following):
                files.remove(file.name)


class FileWriter(LiveWriter):
    """Writes the files of one courier. An epoch without rows gets no file."""

    def __init__(self, sink: FileSink, courier: int, schema: pa.Schema) -> None:
        self._files = Files(sink.path, hides=True)
        self._name = f"courier-{courier}.{sink.format}"
        self._encoder = partial(ENCODERS[sink.format], schema, dict(sink.options))
        self._epoch: _EpochFile | None = None

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        if self._epoch is None:
            self._epoch = _EpochFile(self._encoder())
        self._epoch.add(batch)

    def flush(self, epoch: int) -> None:
        file, self._epoch = self._epoch, None
        if file is not None:
            self._files.write(f"epoch={epoch}/{self._name}", file.ended())

    def close(self) -> None:
        self._epoch = None


@dataclass(frozen=True)
class FileDelivery(Delivery):
    """Delivers epochs as files. Delivering an epoch again writes the same file again."""

    sink: FileSink

    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        writer = FileWriter(self.sink, ids.courier, rows.schema)
        writer.write(rows, ids)
        writer.flush(ids.epoch)


class _EpochFile:
    """The rows of one epoch, encoded in groups."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._kept, self._rows = encoder, list[pa.RecordBatch](), 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _KEPT_ROWS:
            self._encode()

    def ended(self) -> pa.Buffer:
        """Finish the file and return its bytes."""
        self._encode()
        return self._encoder.ended()

    def _encode(self) -> None:
        if self._kept:
            self._encoder.add(pa.concat_batches(self._kept))
        self._kept, self._rows = [], 0


class Encoder:
    """Encodes a file in memory, with one of pyarrow's writers."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._buffer = pa.BufferOutputStream()
        self._writer = make(self._buffer)

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def ended(self) -> pa.Buffer:
        self._writer.close()
        return self._buffer.getvalue()


class JsonLines(Encoder):
    """Encodes a file with one JSON object per line."""

    def __init__(self, schema: pa.Schema) -> None:
        self._format, self._buffer = Json(schema), io.BytesIO()

    def add(self, batch: pa.RecordBatch) -> None:
        self._buffer.writelines((value or b"{}") + b"\n" for value in self._format.encode(batch))

    def ended(self) -> pa.Buffer:
        return pa.py_buffer(self._buffer.getvalue())


ENCODERS: dict[str, Callable[[pa.Schema, dict[str, Any]], Encoder]] = {
    "parquet": lambda schema, options: Encoder(
        lambda file: pyarrow.parquet.ParquetWriter(file, schema, **options)
    ),
    "csv": lambda schema, options: Encoder(
        lambda file: pyarrow.csv.CSVWriter(
            file, schema, write_options=pyarrow.csv.WriteOptions(**options)
        )
    ),
    "arrow": lambda schema, options: Encoder(lambda file: pa.ipc.new_file(file, schema, **options)),
    "json": lambda schema, options: JsonLines(schema),
}
"""Format name -> a function that makes its encoder."""
