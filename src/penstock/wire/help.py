"""Messages of help: a host sends some keys' state and rows to another one, and gets back what became of them.

A request is one batch with two tables: the entries of the rows' keys, complete, in the format of a delta, and
the rows. So is its answer: the entries that changed, and the output. Dead letters follow as metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.operator import EpochTime

HELPED = b'"helped":'
"""Bytes that occur in the header of a request for help, but not in those of channels and live streams."""
_TABLES = pa.schema([pa.field("table", pa.large_binary(), nullable=False)])


@dataclass(frozen=True)
class HelpHeader:
    """The header of a request: apply these rows, of one channel, for another host."""

    helped: str
    """Name of the host that owns the rows' slots."""
    epoch: int
    run: int
    step: str
    partition: int
    attempt: int
    time: EpochTime
    kind: str
    """Kind of the rows; see `Operator.apply`."""

    @property
    def where(self) -> dict[str, object]:
        """Facts of the request for fault points."""
        names = ("step", "epoch", "run", "partition", "attempt")
        return {name: getattr(self, name) for name in names}


def packed(tables: Iterable[pa.Table]) -> pa.RecordBatch:
    """Tables of any schemas as one batch.

    >>> tables = pa.table({"n": [1, 2]}), pa.table({"word": ["a"]})
    >>> unpacked(packed(tables)) == list(tables)
    True
    """
    return pa.RecordBatch.from_arrays(
        [pa.array([_stream(table) for table in tables], pa.large_binary())], schema=_TABLES
    )


def unpacked(batch: pa.RecordBatch) -> list[pa.Table]:
    """The tables in a batch that `packed` made."""
    streams = (stream.as_buffer() for stream in batch.column(0))
    return [pa.ipc.open_stream(stream).read_all() for stream in streams]


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
