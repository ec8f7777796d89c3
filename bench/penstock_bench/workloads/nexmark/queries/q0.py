"""Q0: all bids, as they are. What it costs to do nothing.

SELECT auction, bidder, price, date_time, extra FROM bid
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    return ps.flow(events.bid.select("auction", "bidder", "price", "date_time", "extra"))


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time", "extra")}, flow)
