from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from penstock.errors import InputError, SettingError
from penstock.sim.trace import Trace
from penstock.state.keys.codec import int_keys, slots_of


def written(folder: Path, columns: Mapping[str, object], name: str = "trace.csv") -> Path:
    path, table = folder / name, pa.table(columns)
    if name.endswith(".parquet"):
        pa.parquet.write_table(table, path)
    else:
        pa.csv.write_csv(table, path)
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_rows_are_counted_where_and_when_they_arrive(tmp_path: Path, name: str) -> None:
    columns = {"time_ms": [5250, 5000, 5099, 5100], "slot": [1, 0, 0, 2], "other": ["x"] * 4}
    trace = Trace.from_file(written(tmp_path, columns, name), slots=3)
    assert trace.counts.tolist() == [[2, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_counts_count(tmp_path: Path) -> None:
    columns = {"time": [0.0, 0.25, 0.25], "slot": [0, 0, 0], "count": [3, 4, 5]}
    trace = Trace.from_file(written(tmp_path, columns), slots=1)
    assert trace.counts.ravel().tolist() == [3, 0, 9]


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_times_may_be_timestamps(tmp_path: Path, name: str) -> None:
    first = datetime(2024, 5, 6, 9, 30)
    times = [first, first + timedelta(milliseconds=250)]
    trace = Trace.from_file(written(tmp_path, {"arrival": times, "slot": [0, 0]}, name), slots=1)
    assert trace.counts.ravel().tolist() == [1, 0, 1]


def test_keys_go_to_the_slots_that_couriers_send_them_to(tmp_path: Path) -> None:
    columns = {"time_ms": [0] * 100, "key": list(range(100))}
    trace = Trace.from_file(written(tmp_path, columns), slots=16)
    slots = slots_of(int_keys(np.arange(100)).hashes, 16)
    assert trace.counts[0].tolist() == np.bincount(slots, minlength=16).tolist()


def test_keys_may_be_texts(tmp_path: Path) -> None:
    trace = Trace.from_file(written(tmp_path, {"time_ms": [0, 0], "key": ["a", "a"]}), slots=8)
    assert sorted(trace.counts[0].tolist()) == [0] * 7 + [2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"when": [1], "slot": [1]}, "it has when, slot"),
        ({"time_ms": [1], "shard": [1]}, "name one column time_ms, time or arrival"),
        ({"time_ms": [1], "slot": [4]}, "slot is 4 in row 0, but there are 4"),
        ({"time_ms": [1], "slot": [0.5]}, "slot has the type double"),
        ({"time": ["soon"], "slot": [0]}, "time has the type string"),
        ({"time_ms": [1, None], "slot": [0, 0]}, "time_ms is missing in 1 rows"),
        ({"time_ms": [1], "slot": [0], "count": [-2]}, "count is -2 in row 0"),
        ({"time_ms": [1], "slot": [0], "count": [0.5]}, "count has the type double"),
        ({"time_ms": [0.0, float("nan")], "slot": [0, 0]}, "time_ms of row 1 is not a time"),
        ({"time": [0, 10**12], "slot": [0, 0]}, "check the unit of its times"),
    ],
)
def test_an_error_names_the_fault_of_a_file(
    tmp_path: Path, columns: Mapping[str, object], message: str
) -> None:
    path = written(tmp_path, columns, "trace.parquet")
    with pytest.raises(InputError, match=message):
        Trace.from_file(path, slots=4)


def test_an_unusable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        Trace.from_file(tmp_path / "missing.csv", slots=4)
    empty = tmp_path / "empty.csv"
    empty.write_text("time_ms,slot\n")
    with pytest.raises(InputError, match="has no rows"):
        Trace.from_file(empty, slots=4)
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"not at all")
    with pytest.raises(InputError, match="cannot be read"):
        Trace.from_file(garbage, slots=4)


@pytest.mark.parametrize("delta_ms", [20.0, 50.0, 200.0, 500.0])
def test_other_time_slots_hold_the_same_records(delta_ms: float) -> None:
    trace = Trace.of_rates(np.full((100, 3), 73.0), 100.0, seed=1)
    other = trace.every(delta_ms)
    assert other.duration_ms == trace.duration_ms
    back = other.every(1000.0)
    assert back.counts.tolist() == trace.every(1000.0).counts.tolist()


def test_time_slots_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingError, match="time slots of 100 ms cannot become"):
        Trace.of_rates(np.ones((4, 1)), 100.0).every(70.0)


def test_poisson_arrivals_follow_the_rates_and_the_seed() -> None:
    rates = np.tile([10.0, 200.0], (5000, 1))
    trace = Trace.of_rates(rates, 100.0, seed=3)
    assert trace.counts.mean(axis=0) == pytest.approx([1.0, 20.0], rel=0.05)
    assert trace.counts.var(axis=0) == pytest.approx([1.0, 20.0], rel=0.1)
    assert np.array_equal(trace.counts, Trace.of_rates(rates, 100.0, seed=3).counts)
    assert not np.array_equal(trace.counts, Trace.of_rates(rates, 100.0, seed=4).counts)


def test_a_trace_is_cut() -> None:
    trace = Trace.of_rates(np.full((100, 2), 90.0), 100.0)
    assert trace.cut(2, 5).total == pytest.approx(3 * 180, abs=2)
