"""Pieces of a channel: all rows are in one, in order, and the rows of a key stay together, or of a slot."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.host.pieces import Piece, cut
from penstock.operators.operator import ROWS
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.state.keys.codec import slots_of
from tests.trials.ledger import LEDGER, ORDERS, SLOTS, SUMS


def word_rows(rows: int, keys: int) -> list[pa.RecordBatch]:
    numbers = [(7 * n) % keys for n in range(rows)]
    return [
        pa.record_batch(
            {
                "who": [f"who-{n}" for n in part],
                "op": ["add"] * len(part),
                "v": pa.array(range(start, start + len(part)), pa.int64()),
            }
        )
        for start, part in ((0, numbers[: rows // 3]), (rows // 3, numbers[rows // 3 :]))
    ]


class Batches(KeyedProcessor):
    """A processor whose calls get whole slots."""

    output_schema = "v long"

    def handle_batch(self, batch: Any, timers: Any) -> None: ...


@pytest.mark.parametrize("pieces", [2, 5, 40])
def test_the_rows_of_a_key_stay_together_and_in_order(pieces: int) -> None:
    operator = LEDGER.keyed[0].operator()
    made = cut(operator, ROWS, word_rows(600, keys=50), pieces)
    assert 1 < len(made) <= pieces
    must_be_whole(made)
    keys = [{who for b in piece.batches for who in b.column("who").to_pylist()} for piece in made]
    assert sum(map(len, keys)) == len(set().union(*keys)), "a key is in two pieces"
    if pieces == 40:
        assert len(made) > SLOTS, "the slots should be divided"


@pytest.mark.parametrize("pieces", [2, 5, 40])
def test_the_rows_of_a_slot_stay_together_where_one_call_gets_them(pieces: int) -> None:
    operator = ProcessPlan(ORDERS, ["who"], Batches()).operator(SLOTS, "batches", "fail")
    made = cut(operator, ROWS, word_rows(600, keys=50), pieces)
    assert 1 < len(made) <= pieces
    must_be_whole(made)
    slots = [
        {slot for k in operator.keys(ROWS, piece.batches) for slot in slots_of(k.hashes, SLOTS)}
        for piece in made
    ]
    assert sum(map(len, slots)) == len(set().union(*slots)), "a slot is in two pieces"


def must_be_whole(made: list[Piece]) -> None:
    """Assert that 600 rows are in these pieces, each in order, the largest piece first."""
    order = [[v for b in piece.batches for v in b.column("v").to_pylist()] for piece in made]
    assert all(values == sorted(values) for values in order)
    assert sorted(v for values in order for v in values) == list(range(600))
    sizes = [piece.rows for piece in made]
    assert sizes == sorted(sizes, reverse=True)


def test_the_keys_of_a_large_slot_are_divided() -> None:
    """A slot with all rows does not make one piece of them."""
    operator = SUMS.keyed[0].operator()
    keys = operator.keys(ROWS, [_numbers(range(20_000))])[0]
    one_slot = [n for n, slot in enumerate(slots_of(keys.hashes, 8)) if slot == 3]
    made = cut(operator, ROWS, [_numbers(one_slot)], 8)
    assert len(made) > 4
    assert max(piece.rows for piece in made) < len(one_slot) / 2


def _numbers(keys: range | list[int]) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())})
