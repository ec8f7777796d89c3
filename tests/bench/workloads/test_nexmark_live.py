"""NEXMark on arriving events: their arrival times, and the results of the queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.sim.shapes import shape
from penstock.state.variables.ddl import schema_of
from penstock_bench.workloads.nexmark.arriving_events import MixedEvents, StreamArrivals
from penstock_bench.workloads.nexmark.columns import STREAMS, Stream
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.events import events
from penstock_bench.workloads.nexmark.live import live_flow

RATE = "sine(2000, 1000, 20s)"


def test_streams_together_are_the_events_in_their_order() -> None:
    load = shape("sine(900, 700, 3s)")
    numbers, times = [], []
    for stream in STREAMS:
        arrivals = StreamArrivals(load, stream)
        rows = np.arange(int(arrivals.cumulative(10_000)))
        numbers.append(arrivals.events(rows))
        times.append(arrivals.arrival_us(rows))
        assert (arrivals.cumulative((times[-1] + 0.5) / 1000) > rows).all()
        assert (arrivals.cumulative((times[-1] - 0.5) / 1000) <= rows).all()
    every = np.concatenate(numbers)
    order = np.argsort(every)
    assert every[order].tolist() == list(range(int(load.cumulative(10_000))))
    assert np.array_equal(np.concatenate(times)[order], load.arrival_us(np.sort(every)))


@pytest.mark.parametrize(
    ("stream", "names"),
    [("person", ("id", "name")), ("auction", ("seller",)), ("bid", ("auction", "price"))],
)
def test_rows_are_those_of_the_generator(stream: Stream, names: tuple[str, ...]) -> None:
    config = NexmarkConfig(events=5000, seed=9)
    content = MixedEvents({stream: {name: name for name in names}}, config)
    whole = events(config, 0, 5000)[stream].select(list(names))
    columns = content.rows(np.arange(whole.num_rows), np.zeros(whole.num_rows, np.int64))
    assert pa.table(columns, schema=whole.schema) == whole
    assert schema_of(content.columns).names == list(names)


def test_other_queries_are_refused() -> None:
    with pytest.raises(SettingError, match="no live query 'q3'"):
        live_flow("q3", None, RATE)  # type: ignore[arg-type]


def arrived(stream: Stream, start_ms: int, until_ms: int) -> pd.DataFrame:
    """Rows of a stream that have arrived by a time, computed without Spark."""
    arrivals = StreamArrivals(shape(RATE), stream)
    rows = np.arange(int(arrivals.cumulative(until_ms - start_ms)))
    config = NexmarkConfig(events=10**9, person_bytes=0, auction_bytes=0, bid_bytes=0)
    content = {"person": ("id", "name"), "auction": ("seller",), "bid": ("auction", "price")}
    names = content[stream]
    columns = MixedEvents({stream: {name: name for name in names}}, config).rows(rows, rows)
    frame: pd.DataFrame = pa.table(columns, names=list(names)).to_pandas()
    frame["ms"] = start_ms + arrivals.arrival_us(rows) / 1000
    return frame


def ran(
    spark: SparkSession,
    name: str,
    start_ms: int,
    checkpoint: str,
    enough: Callable[[list[dict[str, Any]]], bool],
) -> list[dict[str, Any]]:
    sink = ps.collect()
    query = live_flow(name, spark, RATE, slots=8, start_ms=start_ms).start(
        sink, checkpoint=checkpoint, hosts=1
    )
    for _ in range(1200):
        if enough(sink.rows()) or query.await_termination(0.1):
            break
    query.stop()
    assert query.exception() is None
    return sink.rows()


@pytest.fixture
def start_ms() -> int:
    """A start time in the past, at the start of a window: two windows of 10 s are over at once."""
    return (int(time.time()) - 35) // 10 * 10_000


@pytest.mark.slow
def test_q2_live(spark: SparkSession, checkpoint: str, start_ms: int) -> None:
    rows = ran(spark, "q2", start_ms, checkpoint, lambda rows: len(rows) > 0)
    bids = arrived("bid", start_ms, int(time.time() * 1000))
    chosen = bids[bids.auction % 123 == 0]
    got = sorted((r["auction"], r["price"]) for r in rows)
    first = chosen.head(len(got))
    assert got == sorted(zip(first.auction, first.price, strict=True))


def test_q5_live(spark: SparkSession, checkpoint: str, start_ms: int) -> None:
    rows = ran(spark, "q5", start_ms, checkpoint, lambda rows: len(rows) >= 5)
    bids = arrived("bid", start_ms, start_ms + 20_000)
    expected = set()
    for end in range(start_ms + 2_000, start_ms + 20_001, 2_000):
        counts = bids[(bids.ms < end) & (bids.ms >= end - 10_000)].auction.value_counts()
        expected |= {(a, n) for a, n in counts.items() if n == counts.max()}
    got = {(r["auction"], r["num"]) for r in rows}
    assert expected <= got


@pytest.mark.slow
def test_q8_live(spark: SparkSession, checkpoint: str, start_ms: int) -> None:
    rows = ran(spark, "q8", start_ms, checkpoint, lambda rows: len(rows) > 0)
    people = arrived("person", start_ms, start_ms + 10_000)
    sellers = set(arrived("auction", start_ms, start_ms + 10_000).seller)
    expected = {(p.id, p.name) for p in people.itertuples(index=False) if p.id in sellers}
    got = [(r["id"], r["name"]) for r in rows if r["starttime"].timestamp() * 1000 == start_ms]
    assert sorted(got) == sorted(expected)
