"""Places: sort keys of output rows, so that rows leave in the order in which their input arrived.

A place is a pair of int64, compared as a pair.

- A row caused by a record has the record's place: its source partition, and its serial number among the
  records that the partition's courier sent to the step, counted before they are split among hosts. In a flow
  that is ordered by arrival: its arrival time, then these two in one number.
- A row emitted once per epoch, at its end, has the first place of all records that touched its entry.
- A row that fell due by time comes before all records, or after them when the input has ended. Such rows
  are ordered by time, then by the hash of the key.

A place does not depend on which host or part processed a row, or when. Places go over the wire as
columns beside the rows, and only in ordered flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from penstock.operators.entry_groups import stable_order
from penstock.state.arrays import Array, fixed_array, fixed_values, grown, more

SERIAL = "__serial"
"""Column (int64) with the serial numbers of records sent to hosts, in ordered flows."""
MAJOR, MINOR = "__major", "__minor"
"""Columns with the places of rows that hosts send back."""

_FAR = 1 << 62
AT_THE_END = _FAR
"""Due time, in milliseconds, of rows that are due because the input has ended."""
_LATEST = 1 << 61
"""Greatest distance from 1970, in milliseconds, that places tell apart. Chosen so that due times of both
signs never collide with partition numbers."""
_RECORDS = (1 << 61) - 1
"""Highest partition number, or arrival time in nanoseconds since 1970, of a record."""
_DENSE = 4
"""Range of serial numbers per row, up to which a counting sort is faster than a comparison sort."""
_SMALL = (1 << 32) - 1
"""Highest serial number that is sent back as 4 bytes."""
_ONE_BATCH = 1 << 30
"""Largest size of rows, in bytes, that are put into one batch."""
_PIECE = 1 << 16
"""Rows per batch when the rows are larger than `_ONE_BATCH`."""


@dataclass(frozen=True, eq=False)
class Places:
    """The places (sort keys) of some rows, as two arrays.

    >>> Places.of_records(3, np.array([7, 8]))
    Places([(3, 7), (3, 8)])
    """

    major: Array
    """Partition, or arrival time, of the causing record (int64); for rows due by time, a number outside of
    those."""
    minor: Array
    """Serial number of the causing record (int64); for rows due by time, the hash of the key."""

    def __len__(self) -> int:
        return len(self.major)

    def __repr__(self) -> str:
        pairs = zip(self.major.tolist(), self.minor.tolist(), strict=True)
        return f"Places({list(pairs)})"

    @staticmethod
    def none() -> Places:
        """The places of no rows."""
        return Places(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of_records(partition: int, serials: Array) -> Places:
        """The places of records that a partition's courier sent."""
        return Places(np.full(len(serials), partition, np.int64), serials)

    @staticmethod
    def of_due(times_ms: Array, hashes: Array, final: bool = False) -> Places:
        """The places of rows that fell due at these times, for keys with these hashes: before all records,
        or after them if the input has ended (`final`).

        >>> due, key = np.array([5]), np.array([1], np.uint64)
        >>> before, after = Places.of_due(due, key), Places.of_due(due, key, final=True)
        >>> before.major[0] < 0 < 2**31 < after.major[0]
        np.True_
        """
        times = np.clip(times_ms, -_LATEST, _LATEST)
        return Places(times + (_FAR if final else -_FAR), hashes.view(np.int64))

    @staticmethod
    def joined(some: Sequence[Places]) -> Places:
        """Concatenate places."""
        if len(some) < 2:
            return some[0] if some else Places.none()
        return Places(
            np.concatenate([places.major for places in some]),
            np.concatenate([places.minor for places in some]),
        )

    @property
    def of_time(self) -> Array:
        """Mask (bool) of the rows that fell due by time and were not caused by a record."""
        return (self.major < 0) | (self.major > _RECORDS)

    @property
    def due_ms(self) -> Array:
        """Due times in milliseconds, for rows that fell due by time."""
        return np.where(self.major < 0, self.major + _FAR, AT_THE_END)

    def take(self, rows: Array) -> Places:
        """The places of these row numbers."""
        return Places(self.major[rows], self.minor[rows])

    def slice(self, begin: int, rows: int) -> Places:
        """The places of `rows` rows, beginning at number `begin`."""
        end = begin + rows
        return Places(self.major[begin:end], self.minor[begin:end])

    def split(self, batches: Iterable[pa.RecordBatch]) -> list[Places]:
        """Split the places of all batches' rows into the places of each batch."""
        sizes = [batch.num_rows for batch in batches]
        return [self.slice(int(e) - n, n) for e, n in zip(np.cumsum(sizes), sizes, strict=True)]

    def order(self) -> Array | None:
        """The stable order of the rows by place; None if they are in order already."""
        major, minor = self.major, self.minor
        level = major[1:] == major[:-1]
        if bool((level | (major[1:] > major[:-1])).all()):
            if bool((~level | (minor[1:] >= minor[:-1])).all()):
                return None
            if level.all():
                return _order(minor)
        return np.lexsort((minor, major))


def _order(serials: Array) -> Array:
    """The stable order of serial numbers; fast where they are close together."""
    least, most = int(serials.min()), int(serials.max())
    if most - least < _DENSE * len(serials):
        order: Array = stable_order(serials - least, most - least + 1)[0]
        return order
    return np.argsort(serials, kind="stable")


def taken(places: Places | None, rows: Array) -> Places | None:
    """The places of these rows; None if there are no places."""
    return None if places is None else places.take(rows)


def in_order(batches: Sequence[pa.RecordBatch], places: Sequence[Places]) -> list[pa.RecordBatch]:
    """Sort all rows by place; rows of one place keep their order.

    The result is one batch unless it would be too large, so that later steps do not depend on how many
    hosts, or parts of a host, the rows come from.
    """
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return []
    order = Places.joined([part for part in places if len(part)]).order()
    if sum(batch.nbytes for batch in some) > _ONE_BATCH:
        return some if order is None else list(_in_pieces(some, order))
    whole = some[0] if len(some) == 1 else pa.concat_batches(some)
    return [whole if order is None else taken_rows(whole, order)]


def taken_rows(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """These rows of a batch, taken column by column, which is 1.5 times as fast as taking whole rows."""
    if not batch.num_columns:
        return batch
    at = fixed_array(rows, pa.int64())
    return pa.RecordBatch.from_arrays([c.take(at) for c in batch.columns], schema=batch.schema)


def _in_pieces(batches: list[pa.RecordBatch], order: Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all batches in this order, in small batches: one array cannot hold all the text."""
    ends = np.cumsum([batch.num_rows for batch in batches])
    for begin in range(0, len(order), _PIECE):
        rows = order[begin : begin + _PIECE]
        of = np.searchsorted(ends, rows, "right")
        by_batch = np.argsort(of, kind="stable")
        parts = []
        for number in np.unique(of):
            batch = batches[number]
            inside = rows[by_batch][of[by_batch] == number] - (ends[number] - batch.num_rows)
            parts.append(batch.take(fixed_array(inside, pa.int64())))
        back = np.argsort(by_batch)
        yield pa.concat_batches(parts).take(fixed_array(back, pa.int64()))


# -- records on their way to the hosts


def with_serial(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Append a column with the serial numbers of the records, which begin at `first`."""
    return _with(batch, {SERIAL: np.arange(first, first + batch.num_rows)})


def split_serial(
    batches: list[pa.RecordBatch], partition: int
) -> tuple[list[pa.RecordBatch], Places | None]:
    """Remove the serial numbers from a courier's batches. Returns the batches and the places of their rows.

    The places are None if the flow is not ordered, or if there are no batches.
    """
    if not batches or batches[0].schema.names[-1:] != [SERIAL]:
        return batches, None
    serials = np.concatenate([fixed_values(batch.column(SERIAL)) for batch in batches])
    return [_without(batch, 1) for batch in batches], Places.of_records(partition, serials)


def by_arrival(
    channels: Sequence[tuple[list[pa.RecordBatch], Places]], column: str
) -> tuple[list[pa.RecordBatch], Places]:
    """Merge the records of several partitions by the arrival times in a column, then by their places.

    Records without an arrival time come first.

    >>> rows = [pa.RecordBatch.from_pydict({"at": pa.array(at, pa.timestamp("us"))}) for at in ([5, 9], [7])]
    >>> places = [Places.of_records(0, np.arange(2)), Places.of_records(1, np.arange(1))]
    >>> batches, merged = by_arrival([([rows[0]], places[0]), ([rows[1]], places[1])], "at")
    >>> [at.microsecond for at in batches[0].column("at").to_pylist()], merged.major.tolist()
    ([5, 7, 9], [5000, 7000, 9000])
    """
    batches = [batch for some, _ in channels for batch in some if batch.num_rows]
    if not batches:
        return [], Places.none()
    whole = pa.concat_batches(batches)
    times = whole.column(column)
    per_ns = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[times.type.unit]
    at_ns = fixed_values(times.cast(pa.int64()).fill_null(0)) * per_ns
    sent = Places.joined([places for _, places in channels if len(places)])
    places = Places(np.clip(at_ns, 0, _RECORDS), (sent.major << 40) | sent.minor)
    order = places.order()
    return ([whole], places) if order is None else ([taken_rows(whole, order)], places.take(order))


# -- rows on their way back


def with_both(batch: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    """Append the places of an answer's rows as two columns: the format of long-lived streams."""
    return _with(batch, {MAJOR: places.major, MINOR: places.minor})


def schema_with_both(schema: pa.Schema) -> pa.Schema:
    """The schema of batches made by `with_both`."""
    return schema.append(pa.field(MAJOR, pa.int64())).append(pa.field(MINOR, pa.int64()))


def with_places(batches: list[pa.RecordBatch], places: Sequence[Places]) -> list[pa.RecordBatch]:
    """Append places to the batches of an answer, or return the batches unchanged if it has none.

    If all rows were caused by records of one partition, as nearly always, one 4-byte column is added and
    the partition goes into the schema's metadata. Otherwise two columns are added. All batches get the
    same columns.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> [sent] = with_places([rows], [Places.of_records(3, np.array([40, 41]))])
    >>> sent.schema.names
    ['n', '__minor']
    >>> split_places([sent])[1]
    [Places([(3, 40), (3, 41)])]
    """
    if not places:
        return batches
    parts = list(zip(batches, places, strict=True))
    partition = _only_partition(places)
    if partition is None:
        return [with_both(rows, at) for rows, at in parts]
    metadata = {MAJOR.encode(): str(partition).encode()}
    return [
        rows.append_column(
            pa.field(MINOR, pa.uint32()), fixed_array(at.minor.astype(np.uint32), pa.uint32())
        ).replace_schema_metadata(metadata)
        for rows, at in parts
    ]


def _only_partition(places: Sequence[Places]) -> int | None:
    """The partition whose records caused all rows, if their serial numbers fit 4 bytes; else None."""
    some = [at for at in places if len(at)]
    if not some:
        return 0
    first = int(some[0].major[0])
    for at in some:
        if (at.major != first).any() or at.minor.min() < 0 or at.minor.max() > _SMALL:
            return None
    return first


def split_places(
    batches: Sequence[pa.RecordBatch],
) -> tuple[list[pa.RecordBatch], list[Places]]:
    """Remove the columns that `with_places` or `with_both` added. Returns the batches and their places."""
    rows, places = [], []
    for batch in batches:
        partition = (batch.schema.metadata or {}).get(MAJOR.encode())
        minor = fixed_values(batch.column(MINOR))
        if partition is None:
            places.append(Places(fixed_values(batch.column(MAJOR)), minor))
            rows.append(_without(batch, 2))
        else:
            places.append(Places.of_records(int(partition), minor.astype(np.int64)))
            rows.append(_without(batch, 1).replace_schema_metadata(None))
    return rows, places


def _with(batch: pa.RecordBatch, columns: dict[str, Array]) -> pa.RecordBatch:
    for name, values in columns.items():
        batch = batch.append_column(pa.field(name, pa.int64()), fixed_array(values, pa.int64()))
    return batch


def _without(batch: pa.RecordBatch, columns: int) -> pa.RecordBatch:
    """Drop the last columns of a batch. It keeps its number of rows even if no column is left."""
    for _ in range(columns):
        batch = batch.remove_column(batch.num_columns - 1)
    return batch


class FirstPlaces:
    """The first place of each entry of a table, since the last `clear`.

    After an undo of the table, entry numbers may belong to other keys. So the hash of the key is kept with
    each place, and a place noted for another key is ignored. A place noted for the same key before an undo
    stays. That is harmless: the channel is applied again with the same records.
    """

    def __init__(self) -> None:
        self._round = 1
        self._known = np.zeros((0, 4), np.int64)
        """Per entry: the round in which its place was noted, the hash of its key, and the place."""

    def clear(self) -> None:
        """Forget all places: a round begins, or was rolled back."""
        self._round += 1

    def note(self, entries: Array, hashes: Array, places: Places) -> None:
        """Note that records with these places touched these entries, whose keys have these hashes."""
        if len(entries):
            self._reserve(int(entries.max()) + 1)
            hashes = hashes.view(np.int64)
            _note(entries, hashes, places.major, places.minor, self._round, self._known)

    def of(self, entries: Array) -> Places:
        """The first places of these entries; the lowest possible place if no record touched an entry."""
        if not len(entries):
            return Places.none()
        self._reserve(int(entries.max()) + 1)
        rounds, _, major, minor = self._known.take(entries, axis=0).T
        noted, least = rounds == self._round, np.iinfo(np.int64).min
        return Places(np.where(noted, major, least), np.where(noted, minor, least))

    def _reserve(self, room: int) -> None:
        used = len(self._known)
        if room > used:
            self._known = grown(self._known, used, max(room, more(used)))


@njit(cache=True, nogil=True)
def _note(entries, hashes, majors, minors, now, known):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        e = entries[i]
        fresh = known[e, 0] != now or known[e, 1] != hashes[i]
        earlier = majors[i] < known[e, 2] or (majors[i] == known[e, 2] and minors[i] < known[e, 3])
        if fresh or earlier:
            known[e, 0], known[e, 1] = now, hashes[i]
            known[e, 2], known[e, 3] = majors[i], minors[i]
