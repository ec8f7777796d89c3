"""What a courier notices of the rows that pass: how many, when they arrived, how far event time got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.control.diagnose.hot_keys import HotKeyCount
from penstock.courier.tally import Counts, counts_from_text
from penstock.errors import FlowError
from penstock.offload.backends.backend import Usage
from penstock.offload.courier.report import Offloaded, Routed
from penstock.offload.courier.stateless_work import MapWork
from penstock.state.arrays import fixed_values

_BUCKETS = 512
"""Arrivals of a task are told in at most so many buckets, each at least one millisecond wide."""

MOST_PARTITIONS = 10_000
"""Of one input, in one epoch: each is told to the driver, and kept in manifests."""

UNNAMED = "(none)"
"""The partition of rows whose partition is null or an empty text."""

_PER_MS = {"us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True)
class Seen:
    """One courier's report of one epoch."""

    rows: int
    arrivals_ms: tuple[int, ...] = ()
    """Middle of each bucket of arrival times, since 1970."""
    counts: tuple[int, ...] = ()
    event_ms: tuple[tuple[int, str, int], ...] = ()
    """(input, partition, newest event time); the partition is "" for inputs without partitions."""

    late: dict[str, int] = field(default_factory=dict)
    """step -> how many rows were too late for it."""

    loads: dict[str, Counts] = field(default_factory=dict)
    """step -> records sent to its hosts, by slot (see `Tally`). Where functions help, what they carry
    is among them, as if hosts had got it.

    When each of them arrived is not told: what a step is sent may be combined, or made by the step
    before it. Whoever needs times spreads a slot's count over the arrivals of the whole task.
    """

    hot: tuple[HotKeyCount, ...] = ()
    """The most frequent keys of the slots that the epoch's plan had watched."""

    offloaded: tuple[Offloaded, ...] = ()
    """What went to functions, by segment; none of those of which nothing was to go."""
    used: Usage = field(default_factory=Usage)
    """For `BurstWorkers.note`."""

    maps: dict[str, MapWork] = field(default_factory=dict)
    """segment -> what its stateless steps had to do; of those alone that the plan has timed."""
    routed: dict[str, Routed] = field(default_factory=dict)
    """segment -> what came by where its rows leave for functions; of those alone with a reflex."""

    @staticmethod
    def from_json(facts: dict[str, Any]) -> Seen:
        """From what `Witness.to_json` told, with late rows (as pairs), loads and hot keys put in,
        and what `told_of_functions` and `told_of_maps` told."""
        return Seen(
            facts["rows"],
            tuple(facts["arrivals_ms"]),
            tuple(facts["counts"]),
            tuple((number, name, time) for number, name, time in facts["event_ms"]),
            dict(facts["late"]),
            {step: counts_from_text(text) for step, text in facts["loads"].items()},
            tuple(HotKeyCount(*told) for told in facts["hot"]),
            tuple(map(Offloaded.from_json, facts.get("offloaded", ()))),
            Usage(**facts.get("used", {})),
            {name: MapWork.from_json(told) for name, told in facts.get("maps", {}).items()},
            {name: Routed(*told) for name, told in facts.get("routed", {}).items()},
        )


@dataclass(frozen=True)
class Watched:
    """The columns of one source that a witness looks at; None for what the source does not have."""

    arrival: str | None = None
    event_time: str | None = None
    partition: str | None = None


class Witness:
    """Watches the batches of a flow's sources on their way in.

    >>> witness = Witness([Watched(event_time="at", partition="p")])
    >>> at = pa.array([5, 7, 6], pa.timestamp("ms"))
    >>> witness.note(0, pa.record_batch({"at": at, "p": ["a", "b", "a"]}))
    >>> Seen.from_json(witness.to_json()).event_ms
    ((0, 'a', 6), (0, 'b', 7))
    """

    def __init__(self, inputs: Sequence[Watched]) -> None:
        self._inputs = tuple(inputs)
        self._rows = 0
        self._arrivals: list[npt.NDArray[np.int64]] = []
        self._newest: dict[tuple[int, str], int] = {}

    def watch(self, input: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, each noted before it is handed on."""
        for batch in batches:
            self.note(input, batch)
            yield batch

    def note(self, input: int, batch: pa.RecordBatch) -> None:
        """Take in one batch of an input."""
        watched = self._inputs[input]
        self._rows += batch.num_rows
        if not batch.num_rows:
            return
        if watched.arrival is not None:
            self._arrivals.append(_as_ms(batch.column(watched.arrival)))
        if watched.event_time is not None:
            times = batch.column(watched.event_time)
            partition = None if watched.partition is None else batch.column(watched.partition)
            self._note_times(input, times, partition, watched.partition)

    def _note_times(
        self, input: int, times: pa.Array, partition: pa.Array | None, column: str | None
    ) -> None:
        for name, time in _newest_by(times, partition).items():
            place = (input, name)
            self._newest[place] = max(self._newest.get(place, time), time)
        if partition is not None:
            named = sum(number == input for number, _ in self._newest)
            if named > MOST_PARTITIONS:
                raise FlowError(
                    f"the partition column {column!r} has more than {MOST_PARTITIONS:,} values",
                    hint="name a column that has one value for each partition of the source, such "
                    "as `partition` of a Kafka topic, or none",
                )

    def to_json(self) -> dict[str, Any]:
        """What passed so far, as `Seen.from_json` takes it."""
        arrivals, counts = self._histogram()
        return {
            "rows": self._rows,
            "arrivals_ms": arrivals,
            "counts": counts,
            "event_ms": [[*place, time] for place, time in sorted(self._newest.items())],
            "late": [],
            "loads": {},
            "hot": [],
        }

    def _histogram(self) -> tuple[list[int], list[int]]:
        if not self._arrivals:
            return [], []
        times = np.concatenate(self._arrivals)
        if times.size == 0:
            return [], []
        low, high = int(times.min()), int(times.max())
        width = max(1, -(-(high - low + 1) // _BUCKETS))
        counts = np.bincount((times - low) // width)
        filled = np.flatnonzero(counts)
        middles = low + filled * width + width // 2
        return [int(m) for m in middles], [int(c) for c in counts[filled]]


def _as_ms(column: pa.Array) -> npt.NDArray[np.int64]:
    """A timestamp column as milliseconds since 1970; nulls are left out."""
    times = column.drop_null().cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    found: npt.NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
    return found


def _newest_by(times: pa.Array, partition: pa.Array | None) -> dict[str, int]:
    """The newest time, in milliseconds, of each partition; null times are left out.

    Times are rounded down, also those before 1970: a watermark must not pass a row that it is of.
    """
    if times.null_count == len(times):
        return {}
    if partition is None:
        return {"": _to_ms(pc.max(times).value, times.type)}
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
    """Few distinct values, so what is costly is done once for each of those."""
    if isinstance(partition, pa.DictionaryArray):
        partition = partition.dictionary_decode()
    if partition.type == pa.string_view():
        partition = partition.cast(pa.string())
    return partition.dictionary_encode(null_encoding="encode")


def _names(values: pa.Array) -> list[str]:
    return [name or UNNAMED for name in values.cast(pa.string()).to_pylist()]


def _to_ms(time: int, type: pa.DataType) -> int:
    return time * 1_000 if type.unit == "s" else time // _PER_MS.get(type.unit, 1)
