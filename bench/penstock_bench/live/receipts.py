"""When the sink got which row, noted from outside of the flow; rows follow from their numbers alone.

A flow that gives, for a key, how many of its rows it has taken so far tells by that which rows are done. A
live courier notes what its sink is given and when, in a file of its own; the time of arrival of every row is
known from the load.
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
"""One row for each output row: received at (microseconds since 1970), key, count of the key's rows so far."""

Told = Callable[[pa.RecordBatch], tuple[Numbers, Numbers]]
"""The keys and counts that a batch of output tells. Picklable."""
_COLUMNS = 3


@dataclass(frozen=True)
class Columns:
    """Two columns of integers: a key and its count."""

    key: str
    count: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        key, count = (batch.column(name).to_numpy() for name in (self.key, self.count))
        return key, count


@dataclass(frozen=True)
class Receipts:
    """A function for `foreach_arrow`: notes what comes, in files of a folder."""

    folder: str
    told: Told

    def __call__(self, batch: pa.RecordBatch, ids: object) -> None:
        key, count = self.told(batch)
        rows = np.empty((len(key), _COLUMNS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = time.time_ns() // 1000, key, count
        with (Path(self.folder) / f"{os.getpid()}.i64").open("ab", buffering=0) as file:
            file.write(rows.tobytes())

    def received(self) -> Received:
        """All that was noted so far, by any courier."""
        found = [np.fromfile(file, np.int64) for file in sorted(Path(self.folder).glob("*.i64"))]
        whole = np.concatenate([np.empty(0, np.int64), *found])
        return whole[: len(whole) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS)


def done_us(key: Numbers, received: Received) -> Floats:
    """When each record was done, microseconds since 1970; nan: never. Records are in their order.

    A record is done when a count of its key has come that it is part of.

    >>> told = np.array([[50, 7, 1], [90, 7, 3], [70, 8, 1]])
    >>> done_us(np.array([7, 8, 7, 7, 7]), told).tolist()
    [50.0, 70.0, 90.0, 90.0, nan]
    """
    if not len(received):
        return np.full(len(key), np.nan)
    order = np.lexsort((received[:, 2], received[:, 1]))
    at, keys, counts = received[order].T
    base = np.unique(np.concatenate([keys, key]), return_inverse=True)[1]
    most = max(int(counts.max()), len(key)) + 1
    # Of one key a later count may have come before: the earliest of all that are high enough is meant.
    since = int(at.min())
    group = base[: len(keys)] * (int(at.max()) - since + 1)
    earliest = np.minimum.accumulate((at - since + group)[::-1])[::-1] - group + since
    wanted = base[len(keys) :] * most + ordinals(key)
    place = np.searchsorted(base[: len(keys)] * most + counts, wanted)
    found = np.full(len(key), np.nan)
    known = place < len(keys)
    known[known] = keys[place[known]] == key[known]
    found[known] = earliest[place[known]]
    return found


def ordinals(key: Numbers) -> Numbers:
    """How many records of its key there are up to each one.

    >>> ordinals(np.array([7, 8, 7, 7, 8])).tolist()
    [1, 1, 2, 3, 2]
    """
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1])
    lengths = np.diff(np.append(first, len(ordered)))
    found = np.empty(len(key), np.int64)
    found[order] = np.arange(len(key)) - np.repeat(first, lengths) + 1
    return found
