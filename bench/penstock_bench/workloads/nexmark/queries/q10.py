"""Q10: all bids, with day and minute for a file system.

SELECT auction, bidder, price, date_time, extra,
       DATE_FORMAT(date_time, 'yyyy-MM-dd') AS dt, DATE_FORMAT(date_time, 'HH:mm') AS hm
FROM bid
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    return ps.flow(
        events.bid.selectExpr(
            *("auction", "bidder", "price", "date_time", "extra"),
            "date_format(date_time, 'yyyy-MM-dd') AS dt",
            "date_format(date_time, 'HH:mm') AS hm",
        )
    )


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time", "extra")}, flow)
