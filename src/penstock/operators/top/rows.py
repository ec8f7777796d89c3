"""Rows that are kept already and rows that have just come, as one list of rows to be sorted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.ordering import run_starts, sort_order
from penstock.operators.top import kernels
from penstock.operators.top.order import By
from penstock.state.arrays import Array, fixed_array, one_chunk
from penstock.state.table.bags import Bags


class MixedRows:
    """First the rows of bags by these ids, then these rows of a batch.

    Columns are put together only when they are asked for, and only of the rows that need them: most
    rows are told apart by the first column of an order.
    """

    def __init__(self, bags: Bags, ids: Array, batch: pa.RecordBatch, rows: Array) -> None:
        self._bags, self._ids, self._batch, self._rows = bags, ids, batch, rows

    def first(
        self, n: int, order: Sequence[By], rest: Sequence[By], groups: Array, with_ties: bool
    ) -> Array:
        """The first n rows of each group, by group and order.

        What the order leaves open the rest decides, and then which row was first. With ties, rows
        that are equal in the order to the n-th are among them.
        """
        columns = list(self._columns(order, np.arange(len(groups))))
        places: Array = sort_order(columns, groups)
        starts = run_starts(columns, groups, places)
        # all of a run of equal rows, or none of it
        near = kernels.places(groups[places], starts, True) < n
        places, starts = places[near], starts[near]
        tied = np.flatnonzero(~(starts & np.append(starts[1:], True)))
        if len(tied):
            rows = places[tied]
            remaining = list(self._columns(rest, rows))
            places[tied] = rows[sort_order(remaining, np.cumsum(starts[tied]))]
        if not with_ties:
            places = places[kernels.places(groups[places], starts, False) < n]
        return places

    def _columns(self, order: Sequence[By], places: Array) -> Iterator[tuple[pa.Array, bool]]:
        return ((self._column(by.column, places), by.descending) for by in order)

    def _column(self, name: str, places: Array) -> pa.Array:
        old = places < len(self._ids)
        kept = self._bags.values(name, self._ids[places[old]])
        rows = fixed_array(self._rows[places[~old] - len(self._ids)], pa.int64())
        came = one_chunk(self._batch.column(name)).take(rows)
        if not len(kept) or not len(came):
            return came if not len(kept) else kept
        both = pa.concat_arrays([kept, came])
        back = np.empty(len(places), np.int64)
        back[np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])] = np.arange(len(places))
        if (back[1:] > back[:-1]).all():
            return both
        return both.take(fixed_array(back, pa.int64()))
