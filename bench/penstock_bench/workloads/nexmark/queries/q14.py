"""Q14: bids of a price range, with what is computed from them.

SELECT auction, bidder, 0.908 * price AS price,
       CASE WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'dayTime'
            WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS bid_time_type,
       date_time, extra, count_char(extra, 'c') AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.queries.q1 import EUROS
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    euros = events.bid.selectExpr(
        *("auction", "bidder", f"{EUROS} AS price"),
        """CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bid_time_type""",
        *("date_time", "extra"),
        "cast(length(extra) - length(replace(extra, 'c', '')) AS bigint) AS c_counts",
    )
    return ps.flow(euros.where("price > 1000000 AND price < 50000000"))


QUERY = Query({"bid": ("auction", "bidder", "price", "date_time", "extra")}, flow)
