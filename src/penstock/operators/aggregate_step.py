"""The operator that a host runs for a step with aggregates."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.operators.aggregate_plan import AggregatePlan
from penstock.operators.combiner import unpack
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime
from penstock.state.buffers import Array
from penstock.state.keys import Keys
from penstock.state.table import ColumnTable

_ROWS_PER_BATCH = 1 << 18


class AggregateOperator:
    """Keeps a plan's aggregates per key; gives the rows that changed when the epoch closes.

    Channels bring "partials" (packed states of a `Combiner`) or "rows" (what its `raw` gives).

    >>> from penstock.operators.aggregates import count
    >>> schema = pa.schema([("word", pa.string())])
    >>> step = AggregateOperator(AggregatePlan(schema, ["word"], {"n": count()}), 16, "words")
    >>> words = pa.RecordBatch.from_pydict({"word": ["a", "b", "a"]}, schema)
    >>> step.apply("rows", [words]).batches
    []
    >>> step.close().batches[0].to_pylist()
    [{'word': 'a', 'n': 2}, {'word': 'b', 'n': 1}]
    """

    def __init__(self, plan: AggregatePlan, slots: int, step_id: str) -> None:
        self.plan, self.step_id = plan, step_id
        self.table = ColumnTable(plan.codec, plan.columns, slots)
        self.output: pa.Schema = plan.output

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of these batches."""
        if kind == PARTIALS:
            return [unpack(self.plan.codec, batch)[0] for batch in batches]
        return [self.plan.codec.encode(batch) for batch in batches]

    def due(self, time: EpochTime) -> dict[str, int]:
        """Nothing falls due by time alone."""
        return {}

    def open(self, time: EpochTime) -> Answer:
        """Nothing falls due by time alone."""
        return Answer()

    def apply(self, kind: str, batches: list[pa.RecordBatch]) -> Answer:
        """Take in one closed channel, whole or not at all."""
        if kind not in (PARTIALS, ROWS):
            raise ProtocolError(
                f"step {self.step_id!r} cannot take input of the kind {kind!r}",
                hint="couriers and hosts must run the same version of Penstock",
            )
        mark = self.table.savepoint()
        try:
            for batch in batches:
                if kind == PARTIALS:
                    self._merge(batch)
                else:
                    self._update(batch)
        except BaseException:
            self.table.undo(mark)
            raise
        return Answer()

    def close(self) -> Answer:
        """One row for each key that the epoch touched, with its aggregates as they are now."""
        return Answer(list(self._rows(self.table.touched())))

    def shutdown(self) -> None:
        """Nothing is held outside the table."""

    def rollback(self) -> None:
        """Back to the last sealed version."""
        self.table.rollback()

    def _merge(self, batch: pa.RecordBatch) -> None:
        keys, partials = unpack(self.plan.codec, batch)
        entries = self.table.upsert(keys)
        for accumulator in self.plan.accumulators:
            accumulator.merge(self.table.column, entries, partials)

    def _update(self, batch: pa.RecordBatch) -> None:
        entries = self.table.upsert(self.plan.codec.encode(batch))
        for accumulator in self.plan.accumulators:
            accumulator.update(self.table.column, entries, batch)

    def _rows(self, entries: Array) -> Iterator[pa.RecordBatch]:
        entries = entries[self.table.present(entries)]
        for start in range(0, len(entries), _ROWS_PER_BATCH):
            some = entries[start : start + _ROWS_PER_BATCH]
            columns = self.plan.codec.decode(self.table.keys(some))
            columns += self.plan.results(self.table.column, some)
            yield pa.RecordBatch.from_arrays(columns, schema=self.output)
