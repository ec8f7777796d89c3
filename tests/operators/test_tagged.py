"""Rows of several inputs are unchanged after packing into shared columns and unpacking."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FlowError, ProtocolError
from penstock.operators.tagged import INPUT, TaggedSchema

PEOPLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
BIDS = pa.schema(
    [
        ("auction", pa.int64()),
        ("price", pa.int64()),
        ("tags", pa.list_(pa.int32())),
        ("u", pa.string()),
    ]
)
ROWS = {
    0: st.fixed_dictionaries(
        {"id": st.integers(-9, 9), "name": st.none() | st.text(max_size=3), "at": st.none()}
    ),
    1: st.fixed_dictionaries(
        {
            "auction": st.none() | st.integers(-9, 9),
            "price": st.integers(-9, 9),
            "tags": st.none() | st.lists(st.integers(0, 3), max_size=2),
            "u": st.none() | st.text(max_size=3),
        }
    ),
}


def test_columns_are_shared_by_type() -> None:
    tagged = TaggedSchema((PEOPLE, BIDS))
    assert tagged.schema.names == [INPUT, "_0", "_1", "_2", "_3", "_4"]
    assert tagged.places(0) == [0, 1, 2]
    assert tagged.places(1) == [0, 3, 4, 1]
    for input, schema in enumerate(tagged.inputs):
        assert [tagged.schema.types[1 + p] for p in tagged.places(input)] == schema.types


@given(st.lists(st.integers(0, 1).flatmap(lambda i: st.tuples(st.just(i), ROWS[i])), max_size=20))
def test_packed_rows_come_back_in_order(rows: list[tuple[int, dict[str, object]]]) -> None:
    tagged = pickle.loads(pickle.dumps(TaggedSchema((PEOPLE, BIDS))))
    packed = [
        tagged.pack(i, pa.RecordBatch.from_pylist([row], tagged.inputs[i])) for i, row in rows
    ]
    table = pa.Table.from_batches(packed, tagged.schema).combine_chunks()
    mixed = table.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], tagged.schema)
    parts = tagged.unpack(mixed)
    assert [i for i, _ in parts] == sorted({i for i, _ in rows})
    for i, batch in parts:
        assert batch.schema.equals(tagged.inputs[i])
        assert batch.to_pylist() == [row for j, row in rows if j == i]


def test_a_batch_of_one_input_is_not_copied() -> None:
    tagged = TaggedSchema((PEOPLE, BIDS))
    rows = [{"id": i, "name": "x", "at": None} for i in range(3)]
    batch = pa.RecordBatch.from_pylist(rows, PEOPLE)
    ((input, again),) = tagged.unpack(tagged.pack(0, batch))
    assert input == 0
    assert again.column("id").buffers()[1].address == batch.column("id").buffers()[1].address


def test_a_tag_that_no_input_has_is_refused() -> None:
    tagged = TaggedSchema((PEOPLE, BIDS))
    row = dict.fromkeys(tagged.schema.names) | {INPUT: 2}
    with pytest.raises(ProtocolError, match="rows of input 2"):
        tagged.unpack(pa.RecordBatch.from_pylist([row], tagged.schema))


def test_too_many_inputs_are_refused() -> None:
    with pytest.raises(FlowError, match="128 inputs"):
        TaggedSchema((PEOPLE,) * 128)
