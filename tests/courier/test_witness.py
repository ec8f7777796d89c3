"""The witness: the newest event time of each partition, for all types and batches."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import codec
from penstock.courier import witness as module
from penstock.courier.witness import UNNAMED, Witness
from penstock.errors import FlowError
from penstock.plan.steps import SourcePlan
from penstock.wire.report import Seen

US = pa.timestamp("us", "UTC")


def seen_by(witness: Witness) -> Seen:
    """Return the report as the driver gets it, through JSON."""
    return codec.decode(codec.encode(witness.seen()), Seen)


def source(**columns: str | None) -> SourcePlan:
    return SourcePlan(pa.schema([]), **columns)  # type: ignore[arg-type]


def batch_of(times: list[int | None], names: pa.Array, type: pa.DataType = US) -> pa.RecordBatch:
    return pa.record_batch({"at": pa.array(times, type), "part": names})


def newest(batch: pa.RecordBatch, partition: str | None = "part") -> dict[str, int]:
    witness = Witness([source(event_time="at", partition=partition)])
    assert list(witness.watch(0, [batch])) == [batch]
    return {name: time for _, name, time in seen_by(witness).event_ms}


row = st.tuples(
    st.integers(0, 1), st.sampled_from(["a", "b", "", None]), st.none() | st.integers(-9999, 9999)
)


@settings(max_examples=100)
@given(st.lists(st.lists(row, max_size=8), max_size=4))
def test_as_a_simple_model_says(batches: list[list[tuple[int, str | None, int | None]]]) -> None:
    witness = Witness([source(event_time="at", partition="part"), source(event_time="at")])
    model: dict[tuple[int, str], int] = {}
    for rows in batches:
        for input in (0, 1):
            mine = [(name, time) for number, name, time in rows if number == input]
            names = pa.array([name for name, _ in mine], pa.string())
            witness.note(input, batch_of([time for _, time in mine], names))
            for name, time in mine:
                if time is not None:
                    place = (input, "" if input else name or UNNAMED)
                    model[place] = max(model.get(place, time // 1000), time // 1000)
    seen = seen_by(witness)
    assert {(number, name): time for number, name, time in seen.event_ms} == model
    assert seen.rows == sum(map(len, batches))


@pytest.mark.parametrize(("unit", "ms"), [("s", -1_001_000), ("ms", -1001), ("us", -2), ("ns", -1)])
def test_times_before_1970_are_rounded_down(unit: str, ms: int) -> None:
    """Otherwise the watermark would overtake the row that it comes from."""
    batch = batch_of([-1001], pa.array(["a"]), pa.timestamp(unit))
    assert newest(batch) == {"a": ms}
    assert newest(batch, partition=None) == {"": ms}


@pytest.mark.parametrize(
    "names",
    [
        pa.array([1, 2, 1], pa.int32()),
        pa.array(["1", "2", "1"], pa.large_string()),
        pa.array(["1", "2", "1"], pa.string_view()),
        pa.array(["1", "2", "1"]).dictionary_encode(),
        pa.chunked_array([["9"], ["1", "2", "1"]]).combine_chunks().slice(1),
    ],
)
def test_partitions_of_any_plain_type(names: pa.Array) -> None:
    assert newest(batch_of([5000, 6000, 7000], names)) == {"1": 7, "2": 6}


def test_a_batch_of_nulls_has_no_newest_time() -> None:
    batch = batch_of([None, None], pa.array(["a", None]))
    assert newest(batch) == {}
    assert newest(batch, partition=None) == {}


def test_a_column_with_a_value_for_each_row_is_not_a_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_PARTITIONS", 3)
    with pytest.raises(FlowError, match=r"'part' has more than 3 values.*What to do"):
        newest(batch_of([1, 2, 3, 4], pa.array([1, 2, 3, 4])))


def test_arrivals_of_all_inputs_are_counted() -> None:
    batch = pa.record_batch({"came": pa.array([5, 5, None, 9], pa.timestamp("ms"))})
    witness = Witness([source(arrival="came"), source()])
    witness.note(0, batch)
    witness.note(1, batch)
    witness.note(0, batch.slice(0, 0))
    assert seen_by(witness) == Seen(8, (5, 9), (2, 1))
