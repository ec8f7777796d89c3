"""Q1: prices in another currency.

SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

EUROS = "cast(0.908 * price AS decimal(23, 3))"


def flow(events: Events) -> ps.Flow:
    return ps.flow(
        events.bid.selectExpr("auction", "bidder", f"{EUROS} AS price", "date_time", "extra")
    )


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time", "extra")}, flow)
