"""Several streams in one order, by event time, each keeping its own order.

A row's place is its stream's *running maximum* of event times: a row that comes late in its file
stays behind those before it. At equal places the earlier stream comes first. Only what cannot yet
be placed is held, so files may be much larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock_bench.workloads.draws import Numbers

_BEFORE_ALL = -(2**62)


@dataclass(frozen=True)
class Merged:
    """Some rows in their order: row i is the next of stream `order[i]`."""

    order: npt.NDArray[np.int8]
    rows: tuple[pa.RecordBatch | None, ...]
    """What each stream has in it."""


class TimedStream:
    """Batches with a `date_time`, and what is known of their times so far."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._newest = _BEFORE_ALL
        self.disorder_us = 0
        """The most that a row was behind the newest before it."""
        self.first_us: int | None = None
        self.last_us: int | None = None
        self.done = False
        self.held: pa.RecordBatch | None = None
        self.places: Numbers = np.zeros(0, np.int64)

    def fill(self) -> None:
        """Have at least one row held, or be done."""
        while not self.done and not len(self.places):
            batch = next(self._batches, None)
            if batch is None:
                self.done, self.held = True, None
            elif batch.num_rows:
                self.held, self.places = batch, self._watch(batch.column("date_time"))

    def release(self, count: int) -> pa.RecordBatch | None:
        """The first `count` rows that are held; they are held no longer."""
        if not count:
            return None
        assert self.held is not None
        given = self.held.slice(0, count)
        self.held, self.places = self.held.slice(count), self.places[count:]
        return given

    def _watch(self, column: pa.Array) -> Numbers:
        times = pc.fill_null(column.cast(pa.int64()), _BEFORE_ALL).to_numpy(zero_copy_only=False)
        known = times != _BEFORE_ALL
        places = np.maximum(np.maximum.accumulate(times), self._newest)
        self._newest = int(places[-1])
        if known.any():
            seen = times[known]
            self.disorder_us = max(self.disorder_us, int((places[known] - seen).max()))
            first, last = int(seen.min()), int(seen.max())
            self.first_us = first if self.first_us is None else min(self.first_us, first)
            self.last_us = last if self.last_us is None else max(self.last_us, last)
        return places


def merge(streams: Sequence[TimedStream]) -> Iterator[Merged]:
    """All rows of the streams, in order.

    >>> def times(*micros):
    ...     return pa.record_batch({"date_time": pa.array(micros, pa.timestamp("us"))})
    >>> two = [TimedStream(iter([times(1, 5, 2), times(9)])), TimedStream(iter([times(5, 6)]))]
    >>> [int(stream) for part in merge(two) for stream in part.order]
    [0, 0, 0, 1, 1, 0]
    """
    while True:
        for stream in streams:
            stream.fill()
        if all(stream.done for stream in streams):
            return
        counts = [_placeable(streams, s) for s in range(len(streams))]
        places = np.concatenate(
            [stream.places[:count] for stream, count in zip(streams, counts, strict=True)]
        )
        numbers = np.repeat(np.arange(len(streams), dtype=np.int8), counts)
        order = numbers[np.lexsort([numbers, places])]
        rows = [stream.release(count) for stream, count in zip(streams, counts, strict=True)]
        yield Merged(order, tuple(rows))


def _placeable(streams: Sequence[TimedStream], s: int) -> int:
    """How many held rows of stream s come before all that other streams may still bring."""
    places = streams[s].places
    count = len(places)
    for t, other in enumerate(streams):
        if t != s and not other.done:
            bound = other.places[-1]
            count = min(count, int(np.searchsorted(places, bound, "right" if t > s else "left")))
    return count
