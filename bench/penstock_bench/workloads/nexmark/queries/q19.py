"""Q19: the ten highest bids of each auction.

    SELECT *
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
          FROM bid)
    WHERE rank_number <= 10

Of equal prices the earlier bid is the higher one, then that with the lesser values.
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

BID = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")


def flow(events: Events) -> ps.Flow:
    bids = ps.flow(events.bid.select(*BID))
    return bids.key_by("auction", nulls=True).top(
        10, by="price desc, date_time, bidder, channel, url, extra", rank="rank_number"
    )


QUERY = Query({"bid": BID}, flow)
