"""Output files: the content of NDJSON, and that a file is complete or absent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock_bench.workloads.nexmark.output import check_output, json_lines, rows_file

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "text": pa.string(),
        "at": TIME,
        "price": pa.decimal128(23, 3),
        "mean": pa.float64(),
    }
)
times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
rows = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(),
        "at": st.none() | times,
        "price": st.none() | st.decimals(-(10**19), 10**19, places=3),
        "mean": st.none() | st.floats(),
    }
)


@given(st.lists(rows, max_size=5))
def test_json_says_what_the_rows_say(values: list[dict[str, object]]) -> None:
    batch = pa.RecordBatch.from_pylist(values, schema=SCHEMA)
    lines = json_lines(batch).to_pylist()
    assert all(line.endswith("}\n") and line.count("\n") == 1 for line in lines)
    for line, row in zip(lines, values, strict=True):
        read = json.loads(line, parse_float=Decimal)
        assert list(read) == SCHEMA.names
        assert (read["n"], read["text"]) == (row["n"], row["text"])
        assert read["at"] is None or datetime.fromisoformat(read["at"]) == row["at"]
        assert (read["at"] is None) == (row["at"] is None)
        assert read["price"] == row["price"]
        mean = row["mean"]
        finite = isinstance(mean, float) and abs(mean) < float("inf")
        assert (float(read["mean"]) if read["mean"] is not None else None) == (
            mean if finite else None
        )


def test_times_to_the_millisecond_or_the_microsecond() -> None:
    noon = datetime(2015, 7, 15, 12, tzinfo=UTC)
    at = pa.array([noon, noon + timedelta(microseconds=1)], TIME)
    lines = json_lines(pa.RecordBatch.from_arrays([at], ["at"])).to_pylist()
    assert lines == [
        '{"at":"2015-07-15T12:00:00.000Z"}\n',
        '{"at":"2015-07-15T12:00:00.000001Z"}\n',
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".ndjson"])
def test_files(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows{suffix}"
    file.write_text("an older file")
    schema = pa.schema({"n": pa.int64(), "text": pa.string()})
    batch = pa.RecordBatch.from_pylist([{"n": n, "text": f"é{n}"} for n in range(3)], schema=schema)
    with rows_file(file, schema) as write:
        write(batch)
        write(batch.slice(0, 0))
        write(batch.slice(1, 1))
    if suffix == ".parquet":
        read = pq.read_table(file).to_pylist()
    else:
        read = [json.loads(line) for line in file.read_text().splitlines()]
    assert read == [{"n": n, "text": f"é{n}"} for n in (0, 1, 2, 1)]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("suffix", [".parquet", ".ndjson"])
def test_no_rows(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows{suffix}"
    with rows_file(file, SCHEMA):
        pass
    if suffix == ".parquet":
        assert pq.read_table(file).schema == SCHEMA
    else:
        assert file.read_bytes() == b""


def test_a_failure_leaves_the_older_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_text("an older file")
    with pytest.raises(ZeroDivisionError), rows_file(file, SCHEMA):
        raise ZeroDivisionError
    assert file.read_text() == "an older file"
    assert list(tmp_path.iterdir()) == [file]


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.parquet").mkdir()
    for name, why in {
        "rows.csv": "no known file format",
        "rows": "no known file format",
        "folder.parquet": "is a folder",
        "nosuch/rows.ndjson": "there is no folder",
    }.items():
        with pytest.raises(SettingError, match=why):
            check_output(tmp_path / name)
    check_output(tmp_path / "rows.ndjson")
