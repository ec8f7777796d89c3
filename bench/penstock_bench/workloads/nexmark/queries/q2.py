"""Q2: bids on some auctions.

SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    return ps.flow(events.bid.where("auction % 123 = 0").select("auction", "price"))


QUERY = Query({"bid": ("auction", "price")}, flow)
