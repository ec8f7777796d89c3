"""Times at which the sink received each row, recorded outside of the flow.

A flow whose output has a running count per key thereby shows which rows are done. Each live courier records
the sink's rows and their times in a file of its own. The arrival time of every row is known from the load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.control.examine.vitals import Floats
from penstock.sim.pieces import Numbers

Received = npt.NDArray[np.int64]
"""One row per output row: received at (microseconds since 1970), key, count of the key's rows so far."""

ReadCounts = Callable[[pa.RecordBatch], tuple[Numbers, Numbers]]
"""A picklable function that reads keys and their counts from a batch of output."""
_COLUMNS = 3


@dataclass(frozen=True)
class Columns:
    """Reads keys and counts from two integer columns."""

    key: str
    count: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        key, count = (batch.column(name).to_numpy() for name in (self.key, self.count))
        return key, count


@dataclass(frozen=True)
class Receipts:
    """A function for `foreach_arrow` that records all rows in files of a folder."""

    folder: str
    read_counts: ReadCounts

    def __call__(self, batch: pa.RecordBatch, ids: object) -> None:
        key, count = self.read_counts(batch)
        rows = np.empty((len(key), _COLUMNS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = time.time_ns() // 1000, key, count
        with (Path(self.folder) / f"{os.getpid()}.i64").open("ab", buffering=0) as file:
            file.write(rows.tobytes())

    def received(self) -> Received:
        """All rows recorded so far, by any courier."""
        parts = [np.fromfile(file, np.int64) for file in sorted(Path(self.folder).glob("*.i64"))]
        whole = np.concatenate([np.empty(0, np.int64), *parts])
        return whole[: len(whole) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS)


def done_us(key: Numbers, received: Received) -> Floats:
    """Time at which each record was done, in microseconds since 1970; nan if it never was.

    Records are in the order of their arrival. A record is done when the sink has received a count of its
    key that includes it.

    >>> received = np.array([[50, 7, 1], [90, 7, 3], [70, 8, 1]])
    >>> done_us(np.array([7, 8, 7, 7, 7]), received).tolist()
    [50.0, 70.0, 90.0, 90.0, nan]
    """
    if not len(received):
        return np.full(len(key), np.nan)
    order = np.lexsort((received[:, 2], received[:, 1]))
    at, keys, counts = received[order].T
    base = np.unique(np.concatenate([keys, key]), return_inverse=True)[1]
    most = max(int(counts.max()), len(key)) + 1
    # A key's higher count may have come before a lower one: take the earliest of all that are high enough.
    since = int(at.min())
    group = base[: len(keys)] * (int(at.max()) - since + 1)
    earliest = np.minimum.accumulate((at - since + group)[::-1])[::-1] - group + since
    wanted = base[len(keys) :] * most + ordinals(key)
    place = np.searchsorted(base[: len(keys)] * most + counts, wanted)
    done = np.full(len(key), np.nan)
    known = place < len(keys)
    known[known] = keys[place[known]] == key[known]
    done[known] = earliest[place[known]]
    return done


def ordinals(key: Numbers) -> Numbers:
    """Number of records of the same key up to and including each record.

    >>> ordinals(np.array([7, 8, 7, 7, 8])).tolist()
    [1, 1, 2, 3, 2]
    """
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1])
    lengths = np.diff(np.append(first, len(ordered)))
    result = np.empty(len(key), np.int64)
    result[order] = np.arange(len(key)) - np.repeat(first, lengths) + 1
    return result
