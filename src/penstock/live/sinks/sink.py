"""What live couriers write to: a sink in the driver, its writers in couriers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class RowIds:
    """The ids of a batch's rows: row i has the number `first` + i among those of a courier and an epoch."""

    courier: int
    epoch: int
    first: int


class LiveWriter(ABC):
    """Writes what leaves one courier. Used by one thread."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        """Let these rows leave, at once."""

    @abstractmethod
    def flush(self, epoch: int) -> None:
        """Return when all rows of the epoch have left."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files. Called once."""


class LiveSink(ABC):
    """A sink that couriers write to by themselves. Picklable."""

    @abstractmethod
    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        """The writer of one courier, for rows of this schema."""
