"""The interfaces of sources: a source in the driver, its readers in couriers, and the result of a poll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import CheckpointError
from penstock.model import DeadLetter
from penstock.plan.steps import SourceDecoder


@dataclass(frozen=True)
class Polled:
    """Rows of one source partition, in order."""

    batch: pa.RecordBatch
    partition: str
    position: Any
    """Position after these rows, from which reading can resume; a JSON value."""
    bad: tuple[DeadLetter, ...] = ()
    """Values among these rows that could not be decoded. They are set aside, or fail the flow."""


class LiveReader(ABC):
    """Reads some partitions of a source, in a courier. Used by one thread, except for `behind`."""

    @property
    def ended(self) -> bool:
        """Whether a bounded source has no more rows."""
        return False

    @abstractmethod
    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        """Read available rows, about `most_rows` at most. Waits `wait_ms` milliseconds for the first."""

    def behind(self) -> int:
        """Number of available rows that were not read, as far as is known without a request.

        May be called by another thread.
        """
        return 0

    def commit(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 - few sources care
        """Tell the source that rows before these positions, by partition, are not needed again."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and end threads. Called once."""


class LiveSource(ABC):
    """A source that couriers read by themselves. Picklable; equal objects are the same source.

    In micro-batches, Spark reads it: see `penstock.spark.sources`.
    """

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def arrival(self) -> str | None:
        """Name of the column with the arrival time of rows; None if there is none."""
        return None

    @property
    def decoder(self) -> SourceDecoder:
        """Decoder that converts the rows that Spark reads in micro-batches to this schema."""
        return Cast(self.schema)

    @abstractmethod
    def partitions(self) -> list[str]:
        """Names of its partitions. Called in the driver, when the flow starts."""

    @abstractmethod
    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Start positions by partition, as JSON values. Called in the driver, once for a new flow."""

    def appeared(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Start positions of partitions that were created after the flow had started."""
        return self.first(partitions)

    def positions_at(self, offset: Any) -> dict[str, Any]:
        """Positions for an offset in Spark's log, to continue a flow that ran in micro-batches."""
        raise self._one_way()

    def offset_at(self, positions: Mapping[str, Any]) -> Any:
        """Offset in Spark's log for these positions, to continue a flow that ran in live mode."""
        raise self._one_way()

    def _one_way(self, why: str = "") -> CheckpointError:
        return CheckpointError(
            f"a flow that reads {type(self).__name__} cannot switch modes{why and ': '}{why}",
            hint="start it in the mode that it ran in before",
        )

    @abstractmethod
    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        """Make a reader of exactly these partitions, each from its position on."""


@dataclass(frozen=True)
class Cast:
    """Decoder that casts columns to the schema's types: Spark has timestamps in the session's time zone."""

    schema: pa.Schema

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[DeadLetter]]:
        return batch.cast(self.schema), ()
