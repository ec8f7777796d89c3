"""NEXMark's queries in SQL for Spark's own streaming, on the views person, auction and bid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CAME = "came"
"""The time of day at which a batch is read, as a column."""


@dataclass(frozen=True)
class Native:
    """A query as a user of Spark's own streaming writes it."""

    sql: str
    mode: Literal["append", "update"] = "append"
    time: str | None = None
    """The column that has a watermark; where nothing waits for time, none has."""


_BID = "auction, bidder, price, channel, url, date_time, extra"
_EUROS = "cast(0.908 * price AS decimal(23, 3))"
_DAY = "date_format(date_time, 'yyyy-MM-dd')"
_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _counts(what: str, name: str) -> str:
    """A count of all bids, and of each rank of price."""
    ranks = [
        f"count({what}) FILTER (WHERE {rank}) AS rank{n}_{name}"
        for n, rank in enumerate(_RANKS, start=1)
    ]
    return ", ".join([f"count({what}) AS total_{name}", *ranks])


_DISTINCT = (
    f"{_counts('*', 'bids')}, {_counts('DISTINCT bidder', 'bidders')}, "
    f"{_counts('DISTINCT auction', 'auctions')}"
)
_WHILE_OPEN = (
    "auction AS A JOIN bid AS B "
    "ON A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires"
)
_WINNING = "row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time)"

NATIVE = {
    "q0": Native("SELECT auction, bidder, price, date_time, extra FROM bid"),
    "q1": Native(f"SELECT auction, bidder, {_EUROS} AS price, date_time, extra FROM bid"),
    "q2": Native("SELECT auction, price FROM bid WHERE auction % 123 = 0"),
    "q3": Native(
        """SELECT P.name, P.city, P.state, A.id
           FROM auction AS A JOIN person AS P ON A.seller = P.id
           WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')"""
    ),
    "q4": Native(
        f"""SELECT category, avg(final) AS final
            FROM (SELECT A.category, max(B.price) AS final
                  FROM {_WHILE_OPEN} GROUP BY A.id, A.category)
            GROUP BY category""",
        mode="update",
        time="date_time",
    ),
    "q5": Native(
        """SELECT inline(filter(counts, c -> c.num = most))
           FROM (SELECT collect_list(struct(auction, num)) AS counts, max(num) AS most
                 FROM (SELECT auction, count(*) AS num, window
                       FROM bid GROUP BY auction, window(date_time, '10 seconds', '2 seconds'))
                 GROUP BY window)""",
        time="date_time",
    ),
    "q6": Native(
        f"""SELECT seller, avg(price) AS final
            FROM (SELECT *, row_number() OVER (PARTITION BY seller
                                               ORDER BY bid_date_time DESC, id DESC) AS place
                  FROM (SELECT A.seller, A.id, B.price, B.date_time AS bid_date_time,
                               {_WINNING} AS bid_place
                        FROM {_WHILE_OPEN})
                  WHERE bid_place = 1)
            WHERE place <= 10 GROUP BY seller""",
        mode="update",
        time="date_time",
    ),
    "q7": Native(
        """SELECT B.auction, B.price, B.bidder, B.date_time, B.extra
           FROM bid AS B
           JOIN (SELECT window, max(price) AS maxprice
                 FROM bid GROUP BY window(date_time, '10 seconds')) AS M
           ON B.price = M.maxprice AND B.date_time BETWEEN M.window.start AND M.window.end""",
        time="date_time",
    ),
    "q8": Native(
        """SELECT P.id, P.name, P.window.start AS starttime
           FROM (SELECT id, name, window
                 FROM person GROUP BY id, name, window(date_time, '10 seconds')) AS P
           JOIN (SELECT seller, window
                 FROM auction GROUP BY seller, window(date_time, '10 seconds')) AS A
           ON P.id = A.seller AND P.window = A.window""",
        time="date_time",
    ),
    "q9": Native(
        f"""SELECT *
            FROM (SELECT A.*, B.auction, B.bidder, B.price, B.date_time AS bid_date_time,
                         B.extra AS bid_extra, {_WINNING} AS place
                  FROM {_WHILE_OPEN})
            WHERE place <= 1""",
        time="date_time",
    ),
    "q10": Native(
        f"""SELECT auction, bidder, price, date_time, extra, {_DAY} AS dt,
                   date_format(date_time, 'HH:mm') AS hm
            FROM bid"""
    ),
    "q11": Native(
        """SELECT bidder, count(*) AS bid_count, session_window.start AS starttime,
                  session_window.end AS endtime
           FROM bid GROUP BY bidder, session_window(date_time, '10 seconds')""",
        time="date_time",
    ),
    "q12": Native(
        f"""SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
            FROM bid GROUP BY bidder, window({CAME}, '10 seconds')""",
        time=CAME,
    ),
    "q13": Native(
        """SELECT /*+ BROADCAST(S) */ auction, bidder, price, date_time, value
           FROM bid JOIN (SELECT id AS key, cast(id AS string) AS value FROM range(10000)) AS S
           ON auction % 10000 = key"""
    ),
    "q14": Native(
        f"""SELECT auction, bidder, {_EUROS} AS price,
                   CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                        ELSE 'otherTime' END AS bid_time_type,
                   date_time, extra,
                   cast(length(extra) - length(replace(extra, 'c', '')) AS bigint) AS c_counts
            FROM bid WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000"""
    ),
    "q15": Native(
        f"SELECT {_DAY} AS day, {_DISTINCT} FROM bid GROUP BY {_DAY}",
        mode="update",
    ),
    "q16": Native(
        f"""SELECT channel, {_DAY} AS day, max(date_format(date_time, 'HH:mm')) AS minute,
                   {_DISTINCT}
            FROM bid GROUP BY channel, {_DAY}""",
        mode="update",
    ),
    "q17": Native(
        f"""SELECT auction, {_DAY} AS day, {_counts("*", "bids")}, min(price) AS min_price,
                   max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
            FROM bid GROUP BY auction, {_DAY}""",
        mode="update",
    ),
    "q18": Native(
        f"""SELECT {_BID}
            FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction
                                               ORDER BY date_time DESC) AS place
                  FROM bid)
            WHERE place <= 1""",
        mode="update",
    ),
    "q19": Native(
        f"""SELECT *
            FROM (SELECT {_BID}, row_number() OVER (PARTITION BY auction ORDER BY price DESC)
                         AS rank_number
                  FROM bid)
            WHERE rank_number <= 10""",
        mode="update",
    ),
    "q20": Native(
        """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time AS bid_date_time,
                  B.extra AS bid_extra, A.item_name, A.description, A.initial_bid, A.reserve,
                  A.date_time AS auction_date_time, A.expires, A.seller, A.category,
                  A.extra AS auction_extra
           FROM bid AS B JOIN auction AS A ON B.auction = A.id
           WHERE A.category = 10"""
    ),
    "q21": Native(
        """SELECT *
           FROM (SELECT auction, bidder, price, channel,
                        CASE lower(channel)
                            WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                            ELSE CASE WHEN url RLIKE '(&|^)channel_id='
                                      THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END
                        END AS channel_id
                 FROM bid)
           WHERE channel_id IS NOT NULL"""
    ),
    "q22": Native(
        """SELECT auction, bidder, price, channel, get(split(url, '/'), 3) AS dir1,
                  get(split(url, '/'), 4) AS dir2, get(split(url, '/'), 5) AS dir3
           FROM bid"""
    ),
}
"""By the names of the catalog: the query itself, where Spark's dialect has a way to say it."""

_SETS = ", ".join(
    [
        _counts("*", "bids"),
        *(
            f"size(collect_set({column}) FILTER (WHERE {rank})) AS {name}_{column}s"
            for column in ("bidder", "auction")
            for name, rank in zip(
                ("total", "rank1", "rank2", "rank3"), ("true", *_RANKS), strict=True
            )
        ),
    ]
)

INSTEAD = {
    "q9": Native(
        f"""SELECT winning.*
            FROM (SELECT max_by(struct(A.*, B.auction, B.bidder, B.price,
                                       B.date_time AS bid_date_time, B.extra AS bid_extra),
                                struct(B.price, -unix_micros(B.date_time))) AS winning
                  FROM {_WHILE_OPEN} GROUP BY A.id)""",
        mode="update",
        time="date_time",
    ),
    "q15": Native(f"SELECT {_DAY} AS day, {_SETS} FROM bid GROUP BY {_DAY}", mode="update"),
    "q16": Native(
        f"""SELECT channel, {_DAY} AS day, max(date_format(date_time, 'HH:mm')) AS minute, {_SETS}
            FROM bid GROUP BY channel, {_DAY}""",
        mode="update",
    ),
    "q18": Native(
        f"""SELECT newest.*
            FROM (SELECT max_by(struct({_BID}), date_time) AS newest
                  FROM bid GROUP BY bidder, auction)""",
        mode="update",
    ),
    "q19": Native(
        f"""SELECT bid.*, place + 1 AS rank_number
            FROM (SELECT posexplode(highest) AS (place, bid)
                  FROM (SELECT max_by(struct({_BID}), struct(price, -unix_micros(date_time)), 10)
                               AS highest
                        FROM bid GROUP BY auction))""",
        mode="update",
    ),
}
"""What Spark runs to the same end, where it refuses the query itself."""
