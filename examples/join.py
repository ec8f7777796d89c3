"""Advertisements that were clicked within ten seconds, and those that were not: a join of two streams.

Shows a join by event time with two sources, a left join, and a flow over static DataFrames.
Run it on this machine: python examples/join.py
"""

from datetime import datetime, timedelta

import pyarrow.compute as pc

import penstock as ps

SHOWN = "ad long, site string, shown timestamp"
CLICKS = "ad long, clicked timestamp"


def clicked(shown, clicks) -> ps.Flow:
    """Advertisements shown and clicked, by site."""
    joined = ps.flow(shown, event_time="shown", delay="5s").join(
        ps.flow(clicks, event_time="clicked", delay="5s"),
        on="ad",
        how="left",
        between=("0s", "10s"),
    )
    return (
        joined.with_columns(hit=pc.if_else(pc.field("clicked").is_valid(), 1, 0))
        .key_by("site")
        .aggregate(shown=ps.count(), clicked=ps.sum("hit"))
    )


def main() -> None:
    spark = ps.session("join", cores=6)
    noon = datetime(2026, 1, 1, 12)
    rows = [(ad, f"site {ad % 3}", noon + timedelta(seconds=ad)) for ad in range(60)]
    hits = [(ad, noon + timedelta(seconds=ad + 2 + ad % 11)) for ad in range(0, 60, 2)]
    result = ps.collect()
    flow = clicked(spark.createDataFrame(rows, SHOWN), spark.createDataFrame(hits, CLICKS))
    flow.start(result, hosts=2).await_termination()
    for row in sorted(result.rows(), key=str):
        print(row)


if __name__ == "__main__":
    main()
