"""Base classes of the join operators: two bags of rows per key, and the output of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from penstock.operators.join import kernels
from penstock.operators.join.bounds import Get
from penstock.operators.operator import BAG, PARTIALS, ROWS, Answer, EpochTime
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import (
    OutputRows,
    TableOperator,
    answer_of,
    due_entries,
    rows_of_lists,
    whole_or_not,
)
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.keys.codec import Keys
from penstock.state.table.bags import Bags
from penstock.state.table.columns import Column
from penstock.state.table.table import KEY, ColumnTable

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan

LEFT, RIGHT = 0, 1
_ROWS_PER_BATCH = 1 << 17
Columns = Callable[[int, int], list[pa.Array]]
"""Function that returns columns of the output rows from one row number up to another."""


class JoinOperator(TableOperator, ABC):
    """One join on one host. Each row of a channel is matched with the other side's stored rows of its
    key, then stored. All state is in the table: a bag of rows per side.

    Right rows of a channel are applied before its left rows, so that left rows which have a match are not
    emitted without one first. Therefore a channel cannot be divided. A pair has the place of the row that
    arrived second.
    """

    kinds = (PARTIALS, ROWS)
    divisible = False

    def __init__(
        self,
        plan: JoinPlan,
        slots: int,
        step_id: str,
        ordered: bool,
        bags: tuple[Bags, Bags],
        columns: Sequence[Column],
    ) -> None:
        table = ColumnTable(plan.codec, [*(b.column for b in bags), *columns], slots)
        super().__init__(plan, table, step_id, ordered)
        self.plan, self.bags = plan, bags
        self.wire = {PARTIALS: plan.bags}
        for some in bags:
            some.bind(table)

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of both sides' rows, in row order, or of bags."""
        if kind == PARTIALS:
            return super().keys(kind, batches)
        return [self.plan.keys_of_both(batch) for batch in batches]

    @abstractmethod
    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with rows that may have expired."""

    def begin(self, time: EpochTime) -> None:
        """Begin a round. TTLs of its rows begin at this time."""
        super().begin(time)
        for some in self.bags:
            some.tidy()

    def fire(self) -> Answer:
        """Remove rows that can no longer match, and emit left rows that never did. When the input has
        ended, the remaining rows are removed in `close`: the rows of the last round may still match."""
        return self._expired(replace(self._time, final=False))

    def close(self) -> Answer:
        """Emit nothing, unless the input has ended: then remove all rows as in `fire`."""
        if not self._time.final:
            return Answer()
        return self._expired(self._time)

    def _applied(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Answer:
        if kind == PARTIALS:
            return answer_of(self._met_bags(batches))
        return answer_of(self._met(batches, places))

    def _met(
        self, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Iterator[OutputRows]:
        parts: tuple[list[pa.RecordBatch], ...] = ([], [])
        wheres: tuple[list[Places], ...] = ([], [])
        for batch, where in zip(batches, places, strict=True):
            for input, rows in self.plan.tagged.unpack(batch):
                parts[input].append(rows)
                if where is not None:
                    wheres[input].append(where.take(self.plan.tagged.rows(input, batch)))
        for input in (RIGHT, LEFT):
            if parts[input]:
                rows = parts[input][0]
                if len(parts[input]) > 1:
                    rows = pa.concat_batches(parts[input])
                entries = self.table.upsert(self.plan.keys(input, rows))
                joined = Places.joined(wheres[input]) if self.ordered else None
                yield from self._meet(input, entries, rows, joined)

    def _met_bags(self, batches: list[pa.RecordBatch]) -> Iterator[OutputRows]:
        """Match and store the rows of bags. Flows with bags are never ordered."""
        bags = [bag for batch in batches if batch.num_rows for bag in self._unpacked(batch)]
        for input in (RIGHT, LEFT):
            for _, keys, sizes, rows in (bag for bag in bags if bag[0] == input):
                entries = np.repeat(self.table.upsert(keys), sizes)
                yield from self._meet(input, entries, rows, None)

    def _unpacked(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Keys, Array, pa.RecordBatch]]:
        """Yield, for each side in a batch of bags, its keys, the number of rows of each, and the rows."""
        keys, lists, tagged = (
            self._codec.from_storage(batch.column(KEY)),
            batch.column(BAG),
            self.plan.tagged,
        )
        rows = rows_of_lists(lists, tagged.schema)
        bag_of = np.repeat(np.arange(len(lists)), fixed_values(lists.value_lengths()))
        for input, part in tagged.unpack(rows):
            sizes = np.bincount(bag_of[tagged.rows(input, rows)], minlength=len(lists))
            some = np.flatnonzero(sizes)
            yield input, keys.take(some), sizes[some], part

    # -- differences between the kinds of joins

    @abstractmethod
    def _expire(self, time: EpochTime) -> Iterator[OutputRows]:
        """Remove expired rows. Yields the output that this causes."""

    @abstractmethod
    def _meet(
        self, input: int, entries: Array, rows: pa.RecordBatch, places: Places | None
    ) -> Iterator[OutputRows]:
        """Match rows of one side with the other side's, then store them. Yields the output. The entries
        must be touched."""

    # -- making output

    def _pairs(
        self,
        input: int,
        new: pa.RecordBatch,
        places: Places | None,
        rows: Array,
        ids: Array,
        more: Columns | None = None,
    ) -> Iterator[OutputRows]:
        """Output of pairs: new row rows[i] of one side with stored row ids[i] of the other side."""
        other = self.bags[1 - input]
        all_once = len(rows) == new.num_rows and bool((rows == np.arange(len(rows))).all())

        def columns(low: int, high: int) -> list[pa.Array]:
            at = fixed_array(rows[low:high], pa.int64())
            mine = [new.column(name) for name in self.plan.kept[input]]
            if all_once:
                mine = [column.slice(low, high - low) for column in mine]
            else:
                mine = [column.take(at) for column in mine]
            theirs = [other.values(name, ids[low:high]) for name in self.plan.kept[1 - input]]
            return mine + theirs if input == LEFT else theirs + mine

        return self._batches(len(rows), taken(places, rows), columns, more)

    def _alone(
        self, lefts: Get, rows: Array, places: Places | None, more: Columns | None = None
    ) -> Iterator[OutputRows]:
        """Output of left rows without a right row. `lefts` returns their columns by name; `places` are
        those of the output."""
        names, others = self.plan.kept[LEFT], self.plan.kept[RIGHT]
        types = self.output.types[len(names) : len(names) + len(others)]

        def columns(low: int, high: int) -> list[pa.Array]:
            at = fixed_array(rows[low:high], pa.int64())
            mine = [lefts(name).take(at) for name in names]
            return mine + [pa.nulls(high - low, type) for type in types]

        return self._batches(len(rows), places, columns, more)

    def _batches(
        self, rows: int, places: Places | None, columns: Columns, more: Columns | None
    ) -> Iterator[OutputRows]:
        for low in range(0, rows, _ROWS_PER_BATCH):
            high = min(rows, low + _ROWS_PER_BATCH)
            arrays = columns(low, high) + ([] if more is None else more(low, high))
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.output)
            yield OutputRows(batch, None if places is None else places.slice(low, high - low))

    def _columns(self, input: int, ids: Array) -> Get:
        """A function that returns columns of these stored rows by name."""
        bags = self.bags[input]
        return lambda name: bags.values(name, ids)

    def _drop_empty(self, entries: Array) -> None:
        """Remove the entries that have no rows left."""
        held = self.bags[LEFT].counts(entries) + self.bags[RIGHT].counts(entries)
        self.table.remove(entries[(held == 0) & self.table.present(entries)])

    def _expired(self, time: EpochTime) -> Answer:
        with whole_or_not(self.table):
            return answer_of(self._expire(time))


_FEW_ROWS = 64
"""Rows up to which a bag is scanned whenever one of them may have expired."""
DUE = ("__due_left", "__due_right")
"""Columns with the times at which an entry's left and right rows are scanned. With one column per side,
short-lived rows of one side do not cause scans of long-lived rows of the other."""


class ExpiringJoin(JoinOperator):
    """Base class of joins whose rows expire one by one, at the times of `_stamps`.

    Rows may be stored longer than that, since scanning a large bag for a few rows does not pay. Expired rows
    match nothing, whether they are still stored or not.
    """

    side_columns: ClassVar[list[Column]] = [Column(name, pa.int64()) for name in DUE]
    """State columns of the due times of both sides."""
    exact: tuple[bool, bool] = (False, False)
    """Whether rows of the left and the right side must be removed as soon as they expire."""

    @abstractmethod
    def _stamps(self, input: int, get: Get) -> Array:
        """Expiry times of rows of a side, in the format of due columns; `get` returns the rows' columns."""

    def _gone(
        self, input: int, entries: Array, owner: Array, ids: Array, places: Places | None
    ) -> Iterator[OutputRows]:
        """Output for expired rows of these entries (see `Bags.ids`), with these output places."""
        return iter(())

    def _expire(self, time: EpochTime) -> Iterator[OutputRows]:
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
