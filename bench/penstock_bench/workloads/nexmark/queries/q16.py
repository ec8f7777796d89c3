"""Q16: bids, bidders and auctions of each channel and day.

SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day,
       MAX(DATE_FORMAT(date_time, 'HH:mm')) AS minute,
       COUNT(*) AS total_bids, and so of three ranks of price: rank1_bids, ...
       COUNT(DISTINCT bidder) AS total_bidders, rank1_bidders, ...
       COUNT(DISTINCT auction) AS total_auctions, rank1_auctions, ...
FROM bid GROUP BY channel, DATE_FORMAT(date_time, 'yyyy-MM-dd')
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.ranks import DAY, RANKS, bid_counts, distinct_counts
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    minute = "date_format(date_time, 'HH:mm') AS minute"
    bids = events.bid.selectExpr("channel", DAY, minute, "bidder", "auction", *RANKS)
    return (
        ps.flow(bids)
        .key_by("channel", "day", nulls=True)
        .aggregate(
            emit="update",
            minute=ps.max("minute"),
            **bid_counts(),
            **distinct_counts("bidder"),
            **distinct_counts("auction"),
        )
    )


QUERY = Query(
    {"bid": ("channel", "auction", "bidder", "price", "date_time")},
    flow,
    latest=("channel", "day"),
)
