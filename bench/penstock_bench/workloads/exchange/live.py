"""The orders of a day, live on Spark, all or a sample of them; and the auction on them.

>>> spark, day = ps.session(), trace.day()                      # doctest: +SKIP
>>> rows = replay(spark, day, for_s=120, one_in=50)             # doctest: +SKIP
>>> query = flow(rows).start(ps.to("console"), checkpoint="ck")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.sim.pieces import Numbers, Piece
from penstock.sim.shapes import Shape
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads.exchange.auction import ORDER_COLUMNS, Auction
from penstock_bench.workloads.exchange.orders import Traders
from penstock_bench.workloads.exchange.trace import Day

_PIECE_MS = 100


@dataclass(frozen=True)
class Replayed(Shape):
    """A shape with a number of records for each 100 ms, and none after them.

    >>> Replayed((5, 0, 20)).cumulative([50, 100, 200, 300, 400]).tolist()
    [2, 5, 5, 25, 25]
    """

    counts: tuple[int, ...]

    def pieces(self) -> Sequence[Piece]:
        each_s = _PIECE_MS / 1000
        return [*(Piece(each_s, count / each_s) for count in self.counts), Piece(0, 0)]

    def __str__(self) -> str:
        return f"replayed({sum(self.counts)} records in {len(self.counts) * _PIECE_MS} ms)"


@dataclass(frozen=True, eq=False)
class OrderRows:
    """Orders for a sequence of stocks."""

    stock: npt.NDArray[np.int16]
    start_s: float
    """Start of the load, in seconds of the day; prices depend on it."""
    traders: Traders
    speed: float = 1.0
    """Seconds of the day that pass in a second."""

    columns = f"stock long, {ORDER_COLUMNS}"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        # Rows of the lead-in use the first stocks, so the last rows wrap around.
        stock = self.stock[number % len(self.stock)]
        day_s = (self.start_s + self.speed * t_us / 1e6).astype(np.float64)
        return self.traders.orders(number, stock, day_s)


def excerpt(
    day: Day, start_s: float, for_s: float, one_in: int, traders: Traders, speed: float = 1.0
) -> tuple[Replayed, OrderRows]:
    """Arrival times and content of one in `one_in` orders of a part of the day, for `for_s` seconds in which
    the day passes at this speed."""
    start_ms, length_ms = round(start_s * 1000), round(for_s * 1000)
    which = day.between(start_ms, start_ms + round(length_ms * speed))
    after_ms, stock = day.arrival_ms[which][::one_in] - start_ms, day.stock[which][::one_in]
    if not len(stock):
        raise SettingError(
            f"there are no orders in the {for_s:g} s from {start_s:g} s on",
            hint="the day has 4 hours: use a part of its 14,400 s",
        )
    pieces = -(-length_ms // _PIECE_MS)
    at = (after_ms / (_PIECE_MS * speed)).astype(np.int64)
    counts = np.bincount(np.minimum(at, pieces - 1), minlength=pieces)
    return Replayed(tuple(counts.tolist())), OrderRows(stock, start_s, traders, speed)


def replay(
    spark: SparkSession,
    day: Day,
    start_s: float = 0,
    for_s: float = 60,
    one_in: int = 1,
    partitions: int = 1,
    start_ms: int | None = None,
    traders: Traders | None = None,
) -> DataFrame:
    """A stream of one in `one_in` orders of a part of the day, by default the first opening.

    A host processes the partitions of an epoch one after the other, in any order. With one partition,
    orders trade in order of arrival; with more, that holds within each. Without `start_ms`, orders begin
    to arrive when the query is up; see `arriving`.
    """
    shape, rows = excerpt(day, start_s, for_s, one_in, traders or Traders())
    return arriving(spark, "exchange", Arriving(shape, rows, partitions, start_ms))


def flow(orders: DataFrame, slots: int = 64) -> ps.Flow:
    """The auction on a stream of orders; its output is trades and refused orders."""
    return ps.flow(orders, arrival="arrival").key_by("stock", slots=slots).process(Auction())
