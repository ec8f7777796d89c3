"""Senders: what couriers do with rows before they go to the hosts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.aggregate.combiner import Combiner, pack
from penstock.operators.operator import PARTIALS, ROWS, Outgoing, Unfit
from penstock.state.keys.codec import KeyCodec

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan


def without_key(codec: KeyCodec, names: Sequence[str], batch: pa.RecordBatch) -> Unfit | None:
    """The rows that have a null in the key; None when there are none."""
    nulls = codec.null_rows(batch)
    return None if nulls is None else Unfit(nulls, f"a null in the key ({', '.join(names)})")


class RowSender:
    """Sends all rows as they are."""

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        return [Outgoing(batch, self._codec.encode(batch).hashes)]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()


class CombiningSender:
    """Combines the rows of each key first where that shrinks what is sent, else sends the rows.

    With `always` it combines in any case; without `combine`, else in none.
    """

    def __init__(self, plan: AggregatePlan, always: bool = False, combine: bool = True) -> None:
        self._plan, self._always = plan, always
        self._combiner = Combiner(plan, always, combine)
        self._unsent: list[pa.RecordBatch] = []
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        combiner = self._combiner
        if not self._always:
            self._unsent.append(batch)
        if combiner.combines:
            for piece in combiner.pieces(batch):
                combiner.add(piece)
                if combiner.full:
                    yield self._combined()
        if not combiner.combines:
            for raw in self._unsent:
                yield Outgoing(combiner.raw(raw), self._plan.codec.encode(raw).hashes)
            self._unsent.clear()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        if not self._combiner.combines:
            return ROWS, ()
        self._unsent.clear()
        return PARTIALS, [self._combined()]

    def _combined(self) -> Outgoing:
        keys, partials = self._combiner.finish()
        return Outgoing(pack(self._plan.codec, keys, partials), keys.hashes)
