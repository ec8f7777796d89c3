"""A courier's input: it is counted, and refused if it is not complete."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.courier.delivery import Input
from penstock.errors import CutInputError, ProtocolError

ROWS = pa.record_batch({"n": [1, 2, 3]})


def test_rows_are_counted_when_the_input_has_ended() -> None:
    input = Input([ROWS, ROWS.slice(1)])
    batches = iter(input)
    assert next(batches).num_rows == 3
    with pytest.raises(ProtocolError, match="before its input has ended"):
        _ = input.whole_rows
    assert [batch.num_rows for batch in batches] == [2]
    assert input.whole_rows == 5


def test_without_the_end_mark_the_input_never_ends() -> None:
    def missing() -> None:
        raise CutInputError("no mark")

    input = Input([ROWS], missing)
    batches = iter(input)
    next(batches)
    with pytest.raises(CutInputError, match="no mark"):
        next(batches)
    assert next(batches, None) is None, "a caller may catch the error and read on"
    with pytest.raises(ProtocolError, match="before its input has ended"):
        _ = input.whole_rows


def test_a_reader_that_fails_was_cut() -> None:
    """Arrow itself notices when the input ends in the middle of a batch."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise pa.ArrowInvalid("expected to read 800 bytes, got 20")

    with pytest.raises(CutInputError, match="broke off: expected to read 800 bytes"):
        list(Input(broken()))
