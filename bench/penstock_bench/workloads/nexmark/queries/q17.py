"""Q17: bids and prices of each auction and day.

SELECT auction, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day,
       COUNT(*) AS total_bids, and so of three ranks of price: rank1_bids, ...
       MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price,
       SUM(price) AS sum_price
FROM bid GROUP BY auction, DATE_FORMAT(date_time, 'yyyy-MM-dd')
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.ranks import DAY, RANKS, bid_counts
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    return (
        ps.flow(events.bid.selectExpr("auction", DAY, "price", *RANKS))
        .key_by("auction", "day", nulls=True)
        .aggregate(
            emit="update",
            **bid_counts(),
            min_price=ps.min("price"),
            max_price=ps.max("price"),
            avg_price=ps.avg("price"),
            sum_price=ps.sum("price"),
        )
    )


QUERY = Query({"bid": ("auction", "price", "date_time")}, flow, latest=("auction", "day"))
