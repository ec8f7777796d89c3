"""AutoFlow's skewed sum: the sum of bid prices by id, with most bids on a few hosts.

>>> rows = bids(spark, "steady(3000)", share=0.8, hosts=5, hot=2)         # doctest: +SKIP
>>> query = flow(rows).start(ps.to("console"), checkpoint="ck", hosts=5)  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Shape, shape
from penstock.sim.skews import Hotspot
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads.draws import Draws
from penstock_bench.workloads.shaped import KeyedRows


@dataclass(frozen=True)
class BidRows:
    """Bids (id, price), with ids drawn from `ids`."""

    ids: KeyedRows

    columns = "id long, price long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        price = Draws(self.ids.seed, number).price("price")
        return [pa.array(self.ids.chosen_keys(number, t_us)), pa.array(price)]


def bids(
    spark: SparkSession,
    rate: str | Shape,
    share: float,
    hosts: int,
    hot: int = 1,
    every_s: float = 0,
    ids: int = 100_000,
    slots: int = 64,
    partitions: int = 2,
    start_ms: int | None = None,
    seed: int = 1,
) -> DataFrame:
    """A stream of bids (arrival, id, price) with a hotspot.

    A `share` of the bids goes to the slots that `hot` of `hosts` hosts own at the start. With
    `every_s`, the hotspot moves to the next host's slots every so many seconds. Many ids keep couriers
    from combining bids into few partial sums, so that the load reaches the hosts.
    """
    content = BidRows(KeyedRows(ids, Hotspot(share, hosts, hot, every_s), slots, seed))
    return arriving(spark, "bids", Arriving(shape(rate), content, partitions, start_ms))


def flow(rows: DataFrame, slots: int = 64) -> ps.Flow:
    """Sums the prices of each id's bids; its output is (id, total)."""
    keyed = ps.flow(rows, arrival="arrival").key_by("id", slots=slots)
    return keyed.aggregate(total=ps.sum("price"))
