"""What Q15, Q16 and Q17 have in common: bids by day, and counts of three ranks of price.

COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock as ps

if TYPE_CHECKING:
    from penstock.operators.aggregate.aggregates import Aggregate

DAY = "date_format(date_time, 'yyyy-MM-dd') AS day"
RANKS = (
    "price < 10000 AS rank1",
    "price >= 10000 AND price < 1000000 AS rank2",
    "price >= 1000000 AS rank3",
)


def bid_counts() -> dict[str, Aggregate]:
    """total_bids, rank1_bids, rank2_bids, rank3_bids."""
    ranks = {f"rank{n}_bids": ps.count(where=f"rank{n}") for n in (1, 2, 3)}
    return {"total_bids": ps.count(), **ranks}


def distinct_counts(column: str) -> dict[str, Aggregate]:
    """total_bidders, rank1_bidders, rank2_bidders, rank3_bidders, if the column is bidder."""
    ranks = {f"rank{n}_{column}s": ps.count_distinct(column, where=f"rank{n}") for n in (1, 2, 3)}
    return {f"total_{column}s": ps.count_distinct(column), **ranks}
