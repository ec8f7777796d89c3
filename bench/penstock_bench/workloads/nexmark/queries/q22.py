"""Q22: bids with three folders of their address.

SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
       SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
FROM bid
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    folders = [f"get(split(url, '/'), {n + 2}) AS dir{n}" for n in (1, 2, 3)]
    return ps.flow(events.bid.selectExpr("auction", "bidder", "price", "channel", *folders))


QUERY = Query({"bid": ("auction", "bidder", "price", "channel", "url")}, flow)
