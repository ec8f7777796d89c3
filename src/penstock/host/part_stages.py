"""The runtime stages of a step in parts: cut by part, gather, apply.

An item begins as `Work` (see `chunks`), becomes `Parted` when it is cut, and `Answer` when it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.host.chunks import ChannelChunk, Parted, Rounded, Work, joined
from penstock.operators.operator import Answer, Operator
from penstock.operators.places import Places
from penstock.runtime.operators import Kind
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import slots_of
from penstock.state.table.parted import by_part, part_numbers


class HostStage:
    """A stage of a host's runtime. By default it has no state, and `work` turns one item into others."""

    kind: Kind = "stateless"
    parts = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        return [(0, item)]

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        output: Sequence[Any] = results[0]
        return output

    def size(self, item: Any) -> int:
        if isinstance(item, Rounded):
            item = item.answer
        if isinstance(item, Answer):
            return sum(batch.num_rows for batch in item.batches)
        return int(item.rows)

    def mark(self, mark: object) -> Sequence[Any]:
        """Return no items: this stage holds nothing back."""
        return ()


class Whole(HostStage):
    """Applies work to a step that has only one part."""

    kind: Kind = "global"

    def __init__(self, operator: Operator) -> None:
        super().__init__("step")
        self._operator = operator

    def work(self, part: int, piece: Work) -> Sequence[Answer]:
        return _answers([piece.on(self._operator)])


class Cut(HostStage):
    """Cuts chunks by part. It has no state, so that several workers can cut several chunks at once."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        super().__init__("cut")
        self._operator, self._parts = parts[0], len(parts)
        self._slots = parts[0].table.slots
        self._part_of = part_numbers(self._slots, len(parts))

    def work(self, part: int, piece: Work) -> Sequence[Parted]:
        if not isinstance(piece, ChannelChunk):
            return [Parted(0, [(part, piece) for part in range(self._parts)])]
        batches = [batch for batch in piece.batches if batch.num_rows]
        if not batches:
            return ()
        numbers = self._part_of[slots_of(self._hashes(piece.kind, batches), self._slots)]
        order, runs = by_part(numbers, self._parts)
        if len(runs) == 1:
            return [Parted(len(numbers), [(runs[0][0], piece)])]
        together = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        rows = together.take(fixed_array(order, pa.int64()))
        places = None if piece.places is None else piece.places.take(order)
        in_parts = replace(piece, batches=[rows], places=places)
        pieces: list[tuple[int, Work]] = [
            (number, in_parts.section([rows.slice(begin, end - begin)], begin, end - begin))
            for number, begin, end in runs
        ]
        return [Parted(len(numbers), pieces)]

    def _hashes(self, kind: str, batches: list[pa.RecordBatch]) -> Array:
        keys = self._operator.keys(kind, batches)
        if [len(batch_keys) for batch_keys in keys] != [batch.num_rows for batch in batches]:
            raise ProtocolError(
                "a batch must have one key for each of its rows, in the same order",
                hint="run the same version of Penstock in couriers and hosts",
            )
        return np.concatenate([batch_keys.hashes for batch_keys in keys])


class Gather(HostStage):
    """Holds back the pieces of a part until they have `enough` rows, or, if None, until the channel ends.

    Larger pieces pay off: one call of an operator costs as much as thousands of rows.
    """

    kind: Kind = "global"

    def __init__(self, parts: int, enough: int | None) -> None:
        super().__init__("gather")
        self._enough, self._parts = enough, parts
        self.forget()

    def forget(self) -> None:
        """Drop all pieces before a new channel: the one before it may have failed."""
        self._held: list[list[ChannelChunk]] = [[] for _ in range(self._parts)]
        self._rows = [0] * self._parts

    def work(self, part: int, piece: Parted) -> Sequence[Parted]:
        full = []
        for number, chunk in piece.pieces:
            if not isinstance(chunk, ChannelChunk):
                return [piece]
            self._held[number].append(chunk)
            self._rows[number] += chunk.rows
            if self._enough is not None and self._rows[number] >= self._enough:
                full.append(self._take([number]))
        return full

    def mark(self, mark: object) -> Sequence[Parted]:
        rest = [part for part, held in enumerate(self._held) if held]
        return [self._take(rest)] if rest else ()

    def _take(self, parts: Sequence[int]) -> Parted:
        rows, pieces = 0, list[tuple[int, Work]]()
        for part in parts:
            rows, held = rows + self._rows[part], self._held[part]
            places = [chunk.places for chunk in held if chunk.places is not None]
            batches = [batch for chunk in held for batch in chunk.batches]
            pieces.append(
                (
                    part,
                    ChannelChunk(held[0].kind, batches, Places.joined(places) if places else None),
                )
            )
            self._rows[part], self._held[part] = 0, []
        return Parted(rows, pieces)


class Parts(HostStage):
    """Applies each piece to its part."""

    kind: Kind = "keyed"

    def __init__(self, operators: Sequence[Operator]) -> None:
        super().__init__("parts")
        self._operators = operators
        self.parts = len(operators)

    def split(self, item: Parted) -> Sequence[tuple[int, Work]]:
        return item.pieces

    def work(self, part: int, piece: Work) -> Answer:
        if isinstance(piece, ChannelChunk):
            piece = piece.together()
        return piece.on(self._operators[part])

    def join(self, item: Parted, results: list[Answer]) -> Sequence[Answer | Rounded]:
        round = item.round
        return _answers(results) if round is None else [Rounded(round, joined(results))]


def _answers(results: list[Answer]) -> Sequence[Answer]:
    """Return the answer to one item, or nothing if it is empty."""
    answer = joined(results)
    return [answer] if answer.batches or answer.dead or answer.due else ()
