"""Joins of all rows of a key, also of change streams, in which rows are taken back.

Every row has a weight, 1 if it is put in and -1 if it is taken back. The weight of a pair is the product of
its rows' weights, so the output is the same in whatever order rows arrive. A row that is taken back before
it is put in is kept with weight -1 until then.

In a left join, a left row without a match is emitted with nulls for the right side. It is taken back
when its key gets its first right row, and put in again when the last right row is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.entry_groups import distinct, grouped
from penstock.operators.join import kernels
from penstock.operators.join.bounds import Get, Regular
from penstock.operators.join.step import DUE, LEFT, RIGHT, Columns, ExpiringJoin
from penstock.operators.join.stored_rows import HASH, MATCHED, mark, with_column
from penstock.operators.operator import CHANGE, EpochTime
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import OutputRows, limits, stamp
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags
from penstock.state.table.columns import Column

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan

_RIGHTS = "__rights"
"""State column with the sum of the weights of a key's right rows. Above zero, its left rows have a match."""
_UNTIL = "__until"
"""Column of stored rows with the end of their TTL, in the format of due columns."""


class RegularJoin(ExpiringJoin):
    """Operator of a join without time bounds. Keeps the rows of both sides, for ever or for the TTL."""

    def __init__(self, plan: JoinPlan, slots: int, step_id: str, ordered: bool) -> None:
        assert isinstance(plan.bound, Regular)
        self._ttl_ms, self._outer = plan.bound.ttl_ms, plan.how == "left"
        self.exact = (False, self._outer)
        bags = []
        for input, (name, schema) in enumerate(zip(("left", "right"), plan.inputs, strict=True)):
            if plan.equal[input] is not None:
                schema = schema.append(pa.field(HASH, pa.int64()))
            if self._outer and input == LEFT:
                schema = schema.append(pa.field(MATCHED, pa.bool_()))
            if self._ttl_ms is not None:
                schema = schema.append(pa.field(_UNTIL, pa.int64()))
            bags.append(Bags(name, schema))
        columns = [] if self._ttl_ms is None else list(self.side_columns)
        if self._outer:
            columns.append(Column(_RIGHTS, pa.int64()))
        super().__init__(plan, slots, step_id, ordered, (bags[LEFT], bags[RIGHT]), columns)

    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with rows whose TTL has ended. The end of the input does not end a TTL."""
        return {} if self._ttl_ms is None else dict.fromkeys(DUE, _limit(time))

    def _stamps(self, input: int, get: Get) -> Array:
        return fixed_values(get(_UNTIL))

    def _gone(
        self, input: int, entries: Array, owner: Array, ids: Array, places: Places | None
    ) -> Iterator[OutputRows]:
        """Rows expire without output: their pairs are not taken back."""
        if self.exact[input]:
            rights = self.table.column(_RIGHTS)
            np.subtract.at(rights, entries[owner], self._weights(input, ids))
        return iter(())

    def _meet(
        self, input: int, entries: Array, rows: pa.RecordBatch, places: Places | None
    ) -> Iterator[OutputRows]:
        at, ids = self._living(1 - input, *self.bags[1 - input].ids(entries))
        weights = np.ones(rows.num_rows, np.int64)
        if CHANGE in rows.schema.names:
            weights = fixed_values(rows.column(CHANGE)).astype(np.int64)
        products = weights[at] * self._weights(1 - input, ids) if self.plan.changes else weights
        yield from self._pairs(input, rows, places, at, ids, self._changes(products))
        if self._outer and input == RIGHT:
            yield from self._turned(entries, weights, places)
        touched = entries
        rows, kept = self._settled(input, entries, rows, weights)
        if self._outer and input == LEFT:
            alone = np.flatnonzero(~fixed_values(rows.column(MATCHED)))
            changes = self._changes(weights[alone])
            yield from self._alone(rows.column, alone, taken(places, alone), changes)
        if kept is not None:
            rows, entries = rows.take(fixed_array(kept, pa.int64())), entries[kept]
        self._store(input, entries, rows)
        if kept is not None:
            self._drop_empty(touched)

    def _store(self, input: int, entries: Array, rows: pa.RecordBatch) -> None:
        bags = self.bags[input]
        if self._ttl_ms is None:
            bags.append(entries, rows)
            return
        until = stamp(np.full(len(entries), self._time.now_ms + self._ttl_ms))
        rows = with_column(rows, _UNTIL, fixed_array(until, pa.int64()))
        super()._store(input, entries, rows)

    def _turned(
        self, entries: Array, weights: Array, places: Places | None
    ) -> Iterator[OutputRows]:
        """Output of left rows that got their first match or lost their last one by these new right rows.
        Its place is that of the first new right row of the key, or of the last one."""
        left, (some, order, ends) = self.bags[LEFT], grouped(entries)
        before = self.table.column(_RIGHTS)[some]
        np.add.at(self.table.column(_RIGHTS), entries, weights)
        after = self.table.column(_RIGHTS)[some]
        for matched in (True, False):
            groups = np.flatnonzero(((before > 0) != matched) & ((after > 0) == matched))
            turned, by = some[groups], order[ends[groups] if matched else ends[groups + 1] - 1]
            owner, ids = self._living(LEFT, *left.ids(turned))
            others = fixed_values(left.values(MATCHED, ids)) != matched
            owner, ids = owner[others], ids[others]
            weights = self._weights(LEFT, ids) * (-1 if matched else 1)
            lefts, rows = self._columns(LEFT, ids), np.arange(len(ids))
            yield from self._alone(lefts, rows, taken(places, by[owner]), self._changes(weights))
            mark(left, turned[owner], ids, matched)

    def _settled(
        self, input: int, entries: Array, rows: pa.RecordBatch, weights: Array
    ) -> tuple[pa.RecordBatch, Array | None]:
        """Cancel equal rows of opposite weights. Returns the new rows with their match marks, and the
        numbers of those to store (None for all). A row that cancels an unmatched left row inherits its
        mark, and so takes back the output with nulls."""
        bags, outer = self.bags[input], self._outer and input == LEFT
        matched = np.ones(rows.num_rows, np.bool_)
        if outer:
            matched = self.table.column(_RIGHTS)[entries] > 0
        kept, equal = None, self.plan.equal[input]
        if equal is not None:
            rows = with_column(rows, HASH, equal.hashes(rows))
            same = equal.find(bags, entries, rows)
            stored = len(same.ids)
            flags = np.ones(stored, np.bool_)
            if outer:
                flags = fixed_values(bags.values(MATCHED, same.ids))
            flags = np.append(flags, matched)
            signs = np.append(self._weights(input, same.ids), weights)
            numbers = np.append(same.stored, same.new)
            gone = kernels.cancel(numbers, signs, flags, same.groups, stored)
            matched, kept = flags[stored:], np.flatnonzero(~gone[stored:])
            self._take_out(bags, same.entries[gone[:stored]], same.ids[gone[:stored]])
        if outer:
            rows = with_column(rows, MATCHED, fixed_array(matched, pa.bool_()))
        return rows, kept

    def _take_out(self, bags: Bags, entries: Array, ids: Array) -> None:
        if len(ids):
            touched = distinct(entries)
            owner, held = bags.ids(touched)
            stay = ~np.isin(held, ids)
            bags.keep(touched, owner[stay], held[stay])

    def _living(self, input: int, owner: Array, ids: Array) -> tuple[Array, Array]:
        """Leave out rows whose TTL has ended but that have not been removed yet."""
        if self._ttl_ms is None or not len(ids):
            return owner, ids
        still = fixed_values(self.bags[input].values(_UNTIL, ids)) > _limit(self._time)
        return owner[still], ids[still]

    def _weights(self, input: int, ids: Array) -> Array:
        if self.plan.equal[input] is None:
            return np.ones(len(ids), np.int64)
        return fixed_values(self.bags[input].values(CHANGE, ids)).astype(np.int64)

    def _changes(self, weights: Array) -> Columns | None:
        if not self.plan.changes:
            return None
        return lambda low, high: [fixed_array(weights[low:high].astype(np.int8), pa.int8())]


def _limit(time: EpochTime) -> int:
    """The greatest value of `_UNTIL` whose rows have expired at this time."""
    (limit,) = limits(EpochTime(time.epoch, time.now_ms), "processing").values()
    return limit
