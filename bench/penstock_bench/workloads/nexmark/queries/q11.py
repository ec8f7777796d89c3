"""Q11: bids of a bidder while he is active: a session ends when ten seconds bring no bid.

SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM SESSION(bid, date_time, 10 s) GROUP BY bidder, window_start, window_end

A bid without a time is refused: it is in no session.
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = events.bid.select("bidder", "date_time")
    counts = (
        ps.flow(bids, event_time="date_time", delay=events.delay)
        .key_by("bidder", nulls=True)
        .window(ps.session_window("10s"))
        .aggregate(bid_count=ps.count())
    )
    return counts.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


QUERY = Query({"bid": ("bidder", "date_time")}, flow)
