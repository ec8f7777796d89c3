"""Q5: the auctions with the most bids of the last ten seconds, every two seconds.

SELECT A.auction, A.num
FROM (SELECT auction, COUNT(*) AS num, window_start, window_end
      FROM HOP(bid, date_time, 2 s, 10 s) GROUP BY auction, window_start, window_end) AS A
JOIN (SELECT MAX(num) AS maxn, window_start, window_end
      FROM (the same) GROUP BY window_start, window_end) AS M
ON A.window_start = M.window_start AND A.window_end = M.window_end AND A.num >= M.maxn
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = events.bid.where("date_time IS NOT NULL").select("auction", "date_time")
    counts = (
        ps.flow(bids, event_time="date_time", delay=events.delay)
        .key_by("auction", nulls=True)
        .window(ps.hopping("10s", "2s"))
        .aggregate(num=ps.count())
    )
    hottest = counts.key_by("window_start", "window_end").top(
        1, by="num desc", ties=True, until="window_end"
    )
    return hottest.select("auction", "num")


QUERY = Query({"bid": ("auction", "date_time")}, flow)
