"""Q12: bids of a bidder in each ten seconds of the day's time.

    SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM TUMBLE(bid, PROCTIME(), 10 s) GROUP BY bidder, window_start, window_end

How bids fall into windows depends on when they are read; a bidder's sum does not.
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    counts = (
        ps.flow(events.bid.select("bidder"))
        .key_by("bidder", nulls=True)
        .window(ps.tumbling("10s", clock="processing"))
        .aggregate(bid_count=ps.count())
    )
    return counts.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


QUERY = Query({"bid": ("bidder",)}, flow)
