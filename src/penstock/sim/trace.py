"""Traces: the number of records that arrive for each slot in each time slot.

A trace can be read from a CSV or Parquet table of records, or of counts of records:

    time_ms, or time, or arrival    arrival time: time_ms in milliseconds, the others in seconds or as
                                    timestamps
    slot, or key                    number of a slot; or a key, which goes to the same slot as in a step with
                                    this number of slots
    count                           number of records that arrive; 1 if there is no such column

Rows may be in any order. The first time slot begins at the earliest time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from penstock.control.examine.vitals import Floats
from penstock.errors import InputError, SettingError
from penstock.state.keys.codec import KeyCodec, slots_of

Counts = npt.NDArray[np.int32]

_TIMES = {"time_ms": 1.0, "time": 1000.0, "arrival": 1000.0}
"""Milliseconds per unit of each time column, if it holds numbers."""
_MOST_VALUES = 2**30
"""Maximum number of time slots times slots: 4 GB of counts."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Arrivals at one step: the number of records per time slot and slot.

    >>> trace = Trace(100.0, np.array([[3, 1], [0, 2]], dtype=np.int32))
    >>> trace.slots, trace.total, trace.duration_ms
    (2, 6, 200.0)
    """

    delta_ms: float
    """Length of a time slot in milliseconds."""
    counts: Counts
    """Records by time slot and slot. Row 0 arrives in the first `delta_ms`."""

    def __post_init__(self) -> None:
        if self.delta_ms <= 0:
            raise SettingError(f"delta_ms is {self.delta_ms:g}", hint="use more than 0")
        if self.counts.ndim != 2 or 0 in self.counts.shape:
            raise SettingError(
                f"a trace cannot have the shape {self.counts.shape}",
                hint="use one row for each time slot and one column for each slot, at least one of each",
            )

    @property
    def slots(self) -> int:
        return int(self.counts.shape[1])

    @property
    def total(self) -> int:
        """Total number of records."""
        return int(self.counts.sum(dtype=np.int64))

    @property
    def duration_ms(self) -> float:
        return len(self.counts) * self.delta_ms

    @staticmethod
    def from_file(path: str | Path, slots: int, delta_ms: float = 100.0) -> Trace:
        """Read a trace from a CSV or Parquet file. The module's docstring describes the columns.

        Raises `InputError` if the file is missing, unreadable, or has wrong values.
        """
        return Trace(delta_ms, _read(Path(path), slots, delta_ms))

    @staticmethod
    def of_rates(rates: npt.ArrayLike, delta_ms: float = 100.0, seed: int | None = None) -> Trace:
        """A trace with these rates in records per second, by time slot and slot.

        Arrivals are as even as possible, or a Poisson process if there is a seed.

        >>> Trace.of_rates([[25.0], [25.0], [25.0]]).counts.ravel().tolist()
        [2, 3, 2]
        """
        expected = np.atleast_2d(np.asarray(rates, dtype=np.float64)) * (delta_ms / 1000.0)
        if seed is None:
            return Trace(delta_ms, _whole(expected))
        return Trace(delta_ms, np.random.default_rng(seed).poisson(expected).astype(np.int32))

    def cut(self, from_s: float = 0.0, to_s: float | None = None) -> Trace:
        """The part of the trace between these times in seconds."""
        first = round(from_s * 1000 / self.delta_ms)
        last = None if to_s is None else round(to_s * 1000 / self.delta_ms)
        return Trace(self.delta_ms, self.counts[first:last])

    def every(self, delta_ms: float) -> Trace:
        """The same trace with time slots of another length: a multiple or a whole fraction of `delta_ms`.

        >>> trace = Trace(100.0, np.array([[5], [3]], dtype=np.int32))
        >>> trace.every(50.0).counts.ravel().tolist(), trace.every(200.0).counts.ravel().tolist()
        ([2, 3, 1, 2], [8])
        """
        if delta_ms == self.delta_ms:
            return self
        several, parts = round(delta_ms / self.delta_ms), round(self.delta_ms / delta_ms)
        if np.isclose(several * self.delta_ms, delta_ms):
            starts = np.arange(0, len(self.counts), several)
            return Trace(delta_ms, np.add.reduceat(self.counts, starts, axis=0, dtype=np.int32))
        if np.isclose(parts * delta_ms, self.delta_ms):
            # Records of time slot i up to the end of its p-th part, less those before.
            ends = np.arange(1, parts + 1)[None, :, None] * self.counts[:, None, :] // parts
            split = np.diff(ends, axis=1, prepend=0).reshape(-1, self.slots)
            return Trace(delta_ms, split.astype(np.int32))
        raise SettingError(
            f"time slots of {self.delta_ms:g} ms cannot become time slots of {delta_ms:g} ms",
            hint="use a multiple of their length, or divide it by a whole number",
        )

    def rates(self, every_ms: float = 1000.0) -> Floats:
        """Arrivals of all slots together in records per second, over each `every_ms`.

        >>> Trace(500.0, np.array([[3, 1], [0, 2], [4, 0]], dtype=np.int32)).rates().tolist()
        [6.0, 8.0]
        """
        several = max(1, round(every_ms / self.delta_ms))
        starts = np.arange(0, len(self.counts), several)
        totals = np.add.reduceat(self.counts.sum(axis=1, dtype=np.int64), starts)
        lengths = np.diff(starts, append=len(self.counts)) * self.delta_ms / 1000.0
        rates: Floats = totals / lengths
        return rates


def _whole(expected: npt.NDArray[Any]) -> Counts:
    """Whole records per slot whose running total is always less than one behind the expected one."""
    # A small amount is added so that sums of fractions that should be whole are not rounded down.
    by_then = np.floor(np.cumsum(expected, axis=0) + 1e-6)
    return np.diff(by_then, axis=0, prepend=0).astype(np.int32)


def _read(path: Path, slots: int, delta_ms: float) -> Counts:
    """The counts of the trace in this file."""
    table = _table(path)
    if not table.num_rows:
        raise InputError(f"{path} has no rows", hint="use a file with records")
    for name in table.column_names:
        missing = table[name].null_count
        if missing:
            row = pc.index(pc.is_null(table[name]), True).as_py()
            raise InputError(
                f"{path}: {name} is missing in {missing} rows, first in row {row}",
                hint="add a value to each row",
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
    """The columns of the file that are needed."""
    if not path.is_file():
        raise InputError(f"{path} is not a file", hint="use a CSV or Parquet file")
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
            f"{path} has no column for the time or the slot: it has {', '.join(names) or 'no columns'}",
            hint="name one column time_ms, time or arrival, and one column slot or key",
        )
    return [time, place, *(["count"] if "count" in names else [])]


def _times(path: Path, table: pa.Table) -> Floats:
    """Arrival times in milliseconds."""
    name, column = table.column_names[0], table.column(0)
    if name != "time_ms" and pa.types.is_timestamp(column.type):
        micros: npt.NDArray[np.int64] = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
        return micros / 1000.0
    if not _is_number(column.type):
        raise InputError(
            f"{path}: {name} has the type {column.type}",
            hint="write time_ms as a number, and time or arrival as seconds or as timestamps such as "
            "2024-05-06T09:30:00.250",
        )
    times: Floats = column.cast(pa.float64()).to_numpy() * _TIMES[name]
    if not np.isfinite(times).all():
        row = int(np.argmin(np.isfinite(times)))
        raise InputError(f"{path}: {name} of row {row} is not a time", hint="write a number")
    return times


def _slots(path: Path, table: pa.Table, slots: int) -> npt.NDArray[Any]:
    column = table.column(1)
    if table.column_names[1] == "key":
        keys = KeyCodec(pa.schema([("key", column.type)]))
        batch = pa.RecordBatch.from_arrays([column.combine_chunks()], schema=keys.schema)
        return slots_of(keys.encode(batch).hashes, slots)
    place = _whole_numbers(path, table, 1)
    wrong = np.flatnonzero((place < 0) | (place >= slots))
    if len(wrong):
        raise InputError(
            f"{path}: slot is {place[wrong[0]]} in row {wrong[0]}, but there are {slots} slots",
            hint=f"use 0 to {slots - 1}, or more slots",
        )
    return place


def _counts(path: Path, table: pa.Table) -> npt.NDArray[Any] | None:
    if table.num_columns < 3:
        return None
    counts = _whole_numbers(path, table, 2)
    wrong = np.flatnonzero(counts < 0)
    if len(wrong):
        raise InputError(
            f"{path}: count is {counts[wrong[0]]} in row {wrong[0]}", hint="use 0 or more"
        )
    return counts


def _whole_numbers(path: Path, table: pa.Table, place: int) -> npt.NDArray[Any]:
    name, column = table.column_names[place], table.column(place)
    if not pa.types.is_integer(column.type):
        raise InputError(f"{path}: {name} has the type {column.type}", hint="write whole numbers")
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))
