"""Q9: the winning bid of each auction.

SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category,
       extra, auction, bidder, price, bid_date_time, bid_extra
FROM (SELECT A.*, B.auction, B.bidder, B.price, B.date_time AS bid_date_time,
             B.extra AS bid_extra,
             ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time) AS place
      FROM auction AS A, bid AS B
      WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires)
WHERE place <= 1
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.bids_on_auctions import bids_on_auctions
from penstock_bench.workloads.nexmark.query import Events, Query

AUCTION = (
    *("id", "item_name", "description", "initial_bid", "reserve", "date_time", "expires"),
    *("seller", "category", "extra"),
)
BID = ("auction", "bidder", "price", "date_time", "extra")


def flow(events: Events) -> ps.Flow:
    bid = ("auction", "bidder", "price", "bid_date_time", "extra AS bid_extra")
    bids = bids_on_auctions(events, AUCTION, bid)
    return bids.key_by("id").top(1, by="price desc, bid_date_time, bidder, bid_extra")


QUERY = Query({"auction": AUCTION, "bid": BID}, flow)
