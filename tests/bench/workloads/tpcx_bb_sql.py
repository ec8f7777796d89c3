"""The answers to the TPCx-BB queries by DuckDB: an oracle for the flows.

It shares no code with the flows. Rows are in the order of the table; times are UTC. Items break ties that the
benchmark leaves open, as in the flows.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

_SESSIONS = """
    marked AS (
        SELECT user, item, page, row_number,
               coalesce(clicked_at - lag(clicked_at) OVER w >= INTERVAL 60 MINUTE, true) AS begins
        FROM chosen WINDOW w AS (PARTITION BY user ORDER BY row_number)
    ), sessions AS (
        SELECT user, item, page,
               sum(begins::INT) OVER (PARTITION BY user ORDER BY row_number) AS nth
        FROM marked
    )"""

QUERIES: dict[int, str] = {
    1: """
        WITH lines AS (
            SELECT DISTINCT ticket, item, date_trunc('hour', sold_at) AS hour FROM rows
            WHERE store BETWEEN 1 AND 25 AND category BETWEEN 1 AND 5
        ), counted AS (
            SELECT a.item AS item_1, b.item AS item_2, a.hour, count(*) AS n
            FROM lines a JOIN lines b ON a.ticket = b.ticket AND a.item < b.item
            GROUP BY ALL
        )
        SELECT item_1, item_2, hour AS window_start, hour + INTERVAL 1 HOUR AS window_end, n,
               row_number() OVER (PARTITION BY hour ORDER BY n DESC, item_1, item_2) AS place
        FROM counted QUALIFY place <= 100 ORDER BY window_start, place""",
    2: f"""
        WITH chosen AS (
            FROM rows WHERE page = 'view' AND user IS NOT NULL AND item IS NOT NULL
        ), {_SESSIONS}, seen AS (SELECT DISTINCT user, nth, item FROM sessions)
        SELECT a.item AS item_1, b.item AS item_2, count(*) AS n
        FROM seen a JOIN seen b ON a.user = b.user AND a.nth = b.nth AND a.item < b.item
        GROUP BY ALL ORDER BY n DESC, item_1, item_2 LIMIT 30""",
    3: """
        WITH before AS (
            SELECT p.item AS bought, v.item AS viewed, p.clicked_at - v.clicked_at AS ago
            FROM rows p JOIN rows v ON p.user = v.user AND v.row_number < p.row_number
            WHERE p.page = 'purchase' AND v.page = 'view'
            QUALIFY row_number() OVER (PARTITION BY p.row_number ORDER BY v.row_number DESC) <= 5
        )
        SELECT bought, viewed, count(*) AS n FROM before WHERE ago <= INTERVAL 10 DAY
        GROUP BY bought, viewed
        QUALIFY row_number() OVER (PARTITION BY bought ORDER BY n DESC, viewed) <= 30
        ORDER BY bought, n DESC, viewed""",
    4: f"""
        WITH chosen AS (FROM rows WHERE user IS NOT NULL), {_SESSIONS}, visited AS (
            SELECT count(*) AS pages FROM sessions GROUP BY user, nth
            HAVING bool_or(page = 'cart') AND NOT bool_or(page = 'checkout')
        )
        SELECT avg(pages) AS pages, count(*) AS sessions FROM visited HAVING sessions > 0""",
    15: """
        WITH days AS (
            SELECT category, date_trunc('day', sold_at)::DATE - DATE '1970-01-01' AS day,
                   sum(quantity * price) AS cents
            FROM rows WHERE store BETWEEN 1 AND 10 GROUP BY ALL
        ), slopes AS (
            SELECT category, (count(*) * sum(day * cents) - sum(day) * sum(cents))::DOUBLE
                   / (count(*) * sum(day * day) - sum(day) * sum(day))::DOUBLE AS slope
            FROM days GROUP BY category HAVING count(*) > 1
        )
        FROM slopes WHERE slope <= 0 ORDER BY category""",
}


def answer(number: int, rows: pa.Table) -> pa.Table:
    """Result of a query for the rows of its stream, in order."""
    numbered = rows.append_column("row_number", pa.array(np.arange(len(rows))))
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("given", numbered)
        time = next(field.name for field in rows.schema if pa.types.is_timestamp(field.type))
        db.execute(
            f"CREATE TABLE rows AS SELECT * REPLACE ({time} AT TIME ZONE 'UTC' AS {time}) FROM given"
        )
        found = db.sql(QUERIES[number]).to_arrow_table()
    for i, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            in_utc = found.column(i).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
            found = found.set_column(i, field.name, in_utc)
    return found
