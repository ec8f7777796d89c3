"""Q20: bids with their auction, of a category.

SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time AS bid_date_time,
       B.extra AS bid_extra, A.item_name, A.description, A.initial_bid, A.reserve,
       A.date_time AS auction_date_time, A.expires, A.seller, A.category,
       A.extra AS auction_extra
FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
WHERE A.category = 10
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    bids = events.bid.selectExpr(
        *("auction", "bidder", "price", "channel", "url"),
        *("date_time AS bid_date_time", "extra AS bid_extra"),
    )
    auctions = events.auction.where("category = 10").selectExpr(
        *("id AS auction", "item_name", "description", "initial_bid", "reserve"),
        *("date_time AS auction_date_time", "expires", "seller", "category"),
        "extra AS auction_extra",
    )
    return ps.flow(bids).join(ps.flow(auctions), on="auction")


QUERY = Query(
    {
        "bid": ("auction", "bidder", "price", "channel", "url", "date_time", "extra"),
        "auction": (
            *("id", "item_name", "description", "initial_bid", "reserve"),
            *("date_time", "expires", "seller", "category", "extra"),
        ),
    },
    flow,
)
