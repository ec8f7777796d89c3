"""The oracle: what the sink must hold, epoch by epoch, told from Spark's log and the rows alone.

Which rows an epoch has is in Spark's log of offsets. A window closes in the first epoch whose
watermark has reached its end, and the watermark of an epoch is the newest event time of the epochs
before it, less the delay. So every row that the flow gives is known, and in which epoch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

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

    ends: Mapping[int, int]
    """Epoch -> the number of the first row that is neither in it nor before."""
    began: Began | None
    """When the load began, and with which row; None: it has not."""
    committed: int
    """The newest epoch that is committed; -1 if there is none."""

    @staticmethod
    def read(checkpoint: Path) -> SparkLog:
        ends, began = {}, None
        for epoch in _numbers(checkpoint / "offsets"):
            offset = json.loads((checkpoint / f"offsets/{epoch}").read_text().splitlines()[2])
            ends[epoch] = int(offset["row"])
            if offset["start_ms"] is not None:
                began = Began(offset["start_ms"], offset["first"])
        committed = max(_numbers(checkpoint / "commits"), default=-1)
        return SparkLog({e: row for e, row in ends.items() if e <= committed}, began, committed)


def _numbers(folder: Path) -> list[int]:
    """The files of a log, in order."""
    names = (file.name for file in folder.glob("[0-9]*"))
    return sorted(int(name) for name in names if name.isdecimal())


def expected(plan: ChaosPlan, log: SparkLog) -> Epochs:
    """The rows that the flow must have given in the epochs of a log."""
    shape, rows, found = arrivals(plan), ChaosRows(), Epochs()
    first = log.began.first if log.began else max(log.ends.values(), default=0)
    windows: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}
    totals = np.zeros((GROUPS, 3), np.int64)
    newest_ms, begin = 0, 0
    for epoch, end in log.ends.items():
        found[epoch] = Counter(_closed(windows, totals, newest_ms - DELAY_MS))
        number = np.arange(begin, end, dtype=np.int64)
        if len(number):
            t_us = np.zeros_like(number)  # those of the lead-in have no time of arrival
            t_us[number >= first] = shape.arrival_us(number[number >= first] - first)
            at_ms, k, v = rows.numbers(number, t_us)
            for start in np.unique(at_ms // WINDOW_MS).tolist():
                of = at_ms // WINDOW_MS == start
                held = windows.setdefault(start, np.zeros((KEYS, 2), np.int64))
                np.add.at(held, k[of], np.stack([np.ones_like(v[of]), v[of]], axis=1))
            newest_ms = max(newest_ms, int(at_ms.max()))
        begin = end
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
