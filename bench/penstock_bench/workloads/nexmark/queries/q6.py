"""Q6: average of a seller's last ten closing prices.

    SELECT Q.seller, AVG(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.date_time
                                        ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)
    FROM (SELECT A.id, A.seller, B.price AS final, B.date_time
          FROM auction AS A, bid AS B
          WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
          QUALIFY ROW_NUMBER() OVER (PARTITION BY A.id, A.seller
                                     ORDER BY B.price DESC, B.date_time) = 1) AS Q

An auction's closing price is known when its time is over. Of each seller the newest average stands
at the end.
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.bids_on_auctions import bids_on_auctions
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = bids_on_auctions(
        events, ("id", "seller", "date_time", "expires"), ("auction", "price", "bid_date_time")
    )
    winning = (
        bids.select("id", "seller", "expires", "price", "bid_date_time")
        .key_by("id", "seller", nulls=True)
        .top(1, by="price desc, bid_date_time", until="expires")
    )
    last_ten = (
        winning.select("seller", "id", "price", "bid_date_time")
        .key_by("seller", nulls=True)
        .top(10, by="bid_date_time desc, id desc")
    )
    return last_ten.key_by("seller", nulls=True).aggregate(final=ps.avg("price"))


QUERY = Query(
    {"auction": ("id", "seller", "date_time", "expires"), "bid": ("auction", "price", "date_time")},
    flow,
    latest=("seller",),
)
