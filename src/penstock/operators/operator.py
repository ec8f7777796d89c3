"""What a host runs for one step: the operator protocol and the values it speaks in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.state.keys import Keys
from penstock.state.table import ColumnTable

ROWS, PARTIALS = "rows", "partials"
"""What the batches of a channel are: rows of the step's input, or partial states of it."""


@dataclass(frozen=True)
class EpochTime:
    """The times that an epoch decides by. They come with the plan, so that a retry decides the same."""

    epoch: int
    now_ms: int
    watermark_ms: int | None = None
    final: bool = False
    """A bounded input has ended: every window closes, every event-time timer fires."""


@dataclass(frozen=True)
class DeadLetter:
    """A row that user code, or a keyed step, could not take."""

    step: str
    key: str
    row: str
    """The row as JSON text."""
    error: str


@dataclass(frozen=True)
class Answer:
    """What applying one channel gave back."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class Operator(Protocol):
    """One step on one host. Pure and single-threaded: the host calls it under its lock.

    The order of calls in an epoch's run is `open`, then `apply` for each channel as it closes, then
    `close`; after that either the table is sealed or everything is rolled back and run again.
    """

    table: ColumnTable
    output: pa.Schema

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of a channel's batches: all that `apply` will look at in the table."""
        ...

    def due(self, time: EpochTime) -> dict[str, int]:
        """What `open` will look at: entries in which one of these columns is not zero and at most
        so much. Empty: it looks at none."""
        ...

    def open(self, time: EpochTime) -> Answer:
        """Fire what the epoch's times make due. The answer goes to the channel of partition 0."""
        ...

    def apply(self, kind: str, batches: list[pa.RecordBatch]) -> Answer:
        """Take in one closed channel, whole or not at all: on an exception nothing has changed."""
        ...

    def close(self) -> Answer:
        """The last channel has closed: give the output that is due once per epoch."""
        ...

    def rollback(self) -> None:
        """Return to the last sealed version, the table included."""
        ...

    def shutdown(self) -> None:
        """The host ends: let user code close what it holds. Called once, after everything else."""
        ...
