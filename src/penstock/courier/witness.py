"""Statistics of the rows that pass a courier: their number, arrival times, and newest event times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import FlowError
from penstock.plan.steps import SourcePlan
from penstock.state.arrays import fixed_values
from penstock.wire.report import Seen

_BUCKETS = 512
"""Largest number of buckets of arrival times in a report. Each is at least one millisecond wide."""
_FINE = 1 << 16
"""Largest number of buckets while rows are read, and of rows whose arrival times are not in buckets yet."""

MOST_PARTITIONS = 10_000
"""Largest number of source partitions of an input per epoch. Each one is reported, and kept in manifests."""

UNNAMED = "(none)"
"""Partition of rows whose partition is null or an empty string."""

_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class Witness:
    """Watches the batches of a flow's sources on their way in.

    >>> rows = pa.record_batch({"at": pa.array([5, 7, 6], pa.timestamp("ms")), "p": ["a", "b", "a"]})
    >>> witness = Witness([SourcePlan(rows.schema, event_time="at", partition="p")])
    >>> witness.note(0, rows)
    {'a': 6, 'b': 7}
    >>> witness.seen().event_ms
    ((0, 'a', 6), (0, 'b', 7))
    """

    def __init__(self, sources: Sequence[SourcePlan]) -> None:
        self._sources = sources
        self._rows = 0
        self._arrivals: list[npt.NDArray[np.int64]] = []
        """Arrival time of each row that is not in a bucket yet, in milliseconds since 1970."""
        self._unfolded = 0
        """Number of rows that are not in a bucket yet."""
        self._buckets = np.zeros(0, np.int64), np.zeros(0, np.int64)
        """Middle of each bucket that has rows, and its number of rows."""
        self._newest: dict[tuple[int, str], int] = {}
        """(input, partition) -> newest event time, in milliseconds since 1970."""

    def watch(self, input: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and note each one before it is passed on."""
        for batch in batches:
            self.note(input, batch)
            yield batch

    def note(self, input: int, batch: pa.RecordBatch) -> dict[str, int]:
        """Note one batch of an input, and return the newest event time of each partition in it."""
        source = self._sources[input]
        self._rows += batch.num_rows
        if not batch.num_rows:
            return {}
        if source.arrival is not None:
            self._arrivals.append(_as_ms(batch.column(source.arrival)))
            self._unfolded += batch.num_rows
            if self._unfolded > _FINE:
                self._buckets, self._arrivals, self._unfolded = self._bucketed(_FINE), [], 0
        if source.event_time is not None:
            times = batch.column(source.event_time)
            partition = None if source.partition is None else batch.column(source.partition)
            return self._note_times(input, times, partition, source.partition)
        return {}

    def _note_times(
        self, input: int, times: pa.Array, partition: pa.Array | None, column: str | None
    ) -> dict[str, int]:
        newest = _newest_by(times, partition)
        for name, time in newest.items():
            place = (input, name)
            self._newest[place] = max(self._newest.get(place, time), time)
        if partition is not None:
            named = sum(number == input for number, _ in self._newest)
            if named > MOST_PARTITIONS:
                raise FlowError(
                    f"the partition column {column!r} has more than {MOST_PARTITIONS:,} values",
                    hint="use a column that has one value for each partition of the source, such "
                    "as `partition` of a Kafka topic, or no partition column",
                )
        return newest

    def seen(self) -> Seen:
        """Return a report on the rows so far."""
        arrivals, counts = self._bucketed(_BUCKETS)
        newest = ((input, name, time) for (input, name), time in sorted(self._newest.items()))
        return Seen(self._rows, tuple(arrivals.tolist()), tuple(counts.tolist()), tuple(newest))

    def _bucketed(self, most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Put all arrivals into at most this many buckets; return middles and row counts of nonempty ones."""
        middles, held = self._buckets
        times = np.concatenate([middles, *self._arrivals])
        if times.size == 0:
            return self._buckets
        counts = np.ones(len(times), np.int64)
        counts[: len(held)] = held
        low, high = int(times.min()), int(times.max())
        width = max(1, -(-(high - low + 1) // most))
        rows = np.bincount((times - low) // width, counts).astype(np.int64)
        filled = np.flatnonzero(rows)
        return low + filled * width + width // 2, rows[filled]


def _as_ms(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a timestamp column as milliseconds since 1970, without nulls."""
    times = fixed_values(column.drop_null() if column.null_count else column)
    unit = column.type.unit
    return times * 1_000 if unit == "s" else times // _PER_MS[unit]


def _newest_by(times: pa.Array, partition: pa.Array | None) -> dict[str, int]:
    """Return the newest time of each partition, in milliseconds since 1970, ignoring null times.

    Times are rounded down, even before 1970: a watermark must not overtake the row that it comes from.
    """
    if times.null_count == len(times):
        return {}
    if partition is None:
        if times.null_count:
            times = times.drop_null()
        return {"": _to_ms(int(fixed_values(times).max()), times.type)}
    if times.null_count:
        valid = times.is_valid()
        times, partition = times.filter(valid), partition.filter(valid)
    codes = _as_codes(partition)
    newest = np.full(len(codes.dictionary), np.iinfo(np.int64).min)
    np.maximum.at(newest, fixed_values(codes.indices), fixed_values(times))
    result: dict[str, int] = {}
    for name, time in zip(_names(codes.dictionary), newest.tolist(), strict=True):
        result[name] = max(result.get(name, time), time)
    return {name: _to_ms(time, times.type) for name, time in result.items()}


def _as_codes(partition: pa.Array) -> pa.DictionaryArray:
    """Dictionary-encode a column, so that expensive work is done once per distinct value."""
    if isinstance(partition, pa.DictionaryArray):
        partition = partition.dictionary_decode()
    if partition.type == pa.string_view():
        partition = partition.cast(pa.string())
    return partition.dictionary_encode(null_encoding="encode")


def _names(values: pa.Array) -> list[str]:
    return [name or UNNAMED for name in values.cast(pa.string()).to_pylist()]


def _to_ms(time: int, type: pa.DataType) -> int:
    return time * 1_000 if type.unit == "s" else time // _PER_MS[type.unit]
