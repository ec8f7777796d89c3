"""The operator of an aggregate step, which runs on hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import in_step
from penstock.operators.aggregate.signed_accumulators import SignedCount, SignedSum
from penstock.operators.aggregate.state import AggregateState
from penstock.operators.changes import differing, signs
from penstock.operators.entry_groups import pieces
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime
from penstock.operators.places import Places
from penstock.operators.table_operator import OutputRows, TableOperator, answer_of
from penstock.state.arrays import Array, fixed_array
from penstock.state.table.table import ColumnTable

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan

ROWS_PER_BATCH = 1 << 18
"""Maximum number of rows of an output batch."""


PlacesOf = Callable[[Array], Places | None]
"""Function that returns the output places of entries."""


class AggregateRows:
    """Output rows of entries in a table: some leading columns, then the aggregates."""

    def __init__(
        self,
        plan: AggregatePlan,
        state: AggregateState,
        table: ColumnTable,
        output: pa.Schema,
        leading: Callable[[Array], list[pa.Array]],
    ) -> None:
        self._plan, self._state, self._table = plan, state, table
        self._output, self._leading = output, leading

    def now(self, entries: Array, places: PlacesOf) -> Iterator[OutputRows]:
        """Yield the current rows of these entries."""
        for some in pieces(entries, ROWS_PER_BATCH):
            columns = self._leading(some) + self._plan.results(self._state, some)
            yield OutputRows(pa.RecordBatch.from_arrays(columns, schema=self._output), places(some))

    def changes(self, entries: Array, places: PlacesOf) -> Iterator[OutputRows]:
        """Yield the changes of these entries: in each batch of entries, rows taken back, then rows put in."""
        for some in pieces(entries, ROWS_PER_BATCH // 2):
            was, here = self._table.was_present(some), self._table.present(some)
            old = self._plan.results(self._state.before(some), np.arange(len(some)))
            new = self._plan.results(self._state, some)
            changed = (was != here) | differing(old, new)
            for sign, results, rows in ((-1, old, was & changed), (1, new, here & changed)):
                at = np.flatnonzero(rows)
                if len(at):
                    taken = fixed_array(at, pa.int64())
                    columns = self._leading(some[at])
                    columns += [column.take(taken) for column in results]
                    columns.append(signs(sign, len(at)))
                    batch = pa.RecordBatch.from_arrays(columns, schema=self._output)
                    yield OutputRows(batch, places(some[at]))


class AggregateOperator(TableOperator):
    """Keeps a plan's aggregates per key; emits the changed ones when the round closes.

    Channels bring "partials" (packed states of a `Combiner`) or "rows" (made by `Combiner.raw`).
    """

    kinds = (PARTIALS, ROWS)

    def __init__(
        self, plan: AggregatePlan, slots: int, step_id: str, ordered: bool = False
    ) -> None:
        self.plan, self._state = plan, AggregateState(plan)
        table = ColumnTable(plan.codec, self._state.columns, slots)
        super().__init__(plan, table, step_id, ordered)
        self.wire = plan.wire
        self._state.bind(table)
        self._out = AggregateRows(
            plan, self._state, table, plan.output,
            lambda entries: plan.codec.decode(table.keys(entries)),
        )  # fmt: skip

    def begin(self, time: EpochTime) -> None:
        """Begin a round. Nothing falls due by time alone."""
        super().begin(time)
        self._state.tidy()

    def close(self) -> Answer:
        """Emit the keys that the round changed: with their current aggregates, or as changes."""
        touched = self.table.touched()
        if self.plan.signed:
            self._settle(touched)
        with in_step(self.step_id):
            if self.plan.emit == "changes":
                return answer_of(self._out.changes(touched, self._first))
            return answer_of(self._out.now(touched[self.table.present(touched)], self._first))

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        self._note(*self._state.take_in(kind, batch), places)
        return ()

    def _settle(self, touched: Array) -> None:
        """Remove keys whose last row was taken back."""
        here = touched[self.table.present(touched)]
        sums = [part for part in self.plan.accumulators if isinstance(part, SignedSum)]
        for part in sums:
            part.settle(self._state, here)
        empty = here[self._state(SignedCount().name)[here] == 0]
        for part in sums:
            empty = empty[~part.is_open(self._state, empty)]
        self.table.remove(empty)
