"""What couriers read from: a source in the driver, its readers in couriers, and what a poll gives."""

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
    """Rows of one source partition, in their order."""

    batch: pa.RecordBatch
    partition: str
    position: Any
    """Where to start again after these rows; a JSON value."""
    bad: tuple[DeadLetter, ...] = ()
    """What stood between these rows and could not be read: to be set aside, or refused (`bad_input`)."""


class LiveReader(ABC):
    """Reads some partitions of a source, in a courier. Used by one thread."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come, of a source that has an end."""
        return False

    @abstractmethod
    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        """All rows that are there, at most about `most_rows`; waits up to `wait_ms` for the first."""

    def behind(self) -> int:
        """Rows that are there and were not read, as far as the reader knows without asking anybody. May be
        called by another thread than the reader's."""
        return 0

    def commit(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 - few sources care
        """The rows before these positions, by partition, will not be asked for again."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and threads. Called once."""


class LiveSource(ABC):
    """A source that couriers read by themselves. Picklable; two that are equal are the same source.

    In micro-batches Spark reads it: see `penstock.spark.sources`.
    """

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def arrival(self) -> str | None:
        """The column that tells when a row arrived; None: no column does."""
        return None

    @property
    def decoder(self) -> SourceDecoder:
        """What makes rows of this schema of the rows that Spark reads, in micro-batches."""
        return Cast(self.schema)

    @abstractmethod
    def partitions(self) -> list[str]:
        """The names of its partitions. Asked in the driver, when the flow starts."""

    @abstractmethod
    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Where reading begins, by partition: JSON values. Asked in the driver, once for a new flow."""

    def appeared(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Where reading begins in partitions that came to be after the flow had begun."""
        return self.first(partitions)

    def positions_at(self, offset: Any) -> dict[str, Any]:
        """Positions by partition, at an offset of Spark's log: for a flow that ran in micro-batches."""
        raise self._one_way()

    def offset_at(self, positions: Mapping[str, Any]) -> Any:
        """The offset of Spark's log at these positions: for a flow that ran live."""
        raise self._one_way()

    def _one_way(self, why: str = "") -> CheckpointError:
        return CheckpointError(
            f"a flow that reads {type(self).__name__} cannot go on in the other mode{why and ': '}{why}",
            hint="start it in the mode that it had",
        )

    @abstractmethod
    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        """A reader of exactly these partitions, each from its position on."""


@dataclass(frozen=True)
class Cast:
    """Takes rows whose columns have the right names, and gives them the types of the schema.

    Spark has timestamps in the session's time zone.
    """

    schema: pa.Schema

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[DeadLetter]]:
        return batch.cast(self.schema), ()
