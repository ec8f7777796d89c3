"""What operators have in common whose state is all in one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.operators.operator import ROWS, Answer
from penstock.state.table import ColumnTable


@contextmanager
def whole_or_not(table: ColumnTable) -> Iterator[None]:
    """What is done to the table inside is undone by an exception."""
    mark = table.savepoint()
    try:
        yield
    except BaseException:
        table.undo(mark)
        raise


class TableOperator(ABC):
    """Takes in channels whole or not at all; a rollback of the table is a rollback of it all."""

    table: ColumnTable
    step_id: str
    kinds: ClassVar[tuple[str, ...]] = (ROWS,)
    """What channels may bring."""

    def apply(self, kind: str, batches: list[pa.RecordBatch]) -> Answer:
        """Take in one closed channel, whole or not at all."""
        if kind not in self.kinds:
            raise ProtocolError(
                f"step {self.step_id!r} cannot take input of the kind {kind!r}",
                hint="couriers and hosts must run the same version of Penstock",
            )
        with whole_or_not(self.table):
            return Answer(list(self._take_in(kind, batches)))

    @abstractmethod
    def _take_in(self, kind: str, batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Put a channel's batches into the table; gives the output that they cause at once."""

    def rollback(self) -> None:
        """Back to the last sealed version."""
        self.table.rollback()

    def shutdown(self) -> None:  # noqa: B027
        """Nothing is held outside the table."""
