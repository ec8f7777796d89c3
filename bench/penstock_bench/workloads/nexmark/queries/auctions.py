"""Queries that join auctions with their bids, or with their sellers."""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.arriving_events import Having
from penstock_bench.workloads.nexmark.config import AUCTIONS, BIDS
from penstock_bench.workloads.nexmark.query import BurstForm, Events, NexmarkQuery

_AUCTION = (
    *("id", "item_name", "description", "initial_bid", "reserve", "date_time", "expires"),
    *("seller", "category", "extra"),
)
_WHILE_OPEN = (
    "auction AS A JOIN bid AS B "
    "ON A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires"
)


def bids_on_auctions(events: Events, auction: tuple[str, ...], bid: tuple[str, ...]) -> ps.Flow:
    """Bids made while their auction was open, with the columns `auction` of auctions and `bid` of bids.

    A bid's time is named `bid_date_time`.
    """
    auctions = events.auction.where("date_time IS NOT NULL AND expires IS NOT NULL")
    bids = events.bid.where("date_time IS NOT NULL").withColumnRenamed("date_time", "bid_date_time")
    opened = ps.flow(auctions.selectExpr(*auction), event_time="date_time", delay=events.delay)
    came = ps.flow(bids.selectExpr(*bid), event_time="bid_date_time", delay=events.delay)
    return opened.join(came, on={"id": "auction"}, between=("0s", "expires"))


def _q3(events: Events) -> ps.Flow:
    auctions = events.auction.where("category = 10").select("id", "seller")
    persons = events.person.where("state IN ('OR', 'ID', 'CA')").selectExpr(
        "id AS seller", "name", "city", "state"
    )
    joined = ps.flow(auctions).join(ps.flow(persons), on="seller")
    return joined.select("name", "city", "state", "id")


def _q4(events: Events) -> ps.Flow:
    bids = bids_on_auctions(
        events, ("id", "category", "date_time", "expires"), ("auction", "price", "bid_date_time")
    )
    closing = (
        bids.select("id", "category", "price")
        .key_by("id", "category", nulls=True)
        .aggregate(final=ps.max("price"), emit="changes")
    )
    return closing.key_by("category", nulls=True).aggregate(final=ps.avg("final"))


def _q6(events: Events) -> ps.Flow:
    """Averages of closing prices; an auction's closing price is known when it expires."""
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


def _q9(events: Events) -> ps.Flow:
    bid = ("auction", "bidder", "price", "bid_date_time", "extra AS bid_extra")
    bids = bids_on_auctions(events, _AUCTION, bid)
    return bids.key_by("id").top(1, by="price desc, bid_date_time, bidder, bid_extra")


def _q20(events: Events) -> ps.Flow:
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


def highest_bids(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    """The highest bid of each auction in each window, with partial states that merge."""
    keyed = bids.key_by("auction", slots=slots).window(ps.tumbling(window))
    return keyed.aggregate(price=ps.max("price"))


def _closing(by: str) -> BurstForm:
    """Average of the highest bids on auctions opened in the window, by the auctions' column `by`."""

    def steps(events: ps.Flow, window: str, slots: int) -> ps.Flow:
        bids = events.map_batches(Having("price", ("arrival", "auction", "price")))
        opened = events.map_batches(Having(by, ("arrival", "auction", by)))
        final = highest_bids(bids, window, slots).select("auction", "price", closed="window_start")
        sold = final.join(
            opened,
            on="auction",
            window=ps.tumbling(window),
            left_time="closed",
            right_time="arrival",
            slots=slots,
        )
        keyed = sold.select(by, "price", "closed").key_by(by, slots=slots)
        return keyed.window(ps.tumbling(window), on="closed").aggregate(price=ps.avg("price"))

    return BurstForm(
        {"auction": {"auction": "id", by: by}, "bid": {"auction": "auction", "price": "price"}},
        steps,
        busy="window-1",
        records=BIDS / (AUCTIONS + BIDS),
        truth=f"""
            SELECT {by}, closed AS window_start, closed + $size AS window_end, avg(price) AS price
            FROM (SELECT auction, start(arrival) AS closed, max(price) AS price
                  FROM rows WHERE price IS NOT NULL GROUP BY ALL) AS bids
            JOIN (SELECT auction, start(arrival) AS closed, {by}
                  FROM rows WHERE {by} IS NOT NULL) AS opened USING (auction, closed)
            GROUP BY ALL""",
    )


QUERIES = {
    "q3": NexmarkQuery(
        "Who sells in a category, in three states.",
        {"auction": ("id", "seller", "category"), "person": ("id", "name", "city", "state")},
        """SELECT P.name, P.city, P.state, A.id
           FROM auction AS A JOIN person AS P ON A.seller = P.id
           WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
        _q3,
    ),
    "q4": NexmarkQuery(
        "Average closing price of a category.",
        {
            "auction": ("id", "category", "date_time", "expires"),
            "bid": ("auction", "price", "date_time"),
        },
        f"""SELECT category, avg(final) AS final
            FROM (SELECT A.category, max(B.price) AS final
                  FROM {_WHILE_OPEN} GROUP BY A.id, A.category)
            GROUP BY category""",
        _q4,
        latest=("category",),
        mode="update",
        time="date_time",
        burst=_closing("category"),
    ),
    "q6": NexmarkQuery(
        "Average of a seller's last ten closing prices.",
        {
            "auction": ("id", "seller", "date_time", "expires"),
            "bid": ("auction", "price", "date_time"),
        },
        f"""SELECT seller, avg(price) AS final
            FROM (SELECT *, row_number() OVER (PARTITION BY seller
                                               ORDER BY bid_date_time DESC, id DESC) AS place
                  FROM (SELECT A.seller, A.id, B.price, B.date_time AS bid_date_time,
                               row_number() OVER (PARTITION BY A.id, A.seller
                                                  ORDER BY B.price DESC, B.date_time) AS bid_place
                        FROM {_WHILE_OPEN})
                  WHERE bid_place = 1)
            WHERE place <= 10 GROUP BY seller""",
        _q6,
        latest=("seller",),
        mode="update",
        time="date_time",
        burst=_closing("seller"),
    ),
    "q9": NexmarkQuery(
        "The winning bid of each auction.",
        {"auction": _AUCTION, "bid": ("auction", "bidder", "price", "date_time", "extra")},
        f"""SELECT {", ".join(_AUCTION)}, auction, bidder, price, bid_date_time, bid_extra
            FROM (SELECT A.*, B.auction, B.bidder, B.price, B.date_time AS bid_date_time,
                         B.extra AS bid_extra,
                         row_number() OVER (
                             PARTITION BY A.id
                             ORDER BY B.price DESC, B.date_time, B.bidder, B.extra,
                                      {", ".join(f"A.{name}" for name in _AUCTION[1:])}) AS place
                  FROM {_WHILE_OPEN})
            WHERE place <= 1""",
        _q9,
        mode="update",
        time="date_time",
        instead=f"""
            SELECT winning.*
            FROM (SELECT max_by(struct(A.*, B.auction, B.bidder, B.price,
                                       B.date_time AS bid_date_time, B.extra AS bid_extra),
                                struct(B.price, -unix_micros(B.date_time))) AS winning
                  FROM {_WHILE_OPEN} GROUP BY A.id)""",
    ),
    "q20": NexmarkQuery(
        "Bids with their auction, of a category.",
        {
            "bid": ("auction", "bidder", "price", "channel", "url", "date_time", "extra"),
            "auction": _AUCTION,
        },
        """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time AS bid_date_time,
                  B.extra AS bid_extra, A.item_name, A.description, A.initial_bid, A.reserve,
                  A.date_time AS auction_date_time, A.expires, A.seller, A.category,
                  A.extra AS auction_extra
           FROM bid AS B JOIN auction AS A ON B.auction = A.id
           WHERE A.category = 10""",
        _q20,
    ),
}
