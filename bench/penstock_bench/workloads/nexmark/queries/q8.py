"""Q8: persons who open an auction in the ten seconds that they came in.

SELECT P.id, P.name, P.starttime
FROM (SELECT id, name, window_start AS starttime, window_end AS endtime
      FROM TUMBLE(person, date_time, 10 s) GROUP BY id, name, window_start, window_end) AS P
JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
      FROM TUMBLE(auction, date_time, 10 s) GROUP BY seller, window_start, window_end) AS A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query

START = "timestamp_micros(unix_micros(date_time) - pmod(unix_micros(date_time), 10000000))"
"""Instead of a row's own time: rows of a window that differ in nothing else are then equal."""


def flow(events: Events) -> ps.Flow:
    persons = events.person.where("date_time IS NOT NULL").selectExpr(
        "id", "name", f"{START} AS starttime"
    )
    sellers = events.auction.where("date_time IS NOT NULL").selectExpr(
        "seller AS id", f"{START} AS opened"
    )
    came = ps.flow(persons, event_time="starttime", delay=events.delay)
    sold = ps.flow(sellers, event_time="opened", delay=events.delay)
    joined = came.join(sold, on="id", window=ps.tumbling("10s"), distinct=True)
    return joined.select("id", "name", "starttime")


QUERY = Query({"person": ("id", "name", "date_time"), "auction": ("seller", "date_time")}, flow)
