"""Joins whose rows go one by one, each at its own time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.operators.due import due_entries
from penstock.operators.join import kernels
from penstock.operators.join.bounds import Get
from penstock.operators.join.step import JoinOperator
from penstock.operators.operator import EpochTime
from penstock.operators.places import Places
from penstock.operators.table_operator import Given
from penstock.state.arrays import Array
from penstock.state.table.columns import Column

_FEW_ROWS = 64
"""Of a bag: so many are looked through whenever one of them may go."""
DUE = ("__due_left", "__due_right")
"""When an entry's rows of each side are looked through. The sides have a column each, so that
short-lived rows of one do not stir long-lived ones of the other."""


class ExpiringJoin(JoinOperator):
    """Rows can go from the time on that `_stamps` gives. They may stay longer, since looking through
    a large bag for a few rows is not worth it: what they must not match they do not match."""

    due_columns: ClassVar[list[Column]] = [Column(name, pa.int64()) for name in DUE]
    exact: tuple[bool, bool] = (False, False)
    """Whether rows of each side must go at their very time."""

    @abstractmethod
    def _stamps(self, input: int, get: Get) -> Array:
        """When rows of a side, of columns that `get` gives, can go: as due columns hold it."""

    def _gone(
        self, input: int, entries: Array, owner: Array, ids: Array, places: Places | None
    ) -> Iterator[Given]:
        """What to give when these rows of these entries (see `Bags.ids`) go, and where it belongs."""
        return iter(())

    def _expire(self, time: EpochTime) -> Iterator[Given]:
        stirred = []
        for input, (name, limit) in enumerate(self.due(time).items()):
            entries = due_entries(self.table, {name: limit})
            if not len(entries):
                continue
            stirred.append(entries)
            self.table.touch(entries)
            owner, ids = self.bags[input].ids(entries)
            stamps = self._stamps(input, self._columns(input, ids))
            over = stamps <= limit
            going = owner[over]
            places = self._due_places(stamps[over], entries[going], time.final)
            yield from self._gone(input, entries, going, ids[over], places)
            still = ~over
            owner, stamps = owner[still], stamps[still]
            self.bags[input].keep(entries, owner, ids[still])
            due = kernels.next_due(owner, stamps, len(entries), self.exact[input])
            self.table.column(name)[entries] = due
        for entries in stirred:
            self._drop_empty(entries)

    def _store(self, input: int, entries: Array, rows: pa.RecordBatch) -> None:
        """Put rows into their side's bags."""
        bags = self.bags[input]
        bags.append(entries, rows)
        stamps, counts = self._stamps(input, rows.column), bags.counts(entries)
        few = np.iinfo(np.int64).max if self.exact[input] else _FEW_ROWS
        kernels.bring_forward(self.table.column(DUE[input]), entries, stamps, counts, few)
