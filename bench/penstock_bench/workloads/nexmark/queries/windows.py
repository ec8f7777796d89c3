"""Queries with windows: hopping, tumbling, sessions, and by processing time."""

from __future__ import annotations

import penstock as ps
from penstock.model import milliseconds
from penstock_bench.workloads.nexmark.arriving_events import Having, LiveEvents
from penstock_bench.workloads.nexmark.config import AUCTIONS, PEOPLE
from penstock_bench.workloads.nexmark.queries.auctions import highest_bids
from penstock_bench.workloads.nexmark.query import CAME, BurstForm, Events, NexmarkQuery

# -- q5: the auctions with the most bids


def _hottest(
    bids: ps.Flow, size: str | float, hop: str, slots: int, nulls: bool = False
) -> ps.Flow:
    """The auctions with the most bids in each window, with the columns auction, num and the window's."""
    counts = (
        bids.key_by("auction", slots=slots, nulls=nulls)
        .window(ps.hopping(size, hop))
        .aggregate(num=ps.count())
    )
    return counts.key_by("window_start", "window_end", slots=slots).top(
        1, by="num desc", ties=True, until="window_end"
    )


def _q5(events: Events) -> ps.Flow:
    bids = events.bid.where("date_time IS NOT NULL").select("auction", "date_time")
    came = ps.flow(bids, event_time="date_time", delay=events.delay)
    return _hottest(came, "10s", "2s", 64, nulls=True).select("auction", "num")


def _live_q5(events: LiveEvents, slots: int) -> ps.Flow:
    # Rows of the lead-in have no time.
    bids = events.stream("bid", "auction").where("arrival IS NOT NULL")
    came = ps.flow(bids, arrival="arrival", event_time="arrival")
    return _hottest(came, "10s", "2s", slots).select("auction", "num")


def _burst_q5(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    """Counts bids in hopping windows of twice the length `window`, one every `window`."""
    return _hottest(bids, 2 * milliseconds(window) / 1000, window, slots)


# -- q7: the highest bids


def _q7(events: Events) -> ps.Flow:
    bids = ps.flow(
        events.bid.where("date_time IS NOT NULL"), event_time="date_time", delay=events.delay
    )
    highest = bids.window(ps.tumbling("10s")).aggregate(maxprice=ps.max("price"))
    joined = highest.join(
        bids, on={"maxprice": "price"}, between=("-10s", "0s"), left_time="window_end"
    )
    return joined.select("auction", "price", "bidder", "date_time", "extra")


def _burst_q7(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    """The highest bid of each auction, then the highest of the window."""
    highest = highest_bids(bids, window, slots)
    return highest.key_by("window_start", "window_end", slots=slots).top(
        1, by="price desc", ties=True, until="window_end"
    )


# -- q8: people who sell in the window in which they joined

_START = "timestamp_micros(unix_micros({time}) - pmod(unix_micros({time}), 10000000))"
"""The start of a row's window instead of its own time, so that rows that differ only in time are equal."""


def _sellers(came: ps.Flow, sold: ps.Flow, slots: int) -> ps.Flow:
    joined = came.join(sold, on="id", window=ps.tumbling("10s"), distinct=True, slots=slots)
    return joined.select("id", "name", "starttime")


def _q8(events: Events) -> ps.Flow:
    start = _START.format(time="date_time")
    persons = events.person.where("date_time IS NOT NULL").selectExpr(
        "id", "name", f"{start} AS starttime"
    )
    sellers = events.auction.where("date_time IS NOT NULL").selectExpr(
        "seller AS id", f"{start} AS opened"
    )
    came = ps.flow(persons, event_time="starttime", delay=events.delay)
    sold = ps.flow(sellers, event_time="opened", delay=events.delay)
    return _sellers(came, sold, 64)


def _live_q8(events: LiveEvents, slots: int) -> ps.Flow:
    start = _START.format(time="arrival")
    person = events.stream("person", "id", "name").where("arrival IS NOT NULL")
    auction = events.stream("auction", "seller").where("arrival IS NOT NULL")
    persons = person.selectExpr("arrival", "id", "name", f"{start} AS starttime")
    sellers = auction.selectExpr("arrival", "seller AS id", f"{start} AS opened")
    # Rows of a side that differ only in arrival must be equal, so that column is dropped.
    came = ps.flow(persons, arrival="arrival", event_time="starttime").select(
        "id", "name", "starttime"
    )
    sold = ps.flow(sellers, arrival="arrival", event_time="opened").select("id", "opened")
    return _sellers(came, sold, slots)


def _burst_q8(events: ps.Flow, window: str, slots: int) -> ps.Flow:
    """Counts of each seller's auctions, joined with the people who joined in the window."""
    auctions = events.map_batches(Having("seller", ("arrival", "seller")))
    people = events.map_batches(Having("name", ("arrival", "id", "name")))
    keyed = auctions.key_by("seller", slots=slots).window(ps.tumbling(window))
    sellers = keyed.aggregate(auctions=ps.count()).select("seller", "auctions", sold="window_start")
    joined = sellers.join(
        people,
        on={"seller": "id"},
        window=ps.tumbling(window),
        left_time="sold",
        right_time="arrival",
        slots=slots,
    )
    return joined.select("id", "name", "auctions", "window_start", "window_end")


# -- q11, q12: bids of a bidder


def _q11(events: Events) -> ps.Flow:
    """Bids by session. A bid without a time is rejected, since it is in no session."""
    bids = ps.flow(
        events.bid.select("bidder", "date_time"), event_time="date_time", delay=events.delay
    )
    keyed = bids.key_by("bidder", nulls=True).window(ps.session_window("10s"))
    counts = keyed.aggregate(bid_count=ps.count())
    return counts.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


def _q12(events: Events) -> ps.Flow:
    bids = ps.flow(events.bid.select("bidder")).key_by("bidder", nulls=True)
    counts = bids.window(ps.tumbling("10s", clock="processing")).aggregate(bid_count=ps.count())
    return counts.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


QUERIES = {
    "q5": NexmarkQuery(
        "Auctions with the most bids, over a hopping window.",
        {"bid": ("auction", "date_time")},
        """SELECT inline(filter(counts, c -> c.num = most))
           FROM (SELECT collect_list(struct(auction, num)) AS counts, max(num) AS most
                 FROM (SELECT auction, count(*) AS num, window
                       FROM bid GROUP BY auction, window(date_time, '10 seconds', '2 seconds'))
                 GROUP BY window)""",
        _q5,
        time="date_time",
        truth="""
            WITH counted AS (
                SELECT auction, start, count(*) AS num
                FROM (SELECT auction, unnest(range(5)) AS back,
                             window_of(date_time, '2 seconds').start
                             - back * INTERVAL 2 SECOND AS start
                      FROM bid WHERE date_time IS NOT NULL)
                GROUP BY auction, start)
            SELECT auction, num FROM counted
            QUALIFY num = max(num) OVER (PARTITION BY start)""",
        live=_live_q5,
        burst=BurstForm(
            {"bid": {"auction": "auction"}},
            _burst_q5,
            busy="window-1",
            records=2.0,
            truth="""
                SELECT auction, first AS window_start, first + 2 * $size AS window_end, num
                FROM (SELECT auction, start(arrival) - hop * $size AS first, count(*) AS num
                      FROM rows, range(2) AS r (hop) GROUP BY ALL)
                QUALIFY num = max(num) OVER (PARTITION BY first)""",
        ),
    ),
    "q7": NexmarkQuery(
        "The highest bids of each ten seconds.",
        {"bid": ("auction", "price", "bidder", "date_time", "extra")},
        """SELECT B.auction, B.price, B.bidder, B.date_time, B.extra
           FROM bid AS B
           JOIN (SELECT window(date_time, '10 seconds') AS span, max(price) AS maxprice
                 FROM bid WHERE date_time IS NOT NULL
                 GROUP BY window(date_time, '10 seconds')) AS M
           ON B.price = M.maxprice AND B.date_time BETWEEN M.span.start AND M.span.end""",
        _q7,
        time="date_time",
        burst=BurstForm(
            {"bid": {"auction": "auction", "price": "price"}},
            _burst_q7,
            busy="window-1",
            records=1.0,
            truth="""
                SELECT auction, first AS window_start, first + $size AS window_end, price
                FROM (SELECT auction, start(arrival) AS first, max(price) AS price
                      FROM rows GROUP BY ALL)
                QUALIFY price = max(price) OVER (PARTITION BY first)""",
        ),
    ),
    "q8": NexmarkQuery(
        "Persons who open an auction in the ten seconds that they came in.",
        {"person": ("id", "name", "date_time"), "auction": ("seller", "date_time")},
        """SELECT P.id, P.name, P.span.start AS starttime
           FROM (SELECT id, name, window(date_time, '10 seconds') AS span
                 FROM person WHERE date_time IS NOT NULL
                 GROUP BY id, name, window(date_time, '10 seconds')) AS P
           JOIN (SELECT seller, window(date_time, '10 seconds') AS span
                 FROM auction WHERE date_time IS NOT NULL
                 GROUP BY seller, window(date_time, '10 seconds')) AS A
           ON P.id = A.seller AND P.span = A.span""",
        _q8,
        time="date_time",
        live=_live_q8,
        burst=BurstForm(
            {"person": {"id": "id", "name": "name"}, "auction": {"seller": "seller"}},
            _burst_q8,
            busy="window-1",
            records=AUCTIONS / (PEOPLE + AUCTIONS),
            truth="""
                SELECT id, name, auctions, came AS window_start, came + $size AS window_end
                FROM (SELECT id, name, start(arrival) AS came FROM rows WHERE name IS NOT NULL)
                JOIN (SELECT seller AS id, start(arrival) AS came, count(*) AS auctions
                      FROM rows WHERE seller IS NOT NULL GROUP BY ALL) USING (id, came)""",
        ),
    ),
    "q11": NexmarkQuery(
        "Bids of a bidder while he is active: sessions.",
        {"bid": ("bidder", "date_time")},
        """SELECT bidder, count(*) AS bid_count, session_window.start AS starttime,
                  session_window.end AS endtime
           FROM bid GROUP BY bidder, session_window(date_time, '10 seconds')""",
        _q11,
        time="date_time",
        truth="""
            WITH marked AS (
                SELECT bidder, date_time,
                       coalesce(date_time - lag(date_time) OVER w >= INTERVAL 10 SECOND, true)
                       AS begins
                FROM bid WHERE date_time IS NOT NULL
                WINDOW w AS (PARTITION BY bidder ORDER BY date_time)
            ), numbered AS (
                SELECT bidder, date_time,
                       sum(begins::INT) OVER (
                           PARTITION BY bidder ORDER BY date_time
                           RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS nth
                FROM marked
            )
            SELECT bidder, count(*) AS bid_count, min(date_time) AS starttime,
                   max(date_time) + INTERVAL 10 SECOND AS endtime
            FROM numbered GROUP BY bidder, nth""",
    ),
    # The windows of bids depend on when they are read; a bidder's total does not.
    "q12": NexmarkQuery(
        "Bids of a bidder in each ten seconds of the day's time.",
        {"bid": ("bidder",)},
        f"""SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
            FROM bid GROUP BY bidder, window({CAME}, '10 seconds')""",
        _q12,
        time=CAME,
        truth="SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    ),
}
