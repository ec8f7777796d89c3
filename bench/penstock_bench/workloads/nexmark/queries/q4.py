"""Q4: average closing price of a category.

SELECT Q.category, AVG(Q.final)
FROM (SELECT MAX(B.price) AS final, A.category
      FROM auction AS A, bid AS B
      WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
      GROUP BY A.id, A.category) AS Q
GROUP BY Q.category
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.bids_on_auctions import bids_on_auctions
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = bids_on_auctions(
        events, ("id", "category", "date_time", "expires"), ("auction", "price", "bid_date_time")
    )
    closing = (
        bids.select("id", "category", "price")
        .key_by("id", "category", nulls=True)
        .aggregate(final=ps.max("price"), emit="changes")
    )
    return closing.key_by("category", nulls=True).aggregate(final=ps.avg("final"))


QUERY = Query(
    {
        "auction": ("id", "category", "date_time", "expires"),
        "bid": ("auction", "price", "date_time"),
    },
    flow,
    latest=("category",),
)
