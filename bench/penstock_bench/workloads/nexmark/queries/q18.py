"""Q18: the last bid of each bidder on each auction.

    SELECT auction, bidder, price, channel, url, date_time, extra
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC)
                    AS place
          FROM bid)
    WHERE place <= 1

Of bids of the same time the one with the least values counts, in the order of the columns.
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

BID = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")


def flow(events: Events) -> ps.Flow:
    bids = ps.flow(events.bid.select(*BID))
    return bids.key_by("bidder", "auction", nulls=True).keep("last", by="date_time")


QUERY = Query({"bid": BID}, flow)
