"""Queries that count bids by day, or keep the newest or the highest of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, NexmarkQuery

if TYPE_CHECKING:
    from penstock.operators.aggregate.aggregates import Aggregate

_BID = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")
_DAY = "date_format(date_time, 'yyyy-MM-dd')"
_MINUTE = "date_format(date_time, 'HH:mm')"
_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")

# -- q15, q16, q17: by day, of all bids and of three ranks of price


def _by_day(
    reads: tuple[str, ...], keys: tuple[str, ...], aggregates: dict[str, Aggregate]
) -> Callable[[Events], ps.Flow]:
    """A flow of aggregates of bids by `keys`, the last of which is `day`; `reads` are the bids' columns."""

    def flow(events: Events) -> ps.Flow:
        ranks = [f"{rank} AS rank{n}" for n, rank in enumerate(_RANKS, start=1)]
        bids = events.bid.selectExpr(*reads, f"{_DAY} AS day", *ranks)
        return ps.flow(bids).key_by(*keys, nulls=True).aggregate(emit="update", **aggregates)

    return flow


def _bids() -> dict[str, Aggregate]:
    """The aggregates total_bids, rank1_bids, rank2_bids and rank3_bids."""
    ranks = {f"rank{n}_bids": ps.count(where=f"rank{n}") for n in (1, 2, 3)}
    return {"total_bids": ps.count(), **ranks}


def _distinct(column: str) -> dict[str, Aggregate]:
    """Distinct counts of a column: total_bidders and rank1_bidders to rank3_bidders for `bidder`."""
    ranks = {f"rank{n}_{column}s": ps.count_distinct(column, where=f"rank{n}") for n in (1, 2, 3)}
    return {f"total_{column}s": ps.count_distinct(column), **ranks}


def _counts(form: str, name: str) -> str:
    """The same in SQL: an expression such as count(*), for all bids and for each rank of price."""
    ranks = [
        f"{form.format(f' FILTER (WHERE {rank})')} AS rank{n}_{name}"
        for n, rank in enumerate(_RANKS, start=1)
    ]
    return ", ".join([f"{form.format('')} AS total_{name}", *ranks])


_BIDS = _counts("count(*){}", "bids")
_DISTINCT = ", ".join(
    [
        _BIDS,
        _counts("count(DISTINCT bidder){}", "bidders"),
        _counts("count(DISTINCT auction){}", "auctions"),
    ]
)
_SETS = ", ".join(
    [
        _BIDS,
        _counts("size(collect_set(bidder){})", "bidders"),
        _counts("size(collect_set(auction){})", "auctions"),
    ]
)
_BY_CHANNEL = f"SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute,"


# -- q18, q19: the newest and the highest


def _q18(events: Events) -> ps.Flow:
    bids = ps.flow(events.bid.select(*_BID))
    return bids.key_by("bidder", "auction", nulls=True).keep("last", by="date_time")


def _q19(events: Events) -> ps.Flow:
    bids = ps.flow(events.bid.select(*_BID))
    return bids.key_by("auction", nulls=True).top(
        10, by="price desc, date_time, bidder, channel, url, extra", rank="rank_number"
    )


QUERIES = {
    "q15": NexmarkQuery(
        "Bids, bidders and auctions of each day.",
        {"bid": ("auction", "bidder", "price", "date_time")},
        f"SELECT {_DAY} AS day, {_DISTINCT} FROM bid GROUP BY {_DAY}",
        _by_day(
            ("bidder", "auction"),
            ("day",),
            {**_bids(), **_distinct("bidder"), **_distinct("auction")},
        ),
        latest=("day",),
        mode="update",
        instead=f"SELECT {_DAY} AS day, {_SETS} FROM bid GROUP BY {_DAY}",
    ),
    "q16": NexmarkQuery(
        "Bids, bidders and auctions of each channel and day.",
        {"bid": ("channel", "auction", "bidder", "price", "date_time")},
        f"{_BY_CHANNEL} {_DISTINCT} FROM bid GROUP BY channel, {_DAY}",
        _by_day(
            ("channel", f"{_MINUTE} AS minute", "bidder", "auction"),
            ("channel", "day"),
            {
                "minute": ps.max("minute"),
                **_bids(),
                **_distinct("bidder"),
                **_distinct("auction"),
            },
        ),
        latest=("channel", "day"),
        mode="update",
        instead=f"{_BY_CHANNEL} {_SETS} FROM bid GROUP BY channel, {_DAY}",
    ),
    "q17": NexmarkQuery(
        "Bids and prices of each auction and day.",
        {"bid": ("auction", "price", "date_time")},
        f"""SELECT auction, {_DAY} AS day, {_BIDS}, min(price) AS min_price,
                   max(price) AS max_price, avg(price) AS avg_price,
                   cast(sum(price) AS bigint) AS sum_price
            FROM bid GROUP BY auction, {_DAY}""",
        _by_day(
            ("auction", "price"),
            ("auction", "day"),
            {
                **_bids(),
                "min_price": ps.min("price"),
                "max_price": ps.max("price"),
                "avg_price": ps.avg("price"),
                "sum_price": ps.sum("price"),
            },
        ),
        latest=("auction", "day"),
        mode="update",
    ),
    "q18": NexmarkQuery(
        "The last bid of each bidder on each auction.",
        {"bid": _BID},
        f"""SELECT {", ".join(_BID)}
            FROM (SELECT *, row_number() OVER (
                                PARTITION BY bidder, auction
                                ORDER BY date_time DESC, price, channel, url, extra) AS place
                  FROM bid)
            WHERE place <= 1""",
        _q18,
        mode="update",
        instead=f"""
            SELECT newest.*
            FROM (SELECT max_by(struct({", ".join(_BID)}), date_time) AS newest
                  FROM bid GROUP BY bidder, auction)""",
    ),
    "q19": NexmarkQuery(
        "The ten highest bids of each auction.",
        {"bid": _BID},
        f"""SELECT *
            FROM (SELECT {", ".join(_BID)},
                         row_number() OVER (
                             PARTITION BY auction
                             ORDER BY price DESC, date_time, bidder, channel, url, extra)
                         AS rank_number
                  FROM bid)
            WHERE rank_number <= 10""",
        _q19,
        mode="update",
        instead=f"""
            SELECT bid.*, place + 1 AS rank_number
            FROM (SELECT posexplode(highest) AS (place, bid)
                  FROM (SELECT max_by(struct({", ".join(_BID)}),
                                      struct(price, -unix_micros(date_time)), 10) AS highest
                        FROM bid GROUP BY auction))""",
    ),
}
