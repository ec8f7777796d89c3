"""The load of a run: its rows, the flow they go through, and its settings.

Rows have a key, the group of the key, a number, and an event time that is up to 0.4 s behind their
arrival; all follow from the row's number alone. Windows of half a second of event time are counted
for each key; what closes is added up by group. Hosts of the first step have a pace, so that bursts
are too much for them and functions help.
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
"""The event time at which a load begins."""
RATE, BURST = 500.0, 10
"""Rows a second, and how many times as many come in a burst."""
HOST_RATE = 1500.0
"""Rows that a host takes in a second: few enough for bursts, and enough to catch up after a fault."""
EPOCH_ROWS = 3_000
"""Rows of an epoch at most: a backlog is many epochs, not a long one that each fault repeats."""
HOSTS, MOST_HOSTS = 2, 3
HOST_LOST_MS = 1_500
"""Milliseconds of silence after which a host is given up: less than a user's 5 s, so that many fit in."""
MERGE_EPOCHS = 16
"""Epochs whose files in the sink are merged: few, so that it happens often."""
CORES = 2 * MOST_HOSTS + 4
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Bursts(Shape):
    """A steady rate with bursts, which ends."""

    seconds: float
    calm_s: float
    burst_s: float
    """Seconds of a burst; each comes after a calm time, which comes first."""

    def pieces(self) -> Sequence[Piece]:
        found, left_s = list[Piece](), self.seconds
        while left_s > 0:
            for length_s, rate in ((self.calm_s, RATE), (self.burst_s, BURST * RATE)):
                found.append(Piece(min(length_s, max(left_s, 0.0)), rate))
                left_s -= length_s
        return [*found, Piece(0, 0)]


def arrivals(plan: ChaosPlan) -> Bursts:
    """When the rows of a plan arrive."""
    return Bursts(plan.seconds, plan.burst_every_s - plan.burst_s, plan.burst_s)


@dataclass(frozen=True)
class ChaosRows:
    """What rows hold. Event times begin on a day of their own, so that they are the same in each run."""

    columns = "at timestamp, g long, k long, v long"

    def numbers(self, number: Numbers, t_us: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Event times in milliseconds, keys and numbers."""
        draws = Draws(1, number)
        at_ms = FIRST_MS + t_us // 1000 - draws.below(BEHIND_MS, "behind")
        return at_ms, draws.below(KEYS, "key"), draws.below(1000, "number")

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        at_ms, k, v = self.numbers(number, t_us)
        return [pa.array(at_ms * 1000).cast(_TIME), *map(pa.array, (group_of(k), k, v))]


def group_of(key: Numbers) -> Numbers:
    return np.asarray(key % GROUPS, np.int64)


def source(spark: SparkSession, plan: ChaosPlan, bearings: Bearings) -> DataFrame | LiveSource:
    """Where the rows of a run come from: a topic, or they are made up as soon as the query has come up."""
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
    """Settings under which every process obeys the orders of the book, and upkeep comes often."""
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
