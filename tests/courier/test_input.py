"""A courier's input: counted, and whole or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.courier.delivery import Input
from penstock.errors import CutInputError, ProtocolError

ROWS = pa.record_batch({"n": [1, 2, 3]})


def test_it_is_counted_when_it_has_ended() -> None:
    input = Input([ROWS, ROWS.slice(1)])
    batches = iter(input)
    assert next(batches).num_rows == 3
    with pytest.raises(ProtocolError, match="before its input has ended"):
        _ = input.whole_rows
    assert [batch.num_rows for batch in batches] == [2]
    assert input.whole_rows == 5


def test_without_the_end_mark_it_never_has_an_end() -> None:
    def missing() -> None:
        raise CutInputError("no mark")

    input = Input([ROWS], missing)
    batches = iter(input)
    next(batches)
    with pytest.raises(CutInputError, match="no mark"):
        next(batches)
    assert next(batches, None) is None, "somebody has caught the error, and asks again"
    with pytest.raises(ProtocolError, match="before its input has ended"):
        _ = input.whole_rows


def test_a_reader_that_fails_was_cut() -> None:
    """In the middle of a batch Arrow notices by itself."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise pa.ArrowInvalid("expected to read 800 bytes, got 20")

    with pytest.raises(CutInputError, match="broke off: expected to read 800 bytes"):
        list(Input(broken()))
