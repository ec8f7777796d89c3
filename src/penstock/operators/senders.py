"""Senders: what couriers do with rows before they go to the hosts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.operators.aggregate.combiner import Combiner, pack
from penstock.operators.operator import PARTIALS, ROWS, Outgoing, Unfit
from penstock.state.keys.codec import KeyCodec


def without_key(codec: KeyCodec, names: Sequence[str], batch: pa.RecordBatch) -> Unfit | None:
    """The rows that have a null in the key; None when there are none."""
    nulls = codec.null_rows(batch)
    return None if nulls is None else Unfit(nulls, f"a null in the key ({', '.join(names)})")


class RowSender:
    """Sends all rows as they are."""

    combines = False

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        return [Outgoing(batch, self._codec.encode(batch).hashes)]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()


class CombiningSender:
    """Combines the rows of each key first where that shrinks what is sent, else sends the rows."""

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
        """Give rows at once only when combining them is not worth it, states when they are many."""
        combiner = self._combiner
        self._unsent.append(batch)
        if combiner.combines:
            for piece in combiner.pieces(batch):
                combiner.add(piece)
                if combiner.full:
                    yield self._combined()
        if not combiner.combines:
            yield from map(self._uncombined, self._unsent)
        if combiner.always or not combiner.combines:
            self._unsent.clear()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """The combined states, if no rows were sent."""
        if not self._combiner.combines:
            return ROWS, ()
        self._unsent.clear()
        return PARTIALS, [self._combined()]

    def _combined(self) -> Outgoing:
        keys, partials = self._combiner.finish()
        return Outgoing(pack(self._codec, keys, partials), keys.hashes)

    def _uncombined(self, rows: pa.RecordBatch) -> Outgoing:
        return Outgoing(self._combiner.raw(rows), self._codec.encode(rows).hashes)
