"""Q7: the highest bids of each ten seconds.

SELECT B.auction, B.price, B.bidder, B.date_time, B.extra
FROM bid AS B
JOIN (SELECT MAX(price) AS maxprice, window_end
      FROM TUMBLE(bid, date_time, 10 s) GROUP BY window_start, window_end) AS M
ON B.price = M.maxprice
WHERE B.date_time BETWEEN M.window_end - 10 s AND M.window_end
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = ps.flow(
        events.bid.where("date_time IS NOT NULL"), event_time="date_time", delay=events.delay
    )
    highest = bids.window(ps.tumbling("10s")).aggregate(maxprice=ps.max("price"))
    joined = highest.join(
        bids, on={"maxprice": "price"}, between=("-10s", "0s"), left_time="window_end"
    )
    return joined.select("auction", "price", "bidder", "date_time", "extra")


QUERY = Query({"bid": ("auction", "price", "bidder", "date_time", "extra")}, flow)
