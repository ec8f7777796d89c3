"""Q13: bids with a value looked up in a bounded table.

    SELECT B.auction, B.bidder, B.price, B.date_time, S.value
    FROM bid AS B JOIN side_input AS S ON MOD(B.auction, 10000) = S.key

The table has the keys 0 to 9999; a key's value is its text.
"""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

KEYS = 10_000


def flow(events: Events) -> ps.Flow:
    side = events.spark.range(KEYS).selectExpr("id AS key", "cast(id AS string) AS value")
    found = events.bid.join(F.broadcast(side), F.expr(f"auction % {KEYS} = key"))
    return ps.flow(found.select("auction", "bidder", "price", "date_time", "value"))


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time")}, flow)
