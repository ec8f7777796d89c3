"""Q21: bids with the id of their channel.

SELECT auction, bidder, price, channel,
       CASE WHEN LOWER(channel) = 'apple' THEN '0'
            WHEN LOWER(channel) = 'google' THEN '1'
            WHEN LOWER(channel) = 'facebook' THEN '2'
            WHEN LOWER(channel) = 'baidu' THEN '3'
            ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
   OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

# Spark's regexp_extract gives an empty text where nothing matches; here that is a null.
CHANNEL_ID = """
    CASE lower(channel)
        WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
        ELSE CASE WHEN url RLIKE '(&|^)channel_id='
                  THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END
    END AS channel_id"""


def flow(events: Events) -> ps.Flow:
    bids = events.bid.selectExpr("auction", "bidder", "price", "channel", CHANNEL_ID)
    return ps.flow(bids.where("channel_id IS NOT NULL"))


QUERY = Query({"bid": ("auction", "bidder", "price", "channel", "url")}, flow)
