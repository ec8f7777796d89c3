"""What couriers write to: a sink in the driver, its writers in couriers, and the ids of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SettingError

NEVER = float("inf")


@dataclass(frozen=True)
class RowIds:
    """The ids of a batch's rows: row i is number `first + i` of what a courier gave in an epoch.

    After a failure another run of the couriers gives all rows since the newest checkpoint again, in another
    order perhaps, and cut into other epochs. So a row counts unless a later run began with its epoch or
    before: who keeps what counts has each row once. A run may end before it has given any row: rows also tell
    of the runs before their own.

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
    """When the run began, in milliseconds of the time of day; a later run has a higher one."""
    since: int = 0
    """The run's first epoch: what earlier runs gave of it, and of those after it, counts no more."""
    earlier: tuple[tuple[int, int], ...] = ()
    """The newest runs before it that began with an earlier epoch: when, and with which one."""

    def text(self, row: int) -> str:
        """The id of a row of the batch."""
        return f"{self.courier}-{self.epoch}-{self.first + row}"

    @property
    def run_text(self) -> str:
        """The run and its first epoch, then those of earlier runs."""
        return ",".join(f"{run}-{since}" for run, since in ((self.run, self.since), *self.earlier))


class LiveWriter(ABC):
    """Writes what one courier gives. Used by one thread."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        """Let rows leave, or keep them until `flush`. Rows of an epoch come before those of the next."""

    def work(self, more: bool = False) -> float:
        """Do what is due; gives when to look again, as `time.monotonic` tells it. Called after writes, and
        when it is time to look again. With `more`, other rows of the same chunk will come in a moment."""
        return NEVER

    @abstractmethod
    def flush(self, epoch: int) -> None:
        """Returns when all rows of the epoch have left; raises an error if one could not. A writer gets
        this for each epoch, also for those that gave it no rows."""

    def release(self, epoch: int) -> None:  # noqa: B027 - most let rows leave at once
        """The epoch, and those before it, are durable: rows that were kept for that may leave. Called by
        another thread than all else."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Rows that were not flushed need not leave: they will come again."""


class Delivery(ABC):
    """Lets the rows of durable epochs of one courier be seen. Used by one thread."""

    @abstractmethod
    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        """Let all rows that a courier gave in an epoch be seen, unless they are already. Returns when they
        are; epochs come in their order."""

    def close(self) -> None:  # noqa: B027 - few hold anything
        """Let go of connections."""


class LiveSink(ABC):
    """Where a live flow's output goes. Picklable."""

    keeps = False
    """Whether writers keep rows until their epoch is durable, and want to hear of that."""

    @abstractmethod
    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        """The writer of a courier, for rows of this schema. Called in the courier when a run begins."""

    def check(self, schema: pa.Schema) -> None:  # noqa: B027 - few sinks care
        """Refuse rows of a schema that it cannot take. Called in the driver before anything runs."""

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        """What delivers a courier's rows once, for `delivery="transactional"`; refused where none can."""
        raise SettingError(
            f"{type(self).__name__} cannot take rows exactly once",
            hint='use delivery="at_once", or a sink of Kafka or of files',
        )

    def rewind(self, epoch: int) -> None:  # noqa: B027 - few sinks can
        """Take back what was written of epochs after this one, where that is possible: they are run again,
        perhaps by fewer couriers. Called in the driver before a run begins, when no writer works."""
