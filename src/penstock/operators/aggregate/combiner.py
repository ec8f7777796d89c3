"""The courier's side of aggregates: rows of one key are combined before they are sent.

>>> from penstock.operators.aggregate.aggregates import AggregatePlan, sum
>>> schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
>>> plan = AggregatePlan(schema, ["k"], {"total": sum("v")})
>>> combiner = Combiner(plan)
>>> combiner.add(pa.RecordBatch.from_pydict({"k": [7, 8, 7], "v": [1, 2, 3]}, schema))
>>> keys, partials = combiner.finish()
>>> pack(plan.codec, keys, partials).to_pylist()
[{'__key': 7, 'sum(v)': 4}, {'__key': 8, 'sum(v)': 2}]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.operators.aggregate.sketch import DistinctSketch
from penstock.operators.aggregate.state import PassingState, pack
from penstock.operators.operator import PARTIALS, ROWS, Outgoing
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.keys.index import key_index

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan

_LOOK_FROM, _LOOK_TO = 15_000, 20_000
"""Range of row numbers on which a combiner measures whether combining pays."""
_MOSTLY_NEW = 0.95
"""Share of new keys among those rows from which on combining does not pay."""
_MOST_BYTES = 1 << 26
"""Approximate limit of a combiner's state, in bytes: a sketch takes hundreds of bytes per key."""


class Combiner:
    """Combines the rows of one task. Add batches, then `finish`, which leaves it empty for reuse.

    If nearly every row has a key of its own, combining is wasted work and `combines` soon turns False.
    Then discard the combiner and send every batch, also those added before, as `raw(batch)`. With an
    `approx_distinct`, whose state is larger than many rows, `combines` is False from the start. Rows
    must not have a null in the key.

    With `always` it never gives up, whatever the keys are. Pass it batches in `pieces`, and call
    `finish` whenever it is `full`. Once it is `settled` it no longer gives up, and the batches added
    so far can be dropped.
    """

    combines: bool
    """Whether combining pays; check it after each `add`."""
    rows: int
    """Number of rows added."""
    settled: bool
    """Whether `combines` can no longer turn False."""

    def __init__(self, plan: AggregatePlan, always: bool = False) -> None:
        self.plan, self.settled = plan, always
        self._index = key_index(plan.codec.layout)
        small = not any(isinstance(a, DistinctSketch) for a in plan.accumulators)
        self._worth = always or small
        width = sum(column.width * column.dtype.itemsize for column in plan.columns)
        self._most = max(_MOST_BYTES // max(width, 1), 1)
        self._reset()

    @property
    def groups(self) -> int:
        """Number of distinct keys among the rows added."""
        return self._index.size

    @property
    def full(self) -> bool:
        """Whether `finish` should be called before more rows are added."""
        return self.settled and self.groups >= self._most

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch into slices that fit into the combiner's memory limit."""
        return (batch.slice(at, self._most) for at in range(0, batch.num_rows, self._most))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. May set `combines` to False; then not all of them were added."""
        for stop in (_LOOK_FROM, _LOOK_TO):
            if self.rows < stop <= self.rows + batch.num_rows:
                head = stop - self.rows
                self._add(batch.slice(0, head))
                batch = batch.slice(head)
                self._judge()
        if batch.num_rows and (self.combines or not self._worth):
            self._add(batch)

    def raw(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns that a host needs, for input of the kind "rows"."""
        return batch.select(self.plan.raw_names)

    def finish(self) -> tuple[Keys, pa.RecordBatch]:
        """Return the distinct keys and their combined states; `pack` makes input of the kind "partials"."""
        if self._worth and not self.combines:
            raise ProtocolError(
                "the combiner has given up and has no combined states",
                hint="send the raw rows of every batch instead",
            )
        keys = self._index.keys(np.arange(self.groups))
        arrays = self._state.combined(self.groups)
        partials = pa.RecordBatch.from_arrays(arrays, schema=self.plan.partial_schema)
        self._index.clear()
        self._reset()
        return keys, partials

    def _reset(self) -> None:
        self.combines, self.rows = self._worth, 0
        self._state = PassingState(self.plan)
        self._look, self._new = 0, 1.0

    def _judge(self) -> None:
        if self.rows == _LOOK_FROM:
            self._look = self.groups
        elif self._worth:
            self._new = (self.groups - self._look) / (_LOOK_TO - _LOOK_FROM)
            self.combines = self.settled = self.settled or self._new < _MOSTLY_NEW

    def _add(self, batch: pa.RecordBatch) -> None:
        before = self.groups
        self._index.reserve(before + int(self._new * batch.num_rows))
        entries = self._entries(batch)
        self._state.grow(before, self._index.room)
        self._state.update(entries, batch)
        self.rows += batch.num_rows

    def _entries(self, batch: pa.RecordBatch) -> Array:
        return self._index.upsert(self.plan.codec.encode(batch))


class CombiningSender:
    """Combines the rows of each key where that reduces the data sent; sends plain rows otherwise."""

    def __init__(self, codec: KeyCodec, combiner: Combiner) -> None:
        self._codec, self._combiner = codec, combiner
        self._unsent: list[pa.RecordBatch] = []
        self.late: list[tuple[int, pa.RecordBatch]] = []

    @property
    def combines(self) -> bool:
        return self._combiner.combines

    @combines.setter
    def combines(self, combines: bool) -> None:
        self._combiner.combines = combines

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yields rows at once only if combining does not pay, and states when the combiner is full."""
        combiner = self._combiner
        self._unsent.append(batch)
        if combiner.combines:
            for piece in combiner.pieces(batch):
                combiner.add(piece)
                if combiner.full:
                    yield self._combined()
        if not combiner.combines:
            yield from map(self._uncombined, self._unsent)
        if combiner.settled or not combiner.combines:
            self._unsent.clear()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns the combined states, if no rows were sent."""
        if not self._combiner.combines:
            return ROWS, ()
        self._unsent.clear()
        return PARTIALS, [self._combined()]

    def _combined(self) -> Outgoing:
        keys, partials = self._combiner.finish()
        return Outgoing(pack(self._codec, keys, partials), keys.hashes)

    def _uncombined(self, rows: pa.RecordBatch) -> Outgoing:
        return Outgoing(self._combiner.raw(rows), self._codec.encode(rows).hashes)
