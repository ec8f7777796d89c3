"""Traces from files: a CSV or Parquet table of records, or of counts of them.

    time_ms, or time, or arrival    when: milliseconds; seconds or timestamps in the other two
    slot, or key                    a slot's number, or a key, which goes to the slot that it would
                                    have in a step of that many slots
    count                           how many records arrive then; one if there is no such column

Rows may be in any order. The first time slot begins with the earliest of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from penstock.errors import InputError
from penstock.state.keys.codec import KeyCodec, slots_of

_TIMES = {"time_ms": 1.0, "time": 1000.0, "arrival": 1000.0}
"""Milliseconds in the unit of a column of numbers."""
_MOST_VALUES = 2**30
"""Time slots times slots: 4 GB of counts."""


def read(path: Path, slots: int, delta_ms: float) -> npt.NDArray[np.int32]:
    """The counts of the trace in this file. Raises `InputError` for what is not as it must be."""
    table = _table(path)
    if not table.num_rows:
        raise InputError(f"{path} has no rows", hint="name a file with records")
    for name in table.column_names:
        missing = table[name].null_count
        if missing:
            row = pc.index(pc.is_null(table[name]), True).as_py()
            raise InputError(
                f"{path}: {name} is missing in {missing} rows, the first of which is {row}",
                hint="give each row a value",
            )
    times = _times(path, table)
    place = _slots(path, table, slots)
    counts = _counts(path, table)
    began = times.min()
    length = int((times.max() - began) / delta_ms) + 1
    if length * slots > _MOST_VALUES:
        raise InputError(
            f"{path} spans {length:,} time slots of {delta_ms:g} ms, too many for {slots} slots",
            hint="cut it, use longer time slots, or check the unit of its times",
        )
    where = ((times - began) / delta_ms).astype(np.int64) * slots + place
    sums = np.bincount(where, counts, length * slots)
    return sums.astype(np.int32).reshape(length, slots)


def _table(path: Path) -> pa.Table:
    """The columns that matter."""
    if not path.is_file():
        raise InputError(f"{path} is no file", hint="name a CSV or Parquet file")
    try:
        if path.suffix == ".parquet":
            names = pa.parquet.read_schema(path).names
            return pa.parquet.read_table(path, columns=_chosen(path, names))
        with pa.csv.open_csv(path) as reader:
            names = reader.schema.names
        chosen = pa.csv.ConvertOptions(include_columns=_chosen(path, names))
        return pa.csv.read_csv(path, convert_options=chosen)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}", hint="check the file") from error


def _chosen(path: Path, names: list[str]) -> list[str]:
    time = next((name for name in _TIMES if name in names), None)
    place = next((name for name in ("slot", "key") if name in names), None)
    if time is None or place is None:
        raise InputError(
            f"{path} has the columns {', '.join(names) or 'none'}",
            hint="name one time_ms, time or arrival, and one slot or key",
        )
    return [time, place, *(["count"] if "count" in names else [])]


def _times(path: Path, table: pa.Table) -> npt.NDArray[np.float64]:
    """Milliseconds."""
    name, column = table.column_names[0], table.column(0)
    if name != "time_ms" and pa.types.is_timestamp(column.type):
        micros: npt.NDArray[np.int64] = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
        return micros / 1000.0
    if not _is_number(column.type):
        raise InputError(
            f"{path}: {name} is of the type {column.type}",
            hint="write time_ms as a number; time and arrival as seconds or as timestamps such as "
            "2024-05-06T09:30:00.250",
        )
    times: npt.NDArray[np.float64] = column.cast(pa.float64()).to_numpy() * _TIMES[name]
    if not np.isfinite(times).all():
        row = int(np.argmin(np.isfinite(times)))
        raise InputError(f"{path}: {name} of row {row} is no time", hint="write a number")
    return times


def _slots(path: Path, table: pa.Table, slots: int) -> npt.NDArray[Any]:
    name, column = table.column_names[1], table.column(1)
    if name == "key":
        keys = KeyCodec(pa.schema([("key", column.type)]))
        batch = pa.RecordBatch.from_arrays([column.combine_chunks()], schema=keys.schema)
        return slots_of(keys.encode(batch).hashes, slots)
    if not pa.types.is_integer(column.type):
        raise InputError(f"{path}: slot is of the type {column.type}", hint="write whole numbers")
    place: npt.NDArray[Any] = column.to_numpy()
    wrong = np.flatnonzero((place < 0) | (place >= slots))
    if len(wrong):
        raise InputError(
            f"{path}: slot is {place[wrong[0]]} in row {wrong[0]}, and there are {slots}",
            hint=f"use 0 to {slots - 1}, or more slots",
        )
    return place


def _counts(path: Path, table: pa.Table) -> npt.NDArray[Any] | None:
    if table.num_columns < 3:
        return None
    column = table.column(2)
    if not pa.types.is_integer(column.type):
        raise InputError(f"{path}: count is of the type {column.type}", hint="write whole numbers")
    counts: npt.NDArray[Any] = column.to_numpy()
    wrong = np.flatnonzero(counts < 0)
    if len(wrong):
        raise InputError(
            f"{path}: count is {counts[wrong[0]]} in row {wrong[0]}", hint="use 0 or more"
        )
    return counts


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))
