"""What couriers read from: a source in the driver, its readers in couriers, and what a poll gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.model import DeadLetter


@dataclass(frozen=True)
class Polled:
    """Rows of one source partition, in their order."""

    batch: pa.RecordBatch
    partition: str
    position: Any
    """Where to start again after these rows; a JSON value."""
    bad: tuple[DeadLetter, ...] = ()
    """What was between these rows and could not be read: set aside, or refused."""


class LiveReader(ABC):
    """Reads some partitions of a source, in a courier. Used by one thread."""

    ended: bool = False
    """Whether nothing more will come, of a source that has an end."""

    @abstractmethod
    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        """All rows that are there, at most about `most_rows`; waits up to `wait_ms` for the first."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and threads. Called once."""


class LiveSource(ABC):
    """A source that couriers read by themselves. Picklable; two that are equal are the same source."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @abstractmethod
    def partitions(self) -> list[str]:
        """The names of its partitions. Asked in the driver, when the flow starts."""

    @abstractmethod
    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Where reading begins, by partition: JSON values. Asked in the driver, once for a new flow."""

    @abstractmethod
    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        """A reader of exactly these partitions, each from its position on."""
