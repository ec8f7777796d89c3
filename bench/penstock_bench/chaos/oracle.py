"""The oracle: what the sink must hold, epoch by epoch, told from Spark's log and the rows alone.

Which rows an epoch has is in Spark's log of offsets. Of n partitions the first has the rows 0, n, 2n and
so on. A window closes in the first epoch whose watermark has reached its end, and the watermark of an
epoch is the newest event time of the epochs before it, in the partition that is furthest behind, less the
delay. So every row that the flow gives is known, and in which epoch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from penstock.state.store.files import Files
from penstock_bench.chaos.load import (
    DELAY_MS,
    GROUPS,
    KEYS,
    WINDOW_MS,
    ChaosRows,
    arrivals,
    group_of,
)
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.live.latency import Began

OutputRow = tuple[int, int, int, int]
"""A group, its windows so far, their rows, and the sum of these rows' numbers."""
Epochs = dict[int, Counter[OutputRow]]
"""Rows by epoch."""


@dataclass(frozen=True)
class SinkDifference:
    """How what was found differs from what should have been."""

    expected: int
    """Rows of the oracle."""
    lost: int
    """Rows of the oracle that are not there."""
    duplicated: int
    """Rows that are there and that the oracle does not have: a second time, or with other sums."""
    first: str
    """The first epoch with a difference, and what differs; empty if nothing does."""


@dataclass(frozen=True)
class SparkLog:
    """What Spark's log says of a run's epochs."""

    ends: Mapping[int, tuple[int, ...]]
    """Epoch -> how many rows of each partition are in it or before."""
    began: Began | None
    """When the load began, and with which row; None: it has not."""
    committed: int
    """The newest epoch that is committed; -1 if there is none."""

    def row(self, epoch: int) -> int:
        """The number of the first row that is neither in an epoch nor before.

        >>> SparkLog({0: (5,), 1: (9, 7)}, None, 1).row(0), SparkLog({1: (9, 7)}, None, 1).row(1)
        (5, 15)
        """
        ends = self.ends[epoch]
        return min(number_of(part, end, len(ends)) for part, end in enumerate(ends))


class LogReader:
    """Reads Spark's log, in which files are added and never changed: each of them once."""

    def __init__(self, files: Files) -> None:
        self._files, self._offsets = files, dict[int, Any]()

    def read(self, began: Began | None = None) -> SparkLog:
        """The log as it is. When the load began is in it where rows are made; else it is given."""
        for epoch in self._numbers("offsets"):
            text = None if epoch in self._offsets else self._files.read(f"offsets/{epoch}")
            if text:
                self._offsets[epoch] = json.loads(text.decode().splitlines()[2])
        committed = max(self._numbers("commits"), default=-1)
        ends = {}
        for epoch, offset in sorted(self._offsets.items()):
            if "row" not in offset:
                (parts,) = offset.values()  # of the one topic
                ends[epoch] = tuple(parts[str(part)] for part in range(len(parts)))
                continue
            ends[epoch] = (int(offset["row"]),)
            if offset["start_ms"] is not None:
                began = Began(offset["start_ms"], offset["first"])
        return SparkLog({e: some for e, some in ends.items() if e <= committed}, began, committed)

    def _numbers(self, folder: str) -> list[int]:
        names = (found.name.rsplit("/", 1)[-1] for found in self._files.below(folder))
        return sorted(int(name) for name in names if name.isdecimal())


def number_of(partition: int, offset: int, partitions: int) -> int:
    """The number of the row at an offset of a partition."""
    return partition + partitions * offset


def expected(plan: ChaosPlan, log: SparkLog) -> Epochs:
    """The rows that the flow must have given in the epochs of a log."""
    shape, rows, found = arrivals(plan), ChaosRows(), Epochs()
    first = log.began.first if log.began else max(map(log.row, log.ends), default=0)
    windows: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}
    totals = np.zeros((GROUPS, 3), np.int64)
    newest_ms, begins = dict[int, int](), dict[int, int]()
    for epoch, ends in log.ends.items():
        watermark_ms = min(newest_ms.values(), default=0) - DELAY_MS
        found[epoch] = Counter(_closed(windows, totals, watermark_ms))
        for part, end in enumerate(ends):
            offset = np.arange(begins.get(part, 0), end, dtype=np.int64)
            begins[part] = end
            if not len(offset):
                continue
            number = part + len(ends) * offset
            t_us = np.zeros_like(number)  # those of the lead-in have no time of arrival
            t_us[number >= first] = shape.arrival_us(number[number >= first] - first)
            at_ms, k, v = rows.numbers(number, t_us)
            for start in np.unique(at_ms // WINDOW_MS).tolist():
                of = at_ms // WINDOW_MS == start
                held = windows.setdefault(start, np.zeros((KEYS, 2), np.int64))
                np.add.at(held, k[of], np.stack([np.ones_like(v[of]), v[of]], axis=1))
            newest_ms[part] = max(newest_ms.get(part, 0), int(at_ms.max()))
    return found


def _closed(
    windows: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]],
    totals: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    watermark_ms: int,
) -> Iterator[OutputRow]:
    """Close what the watermark has passed; gives the groups that this changes."""
    closing = [start for start in windows if (start + 1) * WINDOW_MS <= watermark_ms]
    changed = set[int]()
    for start in closing:
        held = windows.pop(start)
        keys = np.flatnonzero(held[:, 0])
        groups = group_of(keys)
        np.add.at(totals, groups, np.column_stack([np.ones_like(keys), held[keys]]))
        changed |= set(groups.tolist())
    for group in changed:
        yield (group, *totals[group].tolist())


def found(sink: Path) -> Epochs:
    """The rows of the sink's files, by epoch."""
    epochs = Epochs()
    for folder in sink.glob("epoch=*"):
        rows = epochs.setdefault(int(folder.name.partition("=")[2]), Counter())
        for file in folder.glob("*.parquet"):
            table = pq.read_table(file, partitioning=None)
            columns = [table[name].to_pylist() for name in ("g", "windows", "n", "s")]
            rows.update(zip(*columns, strict=True))
    return epochs


def difference(expected: Epochs, found: Epochs) -> SinkDifference:
    """Compare them row by row, in each folder of the sink with all epochs since the one before it:
    a folder may stand for several that were merged.

    >>> row, other = (1, 1, 5, 9), (1, 2, 8, 11)
    >>> difference({0: Counter([row]), 1: Counter([other])}, {1: Counter([row, other, other])})
    SinkDifference(expected=2, lost=0, duplicated=1, first='epochs 0 to 1: [] lost, [(1, 2, 8, 11)] too many')
    """
    lost, more, first, since = 0, 0, "", -1
    for epoch in sorted(found.keys() | {max(expected, default=-1)}):
        right = sum((expected.get(e, Counter()) for e in range(since + 1, epoch + 1)), Counter())
        there = found.get(epoch, Counter())
        missing, extra = right - there, there - right
        lost, more = lost + missing.total(), more + extra.total()
        if (missing or extra) and not first:
            gone, twice = (sorted(some.elements())[:5] for some in (missing, extra))
            first = f"epochs {since + 1} to {epoch}: {gone} lost, {twice} too many"
        since = epoch
    return SinkDifference(sum(rows.total() for rows in expected.values()), lost, more, first)
