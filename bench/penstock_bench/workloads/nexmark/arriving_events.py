"""NEXMark's events as they arrive live: one stream each, or several as one stream of rows.

Events are those of the generator: an event's number decides whether it is a person, an auction or a bid.
An event happens when it arrives. Where one stream holds several, a row has the columns of all, and those
of other streams are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from penstock.sim.pieces import Floats, Numbers
from penstock.sim.shapes import Shape
from penstock.spark.arriving import Arriving, arriving
from penstock.spark.schema import spark_schema
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS, Stream
from penstock_bench.workloads.nexmark.config import MOST_EVENTS, ROUND, NexmarkConfig, places
from penstock_bench.workloads.nexmark.events import events_of


@dataclass(frozen=True)
class StreamArrivals:
    """Arrival times of one stream's events, where all events together arrive with a shape.

    >>> from penstock.sim.shapes import shape
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
        """Numbers among all events of the stream's events with these numbers."""
        return places(self.stream).events(number)


def scaled_down(seed: int) -> NexmarkConfig:
    """Settings for loads of thousands of events per second; the benchmark's are for a hundred times more.

    With the benchmark's settings, a key would be hot for seconds, and no number of hosts could share
    its rows. An auction would be open for so long that its bids are far apart. So fewer auctions are
    open at once, none is hot, and a seller is hot for only about ten auctions.
    """
    return NexmarkConfig(
        MOST_EVENTS,
        seed,
        in_flight=20,
        hot_auction_ratio=1,
        hot_seller_ratio=16,
        hot_batch=5,
        # nobody looks at what makes events long
        person_bytes=0,
        auction_bytes=0,
        bid_bytes=0,
    )


@dataclass(frozen=True)
class MixedEvents:
    """The events of some streams, in order of time: the content of a load.

    >>> rows = MixedEvents({"auction": {"auction": "id", "category": "category"},
    ...                     "bid": {"auction": "auction", "price": "price"}}, scaled_down(1))
    >>> rows.columns
    'auction bigint, category bigint, price bigint'
    >>> auction, category, price = rows.rows(np.arange(5), np.zeros(5, np.int64))
    >>> auction.to_pylist()[:3], category.is_valid().to_pylist(), price.null_count
    ([1000, 1001, 1002], [True, True, True, False, False], 3)
    """

    of: Mapping[Stream, Mapping[str, str]]
    """Stream -> names of the row's columns, and the stream's columns that they are."""
    config: NexmarkConfig

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(stream for stream in STREAMS if stream in self.of)

    @property
    def schema(self) -> pa.Schema:
        fields: dict[str, pa.Field] = {}
        for stream in self.streams:
            for name, column in self.of[stream].items():
                fields.setdefault(name, SCHEMAS[stream].field(column).with_name(name))
        return pa.schema(list(fields.values()))

    @property
    def columns(self) -> str:
        return ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in spark_schema(self.schema))

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        by_stream = events_of(self.config, places(*self.streams).events(number))
        parts = [by_stream[stream] for stream in self.streams]
        # Each stream's rows are in order: merge them into the order of all events.
        order = np.argsort(np.concatenate([self._numbers(s, number) for s in self.streams]))
        arrays = []
        for field in self.schema:
            values = [
                part.column(self.of[stream][field.name]).combine_chunks()
                if field.name in self.of[stream]
                else pa.nulls(part.num_rows, field.type)
                for stream, part in zip(self.streams, parts, strict=True)
            ]
            whole = values[0] if len(values) == 1 else pa.concat_arrays(values).take(order)
            arrays.append(whole)
        return arrays

    def _numbers(self, stream: Stream, number: Numbers) -> Numbers:
        """The numbers of the rows that belong to a stream."""
        whole, own = places(*self.streams), places(stream)
        at = number % whole.each + whole.first - own.first
        return number[(at >= 0) & (at < own.each)]


@dataclass(frozen=True)
class Having:
    """A stateless step that keeps some columns of the rows whose `column` is not null. Picklable.

    >>> rows = pa.record_batch({"auction": [1, 2], "price": [None, 9], "category": [10, None]})
    >>> Having("price", ("auction", "price"))(rows).to_pylist()
    [{'auction': 2, 'price': 9}]
    """

    column: str
    kept: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(self.kept)).filter(pc.is_valid(batch.column(self.column)))

    @property
    def __name__(self) -> str:
        return f"{', '.join(self.kept)} of rows with {self.column}"


@dataclass(frozen=True)
class LiveEvents:
    """NEXMark's events as streams (arrival, some columns) with a common start."""

    spark: SparkSession
    shape: Shape
    seed: int = 1
    partitions: int = 2
    start_ms: int | None = None
    config: NexmarkConfig | None = None
    """The generator's settings; by default those of the benchmark, with this seed."""

    def stream(self, stream: Stream, *names: str) -> DataFrame:
        # nobody looks at what makes events long
        short = NexmarkConfig(MOST_EVENTS, self.seed, person_bytes=0, auction_bytes=0, bid_bytes=0)
        arrivals = StreamArrivals(self.shape, stream)
        content = MixedEvents({stream: {name: name for name in names}}, self.config or short)
        load = Arriving(arrivals, content, self.partitions, self.start_ms)
        return arriving(self.spark, f"nexmark_{stream}", load)
