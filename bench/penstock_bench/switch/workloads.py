"""The workloads of live runs: the rows that arrive, their slots, and the flow on them.

sums      the sum of numbers by key. There are so many keys that few rows of an epoch share one
exchange  orders go through the exchange's auction
q2        NEXMark's q2 as a keyed step, on bids without hot auctions
q5        NEXMark's q5, on bids half of which are on a hot auction
words     sentences are split into words, words are counted, in two steps
bids      AutoFlow's skewed sum of bid prices by id
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pyspark.sql import SparkSession

import penstock as ps
from penstock.live.sources.rate import ArrivalTimes
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock.spark.arriving import Arriving, arriving
from penstock.state.keys.codec import int_keys, slots_of
from penstock_bench.live.latency import SlotsOf
from penstock_bench.switch.scenarios import LiveScenario, Workload
from penstock_bench.workloads import skewed_sum, word_count
from penstock_bench.workloads.exchange import live as exchange
from penstock_bench.workloads.exchange.orders import Traders
from penstock_bench.workloads.exchange.trace import day, slots_of_stocks
from penstock_bench.workloads.nexmark.arriving_events import (
    LiveEvents,
    MixedEvents,
    StreamArrivals,
    scaled_down,
)
from penstock_bench.workloads.nexmark.catalog import QUERIES
from penstock_bench.workloads.nexmark.config import MOST_EVENTS, NexmarkConfig
from penstock_bench.workloads.shaped import KeyedRows

SLOTS = 64
_KEYS, _IDS = 200_000, 100_000


@dataclass(frozen=True)
class Source:
    """The rows that arrive, and the flow that processes them."""

    arrivals: ArrivalTimes
    slots_of: SlotsOf
    flow: ps.Flow
    counts_lead_in: bool = True
    """Whether the flow gets the rows before the load, which have no time of arrival."""


def source(spark: SparkSession, scenario: LiveScenario) -> Source:
    """The source of a scenario."""
    return _SOURCES[scenario.workload](spark, scenario)


def _sums(spark: SparkSession, scenario: LiveScenario) -> Source:
    arrivals = shape(scenario.load)
    keyed = KeyedRows(_KEYS, skew(scenario.skew), SLOTS, scenario.seed)
    rows = arriving(spark, "shaped", Arriving(arrivals, keyed))
    flow = ps.flow(rows, arrival="arrival").key_by("k", slots=SLOTS).aggregate(s=ps.sum("v"))
    return Source(arrivals, _slots_of_keys(keyed), flow)


def _bids(spark: SparkSession, scenario: LiveScenario) -> Source:
    arrivals = shape(scenario.load)
    ids = KeyedRows(_IDS, skew(scenario.skew), SLOTS, scenario.seed)
    rows = arriving(spark, "bids", Arriving(arrivals, skewed_sum.BidRows(ids)))
    return Source(arrivals, _slots_of_keys(ids), skewed_sum.flow(rows, SLOTS))


def _exchange(spark: SparkSession, scenario: LiveScenario) -> Source:
    orders, content = exchange.excerpt(
        day(scenario.seed),
        scenario.start_s,
        scenario.seconds,
        scenario.one_in,
        Traders(),
        scenario.speed,
    )
    rows = arriving(spark, "exchange", Arriving(orders, content))
    slots = slots_of_stocks(SLOTS).astype(np.int64)
    return Source(
        orders,
        lambda number, t_us: slots[content.stock[number % len(content.stock)]],
        exchange.flow(rows, SLOTS),
    )


def _q2(spark: SparkSession, scenario: LiveScenario) -> Source:
    return _nexmark(spark, scenario, "q2", scaled_down(scenario.seed))


def _q5(spark: SparkSession, scenario: LiveScenario) -> Source:
    config = NexmarkConfig(MOST_EVENTS, scenario.seed, person_bytes=0, auction_bytes=0, bid_bytes=0)
    return _nexmark(spark, scenario, "q5", config, counts_lead_in=False)


def _nexmark(
    spark: SparkSession,
    scenario: LiveScenario,
    query: str,
    config: NexmarkConfig,
    counts_lead_in: bool = True,
) -> Source:
    live = QUERIES[query].live
    assert live is not None
    rate = shape(scenario.load)
    events = LiveEvents(spark, rate, scenario.seed, config=config)
    bids = MixedEvents({"bid": {"auction": "auction"}}, config)

    def slots(number: Numbers, t_us: Numbers) -> Numbers:
        (auction,) = bids.rows(number, t_us)
        return np.asarray(slots_of(int_keys(auction.to_numpy()).hashes, SLOTS), np.int64)

    return Source(StreamArrivals(rate, "bid"), slots, live(events, SLOTS), counts_lead_in)


def _words(spark: SparkSession, scenario: LiveScenario) -> Source:
    """A sentence counts for its own slot: all its words are done with its epoch."""
    arrivals = shape(scenario.load)
    rows = word_count.sentences(spark, arrivals, word_count.SentenceRows(seed=scenario.seed))
    return Source(
        arrivals,
        lambda number, t_us: np.asarray(slots_of(int_keys(number).hashes, SLOTS), np.int64),
        word_count.flow(rows, SLOTS),
    )


def _slots_of_keys(keyed: KeyedRows) -> SlotsOf:
    return lambda number, t_us: keyed.slots_of(keyed.chosen_keys(number, t_us))


_SOURCES: dict[Workload, Callable[[SparkSession, LiveScenario], Source]] = {
    "sums": _sums,
    "exchange": _exchange,
    "q2": _q2,
    "q5": _q5,
    "words": _words,
    "bids": _bids,
}
