"""Q15: bids, bidders and auctions of each day.

SELECT DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day,
       COUNT(*) AS total_bids, and so of three ranks of price: rank1_bids, ...
       COUNT(DISTINCT bidder) AS total_bidders, rank1_bidders, ...
       COUNT(DISTINCT auction) AS total_auctions, rank1_auctions, ...
FROM bid GROUP BY DATE_FORMAT(date_time, 'yyyy-MM-dd')
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.ranks import DAY, RANKS, bid_counts, distinct_counts
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = events.bid.selectExpr(DAY, "bidder", "auction", *RANKS)
    return (
        ps.flow(bids)
        .key_by("day", nulls=True)
        .aggregate(
            emit="update", **bid_counts(), **distinct_counts("bidder"), **distinct_counts("auction")
        )
    )


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time")}, flow, latest=("day",))
