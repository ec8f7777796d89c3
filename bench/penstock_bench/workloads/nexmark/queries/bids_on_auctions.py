"""The join that Q4, Q6 and Q9 begin with: bids that came while their auction was open.

FROM auction AS A, bid AS B
WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events


def bids_on_auctions(events: Events, auction: tuple[str, ...], bid: tuple[str, ...]) -> ps.Flow:
    """These columns of auctions, then these of bids; a bid's time is named `bid_date_time`."""
    auctions = events.auction.where("date_time IS NOT NULL AND expires IS NOT NULL")
    bids = events.bid.where("date_time IS NOT NULL").withColumnRenamed("date_time", "bid_date_time")
    opened = ps.flow(auctions.selectExpr(*auction), event_time="date_time", delay=events.delay)
    came = ps.flow(bids.selectExpr(*bid), event_time="bid_date_time", delay=events.delay)
    return opened.join(came, on={"id": "auction"}, between=("0s", "expires"))
