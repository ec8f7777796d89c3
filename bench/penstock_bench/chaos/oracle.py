"""The oracle: the expected content of the sink, epoch by epoch, derived from Spark's log and the rows alone.

Spark's offset log determines the rows of each epoch: the first of n partitions has the rows 0, n, 2n and so
on. A window closes in the first epoch whose watermark has reached its end. An epoch's watermark is the newest
event time of the epochs before it, in the partition that is furthest behind, minus the delay. So every output
row is known, and its epoch.
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
"""A group, its number of closed windows, their number of rows, and the sum of these rows' values."""
Epochs = dict[int, Counter[OutputRow]]
"""Output rows by epoch."""


@dataclass(frozen=True)
class SinkDifference:
    """The difference between the sink and the oracle."""

    expected: int
    """Number of rows that the oracle expects."""
    lost: int
    """Number of expected rows that the sink lacks."""
    duplicated: int
    """Number of rows in the sink that the oracle does not expect: repeated, or with other sums."""
    first: str
    """Description of the first epochs that differ; empty if none do."""


@dataclass(frozen=True)
class SparkLog:
    """The epochs of a run according to Spark's log."""

    ends: Mapping[int, tuple[int, ...]]
    """Epoch -> end offset of each partition."""
    began: Began | None
    """Time and first row of the load; None if it has not begun."""
    committed: int
    """The newest committed epoch; -1 if there is none."""

    def row(self, epoch: int) -> int:
        """Number of the first row after an epoch.

        >>> SparkLog({0: (5,), 1: (9, 7)}, None, 1).row(0), SparkLog({1: (9, 7)}, None, 1).row(1)
        (5, 15)
        """
        ends = self.ends[epoch]
        return min(number_of(part, end, len(ends)) for part, end in enumerate(ends))


class LogReader:
    """Reads Spark's log. Its files never change, so each is read only once."""

    def __init__(self, files: Files) -> None:
        self._files, self._offsets = files, dict[int, Any]()

    def read(self, began: Began | None = None) -> SparkLog:
        """The current log. If the source generates the rows, the log also has the start of the load; else
        pass it as `began`."""
        for epoch in self._numbers("offsets"):
            text = None if epoch in self._offsets else self._files.read(f"offsets/{epoch}")
            if text:
                self._offsets[epoch] = json.loads(text.decode().splitlines()[2])
        committed = max(self._numbers("commits"), default=-1)
        ends = {}
        for epoch, offset in sorted(self._offsets.items()):
            if "row" not in offset:
                (parts,) = offset.values()  # there is one topic
                ends[epoch] = tuple(parts[str(part)] for part in range(len(parts)))
                continue
            ends[epoch] = (int(offset["row"]),)
            if offset["start_ms"] is not None:
                began = Began(offset["start_ms"], offset["first"])
        return SparkLog({e: some for e, some in ends.items() if e <= committed}, began, committed)

    def _numbers(self, folder: str) -> list[int]:
        names = (file.name.rsplit("/", 1)[-1] for file in self._files.below(folder))
        return sorted(int(name) for name in names if name.isdecimal())


def number_of(partition: int, offset: int, partitions: int) -> int:
    """Number of the row at an offset of a partition."""
    return partition + partitions * offset


def expected(plan: ChaosPlan, log: SparkLog) -> Epochs:
    """The rows that the flow must have output in the epochs of a log."""
    shape, rows, epochs = arrivals(plan), ChaosRows(), Epochs()
    first = log.began.first if log.began else max(map(log.row, log.ends), default=0)
    windows: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}
    totals = np.zeros((GROUPS, 3), np.int64)
    newest_ms, begins = dict[int, int](), dict[int, int]()
    for epoch, ends in log.ends.items():
        watermark_ms = min(newest_ms.values(), default=0) - DELAY_MS
        epochs[epoch] = Counter(_closed(windows, totals, watermark_ms))
        for part, end in enumerate(ends):
            offset = np.arange(begins.get(part, 0), end, dtype=np.int64)
            begins[part] = end
            if not len(offset):
                continue
            number = part + len(ends) * offset
            t_us = np.zeros_like(number)  # rows of the lead-in have no arrival time
            t_us[number >= first] = shape.arrival_us(number[number >= first] - first)
            at_ms, k, v = rows.numbers(number, t_us)
            for start in np.unique(at_ms // WINDOW_MS).tolist():
                of = at_ms // WINDOW_MS == start
                held = windows.setdefault(start, np.zeros((KEYS, 2), np.int64))
                np.add.at(held, k[of], np.stack([np.ones_like(v[of]), v[of]], axis=1))
            newest_ms[part] = max(newest_ms.get(part, 0), int(at_ms.max()))
    return epochs


def _closed(
    windows: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]],
    totals: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    watermark_ms: int,
) -> Iterator[OutputRow]:
    """Close the windows that the watermark has passed; yields the rows of the groups that this changes."""
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


def read_sink(sink: Path) -> Epochs:
    """The rows of the sink's files, by epoch."""
    epochs = Epochs()
    for folder in sink.glob("epoch=*"):
        rows = epochs.setdefault(int(folder.name.partition("=")[2]), Counter())
        for file in folder.glob("*.parquet"):
            table = pq.read_table(file, partitioning=None)
            columns = [table[name].to_pylist() for name in ("g", "windows", "n", "s")]
            rows.update(zip(*columns, strict=True))
    return epochs


def difference(expected: Epochs, actual: Epochs) -> SinkDifference:
    """Compare expected and actual rows.

    Each folder of the sink is compared with all epochs since the previous folder, because a folder may
    contain several merged epochs.

    >>> row, other = (1, 1, 5, 9), (1, 2, 8, 11)
    >>> difference({0: Counter([row]), 1: Counter([other])}, {1: Counter([row, other, other])})
    SinkDifference(expected=2, lost=0, duplicated=1, first='epochs 0 to 1: [] lost, [(1, 2, 8, 11)] too many')
    """
    lost, more, first, since = 0, 0, "", -1
    for epoch in sorted(actual.keys() | {max(expected, default=-1)}):
        right = sum((expected.get(e, Counter()) for e in range(since + 1, epoch + 1)), Counter())
        there = actual.get(epoch, Counter())
        missing, extra = right - there, there - right
        lost, more = lost + missing.total(), more + extra.total()
        if (missing or extra) and not first:
            gone, twice = (sorted(some.elements())[:5] for some in (missing, extra))
            first = f"epochs {since + 1} to {epoch}: {gone} lost, {twice} too many"
        since = epoch
    return SinkDifference(sum(rows.total() for rows in expected.values()), lost, more, first)
