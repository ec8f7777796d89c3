"""NEXMark's q2, q5 and q8 live: events arrive at a rate that swings, or at that of any shape.

>>> query = flow("q5", spark, "sine(30000, 10000, 90s)").start(            # doctest: +SKIP
...     ps.to("console"), checkpoint="ck", hosts=3)

Events are those of the generator, person, auction or bid by their number; an event happens when it
arrives. The queries are those of the catalogue, with two differences: latency is measured from a
row's arrival, which has to come along, and q2, which has no state, is a keyed step here, as it is
where StreamSwitch scales it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.sim.pieces import Floats, Numbers
from penstock.sim.shapes import Shape, shape
from penstock.spark.arriving import Arriving, arriving
from penstock.spark.schema import spark_schema
from penstock_bench.workloads.nexmark.columns import SCHEMAS, Stream
from penstock_bench.workloads.nexmark.config import MOST_EVENTS, ROUND, NexmarkConfig
from penstock_bench.workloads.nexmark.events import events_of
from penstock_bench.workloads.nexmark.queries.q8 import START
from penstock_bench.workloads.nexmark.rounds import places


@dataclass(frozen=True)
class StreamArrivals:
    """When the events of one stream arrive, if all events together arrive as a shape says.

    >>> auctions = StreamArrivals(shape("steady(50)"), "auction")
    >>> auctions.cumulative([20, 40, 80, 1000, 1040]).tolist(), auctions.events(np.arange(4)).tolist()
    ([0, 1, 3, 3, 4], [1, 2, 3, 51])
    """

    shape: Shape
    stream: Stream

    def rate_at(self, t_s: npt.ArrayLike) -> Floats:
        return self.shape.rate_at(t_s) * (places(self.stream).each / ROUND)

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        first, each = places(self.stream)
        rounds, rest = np.divmod(self.shape.cumulative(t_ms), ROUND)
        return np.asarray(rounds * each + np.clip(rest - first, 0, each), np.int64)

    def arrival_us(self, number: Numbers) -> Numbers:
        return self.shape.arrival_us(self.events(number))

    def events(self, number: Numbers) -> Numbers:
        """Which events the stream's rows of these numbers are."""
        return places(self.stream).events(number)


@dataclass(frozen=True)
class EventRows:
    """Some columns of the events of a stream."""

    arrivals: StreamArrivals
    names: tuple[str, ...]
    config: NexmarkConfig

    @property
    def columns(self) -> str:
        schema = pa.schema([SCHEMAS[self.arrivals.stream].field(name) for name in self.names])
        return ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in spark_schema(schema))

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        events = events_of(self.config, self.arrivals.events(number))[self.arrivals.stream]
        return [events.column(name).combine_chunks() for name in self.names]


@dataclass(frozen=True)
class LiveEvents:
    """NEXMark's events as streams (arrival, some columns) that begin together."""

    spark: SparkSession
    shape: Shape
    seed: int = 1
    partitions: int = 2
    start_ms: int | None = None

    def stream(self, stream: Stream, *names: str) -> DataFrame:
        # nobody looks at what makes events long
        config = NexmarkConfig(MOST_EVENTS, self.seed, person_bytes=0, auction_bytes=0, bid_bytes=0)
        arrivals = StreamArrivals(self.shape, stream)
        content = EventRows(arrivals, names, config)
        load = Arriving(arrivals, content, self.partitions, self.start_ms)
        return arriving(self.spark, f"nexmark_{stream}", load)


class Chosen(ps.KeyedProcessor):
    """Bids on every 123rd auction."""

    output_schema = "auction long, price long"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        auctions = batch.column("auction").to_numpy()
        return batch.select(["auction", "price"]).filter(pa.array(auctions % 123 == 0))


def _q2(events: LiveEvents, slots: int) -> ps.Flow:
    bids = ps.flow(events.stream("bid", "auction", "price"), arrival="arrival")
    return bids.key_by("auction", slots=slots).process(Chosen())


def _q5(events: LiveEvents, slots: int) -> ps.Flow:
    # rows of a lead-in have no time
    bids = events.stream("bid", "auction").where("arrival IS NOT NULL")
    counts = (
        ps.flow(bids, arrival="arrival", event_time="arrival")
        .key_by("auction", slots=slots)
        .window(ps.hopping("10s", "2s"))
        .aggregate(num=ps.count())
    )
    hottest = counts.key_by("window_start", "window_end", slots=slots).top(
        1, by="num desc", ties=True, until="window_end"
    )
    return hottest.select("auction", "num")


def _q8(events: LiveEvents, slots: int) -> ps.Flow:
    start = START.replace("date_time", "arrival")
    person = events.stream("person", "id", "name").where("arrival IS NOT NULL")
    auction = events.stream("auction", "seller").where("arrival IS NOT NULL")
    persons = person.selectExpr("arrival", "id", "name", f"{start} AS starttime")
    sellers = auction.selectExpr("arrival", "seller AS id", f"{start} AS opened")
    # rows of a side that differ in their arrival alone are equal, so it goes no further
    came = ps.flow(persons, arrival="arrival", event_time="starttime").select(
        "id", "name", "starttime"
    )
    sold = ps.flow(sellers, arrival="arrival", event_time="opened").select("id", "opened")
    joined = came.join(sold, on="id", window=ps.tumbling("10s"), distinct=True, slots=slots)
    return joined.select("id", "name", "starttime")


_QUERIES: dict[str, Callable[[LiveEvents, int], ps.Flow]] = {"q2": _q2, "q5": _q5, "q8": _q8}


def flow(
    name: str,
    spark: SparkSession,
    rate: str | Shape,
    slots: int = 64,
    seed: int = 1,
    partitions: int = 2,
    start_ms: int | None = None,
) -> ps.Flow:
    """The query of this name (q2, q5, q8) on events that arrive so many a second, all streams
    together. Without a `start_ms` they begin when the query has come up; see `arriving`."""
    if name not in _QUERIES:
        raise SettingError(f"there is no live query {name!r}", hint="take q2, q5 or q8")
    return _QUERIES[name](LiveEvents(spark, shape(rate), seed, partitions, start_ms), slots)
