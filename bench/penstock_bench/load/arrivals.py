"""Rows that arrive at a rate which is changed while a query runs.

A Python source could not make millions of rows a second beside what is measured, so it only tells of
ticks: a thousand a second, each with the numbers of the rows that arrive with it. The JVM makes the
rows of them. The rate is in a file, which whoever reads ticks looks at. It only ever changes in the
future, so that a tick that is read again has the same rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Steady
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads.nexmark.config import AUCTIONS, BIDS, NexmarkConfig
from penstock_bench.workloads.nexmark.events import FIRST_ID

TICK_MS = 1
TICKS = Steady(1000 / TICK_MS)
_AHEAD_MS = 300
"""A change is announced so long before: whoever counts ticks meanwhile sees none of it."""


@dataclass(frozen=True)
class RateChange:
    """From this tick on so many rows arrive with each, on average."""

    tick: int
    rows: float


@dataclass(frozen=True)
class Rates:
    """One rate after the other, the last one for ever.

    >>> rates = Rates((RateChange(0, 1.5), RateChange(4, 10.0)))
    >>> rates.first_rows(np.array([0, 1, 2, 4, 6])).tolist()
    [0, 1, 3, 6, 26]
    """

    changes: tuple[RateChange, ...]

    def first_rows(self, tick: Numbers) -> Numbers:
        """The numbers of the first rows that arrive with these ticks."""
        starts = np.array([change.tick for change in self.changes])
        each = np.array([change.rows for change in self.changes])
        lengths = np.floor(np.diff(starts) * each[:-1]).astype(np.int64)
        base = np.array([0, *accumulate(lengths.tolist())], np.int64)
        which = np.searchsorted(starts, tick, side="right") - 1
        since = np.floor((tick - starts[which]) * each[which])
        return np.asarray(base[which] + since, np.int64)


@dataclass(frozen=True)
class RateFile:
    """Where the rates are kept: what a source of ticks holds, and how the bench changes the rate."""

    path: Path
    columns = "first long, rows long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        """The numbers of the rows of ticks: the first of each, and how many."""
        rates = self.read()
        first = rates.first_rows(number)
        return [pa.array(first), pa.array(rates.first_rows(number + 1) - first)]

    def read(self) -> Rates:
        told = json.loads(self.path.read_text())
        return Rates(tuple(RateChange(tick, rows) for tick, rows in told))

    def write(self, rates: Rates) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([(change.tick, change.rows) for change in rates.changes]))
        new.rename(self.path)


class Arrivals:
    """The rows of one query, and the rate at which they arrive."""

    def __init__(self, file: Path, rate: float) -> None:
        self._rates = RateFile(file)
        self._rates.write(Rates((RateChange(0, rate * TICK_MS / 1000),)))
        self.start_ms = int(time.time() * 1000)
        """When the first tick was due, in milliseconds since 1970."""

    def change(self, rate: float) -> int:
        """Let so many rows arrive a second; tells the first tick at which they do."""
        tick = (int(time.time() * 1000) + _AHEAD_MS - self.start_ms) // TICK_MS
        told = self._rates.read()
        self._rates.write(Rates((*told.changes, RateChange(tick, rate * TICK_MS / 1000))))
        return tick

    def ticks(self, spark: SparkSession, partitions: int) -> DataFrame:
        """The stream of ticks (arrival, first, rows)."""
        return arriving(spark, "load", Arriving(TICKS, self._rates, partitions, self.start_ms))


def numbered(ticks: DataFrame) -> DataFrame:
    """The rows (arrival, n) of ticks, made by the JVM."""
    numbers = F.sequence("first", F.col("first") + F.col("rows") - 1)
    return ticks.where("rows > 0").select("arrival", F.explode(numbers).alias("n"))


def keyed(rows: DataFrame, keys: int) -> DataFrame:
    """Rows (k, v) with the keys spread evenly."""
    key = F.pmod(F.xxhash64("n"), F.lit(keys)).alias("k")
    return rows.select(key, F.col("n").alias("v"))


def bids(rows: DataFrame) -> DataFrame:
    """NEXMark's bids (auction, date_time), on auctions as its generator draws them: half of them on one
    that is hot for a while, the others on those that are open. A bid happens when it arrives."""
    of = NexmarkConfig(events=0)
    newest = f"(n div {BIDS} * {AUCTIONS} + {AUCTIONS - 1})"
    oldest = f"greatest({newest} - {of.in_flight}, 0)"
    hot = f"{newest} div {of.hot_batch} * {of.hot_batch}"
    still_open = f"{oldest} + pmod(xxhash64(n, 2), {newest} - {oldest} + 1)"
    is_hot = f"pmod(xxhash64(n, 1), {of.hot_auction_ratio}) > 0"
    auction = f"{FIRST_ID} + if({is_hot}, {hot}, {still_open}) AS auction"
    return rows.selectExpr(auction, "arrival AS date_time")
