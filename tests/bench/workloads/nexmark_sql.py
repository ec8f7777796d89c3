"""The answers to the NEXMark queries by DuckDB, straight from the files: an oracle for the flows.

It shares no code with the readers, so that it can tell when they are wrong. Times are UTC. Nulls
are smallest, as in Spark. Where the benchmark leaves open which of equal rows wins, these decide by
the remaining columns.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

_COLUMNS = {
    "person": {
        "id": "BIGINT", "name": "VARCHAR", "email_address": "VARCHAR", "credit_card": "VARCHAR",
        "city": "VARCHAR", "state": "VARCHAR", "date_time": "TIME", "extra": "VARCHAR",
    },
    "auction": {
        "id": "BIGINT", "item_name": "VARCHAR", "description": "VARCHAR", "initial_bid": "BIGINT",
        "reserve": "BIGINT", "date_time": "TIME", "expires": "TIME", "seller": "BIGINT",
        "category": "BIGINT", "extra": "VARCHAR",
    },
    "bid": {
        "auction": "BIGINT", "bidder": "BIGINT", "price": "BIGINT", "channel": "VARCHAR",
        "url": "VARCHAR", "date_time": "TIME", "extra": "VARCHAR",
    },
}  # fmt: skip

_BIDS_BY_RANK = """
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""

_ALL_BY_RANK = _BIDS_BY_RANK + "".join(
    f""",
    count(DISTINCT {column}) AS total_{name},
    count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{name},
    count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{name},
    count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{name}"""
    for column, name in (("bidder", "bidders"), ("auction", "auctions"))
)

_TUMBLE = "time_bucket(INTERVAL 10 SECOND, date_time, TIMESTAMP '1970-01-01')"
_DAY = "strftime(date_time, '%Y-%m-%d')"
_MINUTE = "strftime(date_time, '%H:%M')"
_EUROS = "CAST(0.908 * price AS DECIMAL(23, 3))"

_ANY_WINNER = """
    SELECT a.id, a.seller, b.price, b.date_time AS won_at,
           row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time) AS nth
    FROM auction a JOIN bid b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires"""

QUERIES: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": f"SELECT auction, bidder, {_EUROS} AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        SELECT category, avg(final) AS final
        FROM (
            SELECT a.category, max(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires
            GROUP BY a.id, a.category
        )
        GROUP BY category""",
    "q5": """
        WITH counted AS (
            SELECT auction, start, count(*) AS num
            FROM (
                SELECT auction, unnest(range(5)) AS back,
                       time_bucket(INTERVAL 2 SECOND, date_time, TIMESTAMP '1970-01-01')
                       - back * INTERVAL 2 SECOND AS start
                FROM bid WHERE date_time IS NOT NULL
            )
            GROUP BY auction, start
        )
        SELECT auction, num FROM counted
        QUALIFY num = max(num) OVER (PARTITION BY start)""",
    "q6": f"""
        SELECT seller, avg(price) AS final
        FROM (
            SELECT seller, price,
                   row_number() OVER (PARTITION BY seller ORDER BY won_at DESC, id DESC) AS back
            FROM ({_ANY_WINNER}) WHERE nth = 1
        )
        WHERE back <= 10 GROUP BY seller""",
    "q7": f"""
        SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
        FROM bid b JOIN (
            SELECT max(price) AS most, {_TUMBLE} + INTERVAL 10 SECOND AS window_end
            FROM bid WHERE date_time IS NOT NULL GROUP BY window_end
        ) w ON b.price = w.most
        WHERE b.date_time BETWEEN w.window_end - INTERVAL 10 SECOND AND w.window_end""",
    "q8": f"""
        SELECT p.id, p.name, p.starttime
        FROM (SELECT DISTINCT id, name, {_TUMBLE} AS starttime FROM person) p
        JOIN (SELECT DISTINCT seller, {_TUMBLE} AS starttime FROM auction) a
        ON p.id = a.seller AND p.starttime = a.starttime""",
    "q9": """
        SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires,
               a.seller, a.category, a.extra, b.auction, b.bidder, b.price,
               b.date_time AS bid_date_time, b.extra AS bid_extra
        FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.date_time BETWEEN a.date_time AND a.expires
        QUALIFY row_number() OVER (
            PARTITION BY a.id
            ORDER BY b.price DESC, b.date_time, b.bidder, b.extra, a.item_name, a.description,
                     a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category, a.extra
        ) = 1""",
    "q10": f"""
        SELECT auction, bidder, price, date_time, extra, {_DAY} AS dt, {_MINUTE} AS hm FROM bid""",
    "q11": """
        WITH marked AS (
            SELECT bidder, date_time,
                   coalesce(date_time - lag(date_time) OVER w >= INTERVAL 10 SECOND, true) AS begins
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
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": """
        SELECT b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bid b
        JOIN (SELECT range AS key, range::VARCHAR AS value FROM range(10000)) s
        ON b.auction % 10000 = s.key""",
    "q14": f"""
        SELECT auction, bidder, {_EUROS} AS price,
               CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                    WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                    ELSE 'otherTime' END AS bid_time_type,
               date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_ALL_BY_RANK} FROM bid GROUP BY day",
    "q16": f"""
        SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute, {_ALL_BY_RANK}
        FROM bid GROUP BY channel, day""",
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_BIDS_BY_RANK}, min(price) AS min_price,
               max(price) AS max_price, avg(price) AS avg_price, sum(price)::BIGINT AS sum_price
        FROM bid GROUP BY auction, day""",
    "q18": """
        SELECT auction, bidder, price, channel, url, date_time, extra FROM bid
        QUALIFY row_number() OVER (
            PARTITION BY bidder, auction ORDER BY date_time DESC, price, channel, url, extra
        ) = 1""",
    "q19": """
        SELECT auction, bidder, price, channel, url, date_time, extra,
               row_number() OVER (
                   PARTITION BY auction
                   ORDER BY price DESC, date_time, bidder, channel, url, extra
               ) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time,
               b.extra AS bid_extra, a.item_name, a.description, a.initial_bid, a.reserve,
               a.date_time AS auction_date_time, a.expires, a.seller, a.category,
               a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10""",
    "q21": """
        SELECT auction, bidder, price, channel,
               CASE lower(channel)
                   WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                   WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                   ELSE CASE WHEN regexp_matches(url, '(&|^)channel_id=([^&]*)')
                        THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END
               END AS channel_id
        FROM bid WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, string_split(url, '/')[4] AS dir1,
               string_split(url, '/')[5] AS dir2, string_split(url, '/')[6] AS dir3
        FROM bid""",
}
"""q12 goes by the time of day, so only how many bids each bidder has in all is told."""


def answer(query: str, folder: str | Path) -> pa.Table:
    """What a query gives for the events of a folder; in no particular order."""
    with duckdb.connect() as db:
        db.execute(
            "SET TimeZone = 'UTC'; SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'"
        )
        for stream in _COLUMNS:
            _load(db, stream, Path(folder))
        found = db.sql(QUERIES[query]).to_arrow_table()
    for i, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            in_utc = found.column(i).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
            found = found.set_column(i, field.name, in_utc)
    return found


def _load(db: duckdb.DuckDBPyConnection, stream: str, folder: Path) -> None:
    """A stream's file as a table; times as UTC without a zone."""
    columns = _COLUMNS[stream]
    in_json = {name: type.replace("TIME", "VARCHAR") for name, type in columns.items()}
    if (file := folder / f"{stream}.ndjson").exists() and file.stat().st_size:
        source = f"read_json('{file}', format = 'newline_delimited', columns = {in_json})"
    elif (file := folder / f"{stream}.parquet").exists():
        source = f"read_parquet('{file}')"
    else:
        nothing = ", ".join(f"NULL::{type} AS {name}" for name, type in in_json.items())
        source = f"(SELECT {nothing} LIMIT 0)"
    taken = [
        f"{_utc(name)} AS {name}" if type == "TIME" else f"{name}::{type} AS {name}"
        for name, type in columns.items()
    ]
    db.execute(f"CREATE TABLE {stream} AS SELECT {', '.join(taken)} FROM {source}")


def _utc(name: str) -> str:
    text = f"{name}::VARCHAR"
    millis = f"make_timestamp(TRY_CAST({text} AS BIGINT) * 1000)"
    return (
        f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN {millis} "
        f"ELSE {text}::TIMESTAMPTZ AT TIME ZONE 'UTC' END"
    )
