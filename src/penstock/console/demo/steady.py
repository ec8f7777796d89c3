"""The demo's rows and the check of their sums: the key and value of row i are functions of i."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.live.sources.rate import RateSource
from penstock.live.sources.rate import rate as live_rate
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import BurstShape, Steady
from penstock.spark.arriving import Arriving, arriving
from penstock.state.store.store import Store

_CHUNK = 1 << 20


def keys_and_values(number: Numbers, keys: int) -> tuple[Numbers, Numbers]:
    """Keys and values of the rows with these numbers.

    >>> keys_and_values(np.arange(3), keys=10)
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    return (number * 2_654_435_761) % keys, number % 1000


@dataclass(frozen=True)
class _Content:
    keys: int

    columns = "k long, v long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return [pa.array(column) for column in keys_and_values(number, self.keys)]


def steady(
    spark: SparkSession, rate: int, keys: int, partitions: int = 2, start_ms: int | None = None
) -> DataFrame:
    """A stream of (arrival, k, v) with `rate` rows arriving each second from `start_ms` on.

    Without `start_ms`, rows begin to arrive when the query is up. The epochs before that have rows without
    an arrival time.
    """
    return arriving(spark, "steady", Arriving(Steady(rate), _Content(keys), partitions, start_ms))


def bursts(rate: int, keys: int, partitions: int = 2) -> RateSource:
    """The same rows for a live flow: at a quarter of `rate`, and at the full `rate` for 2 s of every 10 s."""
    arrivals = BurstShape(rate / 4, 4, at_s=4, for_s=2, every_s=10)
    return live_rate(arrivals, partitions=partitions, content=_Content(keys))


class Totals:
    """A sink that keeps the newest row of each key. A repeated epoch changes nothing."""

    def __init__(self, keys: int) -> None:
        self.sums: Numbers = np.zeros(keys, np.int64)
        self.counts: Numbers = np.zeros(keys, np.int64)
        self.epoch = -1
        """The newest epoch written."""

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        self.take(df.toArrow())
        self.epoch = epoch

    def take(self, rows: pa.Table) -> None:
        """Update the totals with these rows; of several rows per key, the one with the highest count wins."""
        k, total, n = (rows.column(name).to_numpy() for name in ("k", "total", "n"))
        order = np.argsort(n, kind="stable")
        order = order[n[order] >= self.counts[k[order]]]
        self.sums[k[order]], self.counts[k[order]] = total[order], n[order]

    def faults(self, taken: Sequence[range]) -> str:
        """A description of wrong totals, compared with the rows of these numbers; empty if all are right."""
        keys = len(self.sums)
        sums, counts = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        for part in (
            numbers[at : at + _CHUNK] for numbers in taken for at in range(0, len(numbers), _CHUNK)
        ):
            k, v = keys_and_values(np.arange(part.start, part.stop, part.step), keys)
            np.add.at(sums, k, v)
            counts += np.bincount(k, minlength=keys)
        wrong = int(np.count_nonzero((sums != self.sums) | (counts != self.counts)))
        if wrong == 0:
            return ""
        counted, rows = int(self.counts.sum()), sum(map(len, taken))
        return (
            f"{wrong:,} of {keys:,} keys are wrong; {counted:,} rows were counted, {rows:,} arrived"
        )


def rows_taken(checkpoint: Path, epoch: int) -> list[range]:
    """Numbers of the rows that the source delivered up to the end of an epoch, from Spark's offset log."""
    if epoch < 0:
        return []
    offset = (checkpoint / "offsets" / str(epoch)).read_text().splitlines()[-1]
    return [range(int(json.loads(offset)["row"]))]


def rows_read(store: Store) -> list[range]:
    """Numbers of the rows that couriers have read, one range per partition, from the newest manifest."""
    manifest = store.read_manifest(max(store.epochs(), default=-1))
    positions = (manifest.positions or {}).get("0", {}) if manifest is not None else {}
    count = len(positions)
    return [range(int(p), int(p) + count * at["row"], count) for p, at in positions.items()]
