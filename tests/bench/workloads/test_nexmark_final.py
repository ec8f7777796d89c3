"""The final rows computed from a flow's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.workloads.nexmark import output as final
from penstock_bench.workloads.nexmark.output import final_rows, final_schema, read_epochs

PLAIN = pa.schema({"id": pa.int64(), "name": pa.string()})
CHANGES = PLAIN.append(pa.field("_change", pa.int8()))
Row = tuple[int | None, str | None]

ids = st.none() | st.integers(0, 5)
names = st.none() | st.sampled_from(["", "a", "b"])


def batches(rows: Iterable[Sequence[object]], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Each row in a batch of its own: final rows do not depend on batches."""
    return [
        pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema=schema)
        for row in rows
    ]


def pairs(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [(row["id"], row["name"]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(autouse=True, params=[0, 100_000])
def least(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce after each epoch that doubles the rows, and only at the end."""
    monkeypatch.setattr(final, "_LEAST", request.param)


def test_rows_that_stay() -> None:
    epochs = [batches([(1, "a"), (1, "a")], PLAIN), [], batches([(None, None)], PLAIN)]
    assert pairs(final_rows(epochs, PLAIN)) == [(1, "a"), (1, "a"), (None, None)]


@given(st.lists(st.lists(st.tuples(ids, names, st.booleans()), max_size=8), max_size=8))
def test_rows_that_are_taken_back(history: list[list[tuple[int | None, str | None, bool]]]) -> None:
    standing: Counter[Row] = Counter()
    epochs = []
    for epoch in history:
        changes = []
        for id, name, more in epoch:
            change = 1 if more or standing[id, name] == 0 else -1
            standing[id, name] += change
            changes.append((id, name, change))
        # Within an epoch a row may be retracted before it is added.
        epochs.append(batches(reversed(changes), CHANGES))
    assert Counter(pairs(final_rows(epochs, CHANGES))) == +standing


@given(st.lists(st.dictionaries(ids, names, max_size=4), max_size=8))
def test_the_newest_row_of_a_key(history: list[dict[int | None, str | None]]) -> None:
    newest: dict[int | None, str | None] = {}
    for epoch in history:
        newest |= epoch
    epochs = [batches(epoch.items(), PLAIN) for epoch in history]
    assert Counter(pairs(final_rows(epochs, PLAIN, ["id"]))) == Counter(newest.items())


def test_columns_of_the_final_rows() -> None:
    assert final_schema(CHANGES) == PLAIN


def test_epochs_are_read_in_their_order(tmp_path: Path) -> None:
    for epoch in (2, 10, 0):
        folder = tmp_path / f"epoch={epoch}"
        folder.mkdir()
        for part in range(2):
            table = pa.table({"name": [f"{epoch}.{part}"], "id": pa.array([epoch], pa.int32())})
            pq.write_table(table, folder / f"part-{part}.parquet")
    (tmp_path / "epoch=11").mkdir()
    read = [pairs(epoch) for epoch in read_epochs(tmp_path, PLAIN)]
    assert read == [
        [(0, "0.0"), (0, "0.1")],
        [(2, "2.0"), (2, "2.1")],
        [(10, "10.0"), (10, "10.1")],
        [],
    ]


def test_a_flow_that_gave_nothing(tmp_path: Path) -> None:
    assert pairs(final_rows(read_epochs(tmp_path / "rows", CHANGES), CHANGES)) == []
