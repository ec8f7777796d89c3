"""The interfaces of sinks: a sink in the driver, its writers in couriers, and the ids of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SettingError

NEVER = float("inf")


@dataclass(frozen=True)
class RowIds:
    """The ids of a batch's rows: row i is row number `first + i` of a courier's output in an epoch.

    After a failure, the next run of the couriers writes all rows since the newest checkpoint again, perhaps
    in another order and with other epoch boundaries. So a row is valid unless a later run began with its
    epoch or an earlier one. A consumer that keeps only valid rows has each row once. A run may end before it
    writes any row, so rows also name the runs before their own.

    >>> RowIds(courier=2, epoch=7, first=40).text(2)
    '2-7-42'
    >>> RowIds(2, 7, 40, run=1794937274285, since=5).run_text
    '1794937274285-5'
    >>> RowIds(2, 7, 40, run=1794937274285, since=5, earlier=((1794937270000, 3),)).run_text
    '1794937274285-5,1794937270000-3'
    """

    courier: int
    epoch: int
    first: int
    run: int = 0
    """Start of the run, in milliseconds since 1970. A later run has a higher one."""
    since: int = 0
    """The run's first epoch. Rows of earlier runs in this epoch or later ones are no longer valid."""
    earlier: tuple[tuple[int, int], ...] = ()
    """(start, first epoch) of the newest runs before it that began with an earlier epoch."""

    def text(self, row: int) -> str:
        """The id of the batch's row with this index."""
        return f"{self.courier}-{self.epoch}-{self.first + row}"

    @property
    def run_text(self) -> str:
        """The run and its first epoch, then those of earlier runs, as text."""
        return ",".join(f"{run}-{since}" for run, since in ((self.run, self.since), *self.earlier))


class LiveWriter(ABC):
    """Writes the output of one courier. Used by one thread, except for `release`."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        """Write rows, or keep them until `flush`. Rows of an epoch come before those of the next."""

    def work(self, more: bool = False) -> float:
        """Do what is due. Returns when to call it again, on the clock of `time.monotonic`. Called after
        writes, and when that time has come. With `more`, other rows of the same chunk follow in a moment."""
        return NEVER

    @abstractmethod
    def flush(self, epoch: int) -> None:
        """Wait until all rows of the epoch are written. Raises an error if one could not be. Called for each
        epoch, also for those without rows."""

    def release(self, epoch: int) -> None:  # noqa: B027 - most write rows at once
        """Publish rows that were kept until their epoch was durable: this epoch and those before it are.
        Called by another thread than the other methods."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Rows that were not flushed may be dropped: they will come again."""


class Delivery(ABC):
    """Publishes the rows of one courier's durable epochs, each epoch once. Used by one thread."""

    @abstractmethod
    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        """Publish all rows of a courier's epoch, unless they are published already. Returns when they are
        visible. Epochs come in order."""

    def close(self) -> None:  # noqa: B027 - few hold anything
        """Close connections."""


class LiveSink(ABC):
    """A destination for a live flow's output. Picklable."""

    keeps = False
    """Whether writers keep rows until their epoch is durable, and need a call of `release` then."""

    @abstractmethod
    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        """Make the writer of a courier, for rows of this schema. Called in the courier when a run begins."""

    def check(self, schema: pa.Schema) -> None:  # noqa: B027 - few sinks care
        """Raise an error if the sink cannot take this schema. Called in the driver before anything runs."""

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        """Make the object that delivers a courier's rows exactly once, for `delivery="transactional"`. Raises
        an error if the sink has none."""
        raise SettingError(
            f"{type(self).__name__} does not support exactly-once delivery",
            hint='use delivery="at_once", or a Kafka or file sink',
        )

    def rewind(self, epoch: int) -> None:  # noqa: B027 - few sinks can
        """Remove the output of epochs after this one, if possible: they run again, perhaps with fewer
        couriers. Called in the driver before a run begins, when no writer is active."""
