"""The load of a run: its rows, its flow, and its settings.

A row has a key, the key's group, a value, and an event time up to 0.4 s before its arrival. All are
functions of the row's number. The flow aggregates each key over windows of half a second of event time, and
adds up the closed windows by group. Hosts of the first step are slowed down, so that bursts overload them
and functions help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.live.sources.source import LiveSource
from penstock.settings import Settings
from penstock.sim.pieces import Numbers, Piece
from penstock.sim.shapes import Shape
from penstock.spark.arriving import Arriving, arriving
from penstock.testing import Fault, Pace, Uncombined
from penstock_bench.chaos.arena import Bearings
from penstock_bench.chaos.orders import CLOCK, POINTS, OrderBook, Ordered, OrderedClock
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.workloads.draws import Draws

KEYS, GROUPS, SLOTS = 60, 12, 12
TOPIC, PARTITIONS = "chaos", 2
WINDOW_MS, DELAY_MS, BEHIND_MS = 500, 500, 400
FIRST_MS = 1_700_000_000_000
"""Event time at which a load begins, in milliseconds since 1970."""
RATE, BURST = 500.0, 10
"""Rows per second, and the factor by which a burst multiplies them."""
HOST_RATE = 1500.0
"""Rows per second that a host can process: too few for bursts, enough to catch up after a fault."""
EPOCH_ROWS = 3_000
"""Most rows of an epoch, so that a backlog becomes many short epochs: a fault then repeats only one of
them."""
HOSTS, MOST_HOSTS = 2, 3
HOST_LOST_MS = 1_500
"""Milliseconds of silence after which a host is given up. Below the default of 5 s, to fit more faults in."""
MERGE_EPOCHS = 16
"""Epochs whose files in the sink are merged into one: few, so that merges happen often."""
CORES = 2 * MOST_HOSTS + 4
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Bursts(Shape):
    """A steady rate with bursts, for a limited time."""

    seconds: float
    calm_s: float
    """Seconds at the steady rate before each burst."""
    burst_s: float
    """Seconds of a burst."""

    def pieces(self) -> Sequence[Piece]:
        pieces, left_s = list[Piece](), self.seconds
        while left_s > 0:
            for length_s, rate in ((self.calm_s, RATE), (self.burst_s, BURST * RATE)):
                pieces.append(Piece(min(length_s, max(left_s, 0.0)), rate))
                left_s -= length_s
        return [*pieces, Piece(0, 0)]


def arrivals(plan: ChaosPlan) -> Bursts:
    """Arrival times of the rows of a plan."""
    return Bursts(plan.seconds, plan.burst_every_s - plan.burst_s, plan.burst_s)


@dataclass(frozen=True)
class ChaosRows:
    """The content of rows. Event times begin at a fixed date, so that they are the same in each run."""

    columns = "at timestamp, g long, k long, v long"

    def numbers(self, number: Numbers, t_us: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Event times in milliseconds, keys, and values."""
        draws = Draws(1, number)
        at_ms = FIRST_MS + t_us // 1000 - draws.below(BEHIND_MS, "behind")
        return at_ms, draws.below(KEYS, "key"), draws.below(1000, "number")

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        at_ms, k, v = self.numbers(number, t_us)
        return [pa.array(at_ms * 1000).cast(_TIME), *map(pa.array, (group_of(k), k, v))]


def group_of(key: Numbers) -> Numbers:
    return np.asarray(key % GROUPS, np.int64)


def source(spark: SparkSession, plan: ChaosPlan, bearings: Bearings) -> DataFrame | LiveSource:
    """The source of a run: a Kafka topic, or a generator that starts as soon as the query is up."""
    if bearings.servers is None:
        made = Arriving(arrivals(plan), ChaosRows(), partitions=PARTITIONS, at_most=EPOCH_ROWS)
        return arriving(spark, "chaos", made)
    return ps.kafka(
        bearings.servers,
        TOPIC,
        schema=ChaosRows.columns,
        metadata=["partition"],
        spark_options={"maxOffsetsPerTrigger": EPOCH_ROWS},
    )


def flow(rows: DataFrame | LiveSource) -> ps.Flow:
    """The flow of a run."""
    # Partitions of a topic do not advance together.
    partition = "partition" if isinstance(rows, LiveSource) else None
    return (
        ps.flow(
            rows, arrival="arrival", event_time="at", delay=DELAY_MS / 1000, partition=partition
        )
        .key_by("g", "k", slots=SLOTS)
        .window(ps.tumbling(WINDOW_MS / 1000))
        .aggregate(n=ps.count(), s=ps.sum("v"))
        .key_by("g", slots=SLOTS)
        .aggregate(windows=ps.count(), n=ps.sum("n"), s=ps.sum("s"))
        .sla("1s")
        .elastic(at_least=HOSTS, at_most=MOST_HOSTS, functions=ps.LocalFunctions(at_most=6))
    )


def settings(book: OrderBook) -> Settings:
    """Settings under which every process obeys the orders of the book, and state upkeep happens often."""
    pace = Pace(HOST_RATE)
    faults = [
        Fault(point, Ordered(book, point, pace if point == "burst.work" else None), hits=())
        for point in POINTS
    ]
    faults += [
        Fault(CLOCK, OrderedClock(book), hits=()),
        Fault("courier.sender", Uncombined(), hits=()),
        Fault("host.work", pace, {"step": "window-1"}, ()),
    ]
    return Settings(
        faults=tuple(faults), host_lost_ms=HOST_LOST_MS, compact_epochs=8, keep_epochs=16
    )
