"""The part `switch`: StreamSwitch's workloads under an SLA, live, on hosts with a fixed service rate.

    exchange   an auction on a quarter of the day's orders, from 40 s before its second opening
    sine       NEXMark's bids, counted by auction, at a sinusoidal rate
    wordcount  sentences are split and words counted, in two steps, at a sinusoidal rate

Success is the share of windows, slot by slot, in which the average latency was within the bound. Every
record's latency from arrival to sink is measured, outside of the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock as ps
from penstock.live.sources.source import LiveSource
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import shape
from penstock.state.keys.codec import KeyCodec, int_keys, slots_of
from penstock_bench import sides
from penstock_bench.live.latency import Truth
from penstock_bench.live.load import Load, Records, possible
from penstock_bench.live.query import GRACE_S
from penstock_bench.live.receipts import Columns
from penstock_bench.live.trial import SLOTS, Trial, Tried, tried
from penstock_bench.report import Goal, PartResult, Show
from penstock_bench.switch.outcome import average_hosts, hosts_by_second, since
from penstock_bench.workloads.exchange.auction import Auction
from penstock_bench.workloads.exchange.live import excerpt
from penstock_bench.workloads.exchange.orders import Traders
from penstock_bench.workloads.exchange.trace import day
from penstock_bench.workloads.nexmark.arriving_events import MixedEvents, scaled_down
from penstock_bench.workloads.word_count import SentenceRows, Split, vocabulary

GOALS = {
    "success_exchange_opening": Goal(at_least=0.9),
    "success_nexmark_sine": Goal(at_least=0.97),
    "success_wordcount": Goal(at_least=0.97),
}
CORES = 20
"""Task slots, for hosts and a courier."""
Steps = Callable[[LiveSource], ps.Flow]
"""A function from a source to a flow."""
_OPENING_S, _ONE_IN = 7_160.0, 4
_WORDS = 20_000


@dataclass(frozen=True)
class Scenario:
    """One run."""

    name: Literal["exchange", "sine", "wordcount"]
    seconds: int
    hosts: Mapping[str, int]
    """Step -> its number of hosts at the start."""
    paces: Mapping[str, float]
    """Step -> records per second that one of its hosts can process."""
    at_most: int
    """Most hosts of a step."""
    sla: SLA
    rate: str = ""
    """Shape of the load; the exchange has its own."""
    warm_up_s: int = 5
    """Seconds at the start of the load that are not measured."""
    policy: str | None = "switch"
    """Name of the policy; None for no autoscaling."""


EXCHANGE = Scenario(
    *("exchange", 100, {"process-1": 2}, {"process-1": 300.0}, 12),
    sla=SLA(1_000, 1_000),
    warm_up_s=10,
)
SINE = Scenario(
    *("sine", 125, {"aggregate-1": 3}, {"aggregate-1": 2_000.0}, 6),
    sla=SLA(100, 1_000),
    rate="sine(3000, 2000, 60s)",
)
WORD_COUNT = Scenario(
    *("wordcount", 65, {"process-1": 2, "aggregate-2": 2}),
    *({"process-1": 300.0, "aggregate-2": 2_400.0}, 5),
    sla=SLA(100, 1_000),
    rate="sine(400, 100, 60s)",
)
FULL = (EXCHANGE, SINE, WORD_COUNT)
QUICK = (
    replace(EXCHANGE, seconds=60),
    replace(SINE, rate="sine(2000, 1000, 30s)", seconds=20, hosts={"aggregate-1": 2}),
    replace(WORD_COUNT, rate="sine(300, 75, 30s)", seconds=20),
)


@dataclass(frozen=True)
class Switched:
    """The result of a run. Times are in seconds from the start of the load."""

    name: str
    success: float
    success_of_worst_slot: float
    possible: float | None
    """Upper bound of the success: that of a single queue in arrival order, served by the largest allowed
    number of hosts from the start without overhead. None if not computed."""
    hosts: float
    """Average number of hosts, over all steps."""
    p99_ms: float
    by_second: dict[str, list[float | None]]
    began: list[dict[str, Any]]
    """Treatments, with the times at which they began."""
    settings: dict[str, Any] = field(default_factory=dict)


def run(show: Show, quick: bool = False) -> PartResult:
    """Run this part, which takes six minutes, or three when quick."""
    scenarios = QUICK if quick else FULL
    with sides.bench_session(CORES) as spark:
        runs = [switched(spark, scenario, show) for scenario in scenarios]
    return PartResult({"slots": SLOTS}, {"runs": [asdict(run) for run in runs]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The success of each run, and its upper bound for the exchange."""
    success = {run["name"]: run for run in results["runs"]}
    values = {}
    for name, ratio in (
        ("exchange", "success_exchange_opening"),
        ("sine", "success_nexmark_sine"),
        ("wordcount", "success_wordcount"),
    ):
        if name in success:
            values[ratio] = success[name]["success"]
    if "exchange" in success:
        values["possible_exchange_opening"] = success["exchange"]["possible"]
    return values


def switched(spark: SparkSession, scenario: Scenario, show: Show) -> Switched:
    """Run one scenario in a session made by `bench_session`."""
    load, flow = LOADS[scenario.name](scenario)
    trial = Trial(
        load,
        lambda source: controlled(flow(source), scenario),
        scenario.seconds,
        scenario.hosts,
        scenario.paces,
    )
    outcome = _outcome(scenario, tried(spark, trial))
    at_best = "" if outcome.possible is None else f" ({outcome.possible:.2%} is possible)"
    show(
        f"{scenario.name}: success {outcome.success:.2%}{at_best}, {outcome.hosts:.2f} hosts, "
        f"p99 {outcome.p99_ms:.0f} ms"
    )
    return outcome


def controlled(flow: ps.Flow, scenario: Scenario) -> ps.Flow:
    """The flow with its SLA and its policy."""
    flow = flow.sla(scenario.sla.latency_ms / 1000, scenario.sla.window_ms / 1000)
    if scenario.policy is None:
        return flow
    return flow.elastic(scenario.policy, at_most=scenario.at_most)


def _outcome(scenario: Scenario, done: Tried) -> Switched:
    truth, seconds = done.truth, scenario.seconds
    epochs = since(done.epochs, done.began.start_ms, seconds)
    success = truth.success(scenario.sla, scenario.warm_up_s)
    row_ms = truth.row_ms[~np.isnan(truth.row_ms)]
    began = [e for e in done.journal if e.event == "began" and e.time_ms >= done.began.start_ms]
    return Switched(
        name=scenario.name,
        success=float(success.mean()),
        success_of_worst_slot=float(success.min()),
        possible=_possible(scenario, truth) if scenario.name == "exchange" else None,
        hosts=average_hosts(epochs, scenario.warm_up_s, seconds),
        p99_ms=float(np.percentile(row_ms, 99)) if len(row_ms) else float("nan"),
        by_second=truth.by_second(seconds) | {"hosts": hosts_by_second(epochs, seconds)},
        began=[
            {"at_s": round((entry.time_ms - done.began.start_ms) / 1000, 2), "text": entry.text}
            for entry in began
        ],
        settings=asdict(scenario),
    )


def _possible(scenario: Scenario, truth: Truth) -> float:
    (pace,) = scenario.paces.values()
    rate = pace * scenario.at_most
    return possible(truth, rate, scenario.sla, scenario.warm_up_s, scenario.seconds)


# -- the exchange


class TimedAuction(Auction):
    """An auction that also outputs, with each call, the number of orders of its stock so far."""

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> list[tuple[Any, ...]]:
        output = super().handle_input_rows(key, rows, timers)
        (taken, _) = self._seen.get() or (0, 0)
        return [*output, (*key, "taken", None, None, None, None, None, taken)]


def taken_orders(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Stocks, and the number of orders of each so far."""
    rows = batch.filter(pc.equal(batch.column("event"), "taken"))
    return rows.column("stock").to_numpy(), rows.column("quantity").to_numpy()


def _exchange(scenario: Scenario) -> tuple[Load, Steps]:
    for_s = scenario.seconds + GRACE_S  # rows continue to arrive while the last ones are awaited
    orders, content = excerpt(day(), _OPENING_S, for_s, _ONE_IN, Traders())

    def records(number: Numbers, t_us: Numbers) -> Records:
        stock, *_ = content.rows(number, t_us)
        return Records(np.arange(len(number)), stock.to_numpy())

    load = Load(orders, content, records, slots_of_ints, taken_orders)
    return load, _auction


def _auction(orders: LiveSource) -> ps.Flow:
    return ps.flow(orders).key_by("stock", slots=SLOTS).process(TimedAuction())


# -- NEXMark


def bids_by_auction(source: LiveSource) -> ps.Flow:
    """The number of bids per auction and the highest one, updated for each bid or for several together."""
    keyed = ps.flow(source).key_by("auction", slots=SLOTS)
    return keyed.aggregate(n=ps.count(), price=ps.max("price"))


def bids(rate: str, seed: int = 1) -> Load:
    """NEXMark's bids, arriving in this shape."""
    content = MixedEvents({"bid": {"auction": "auction", "price": "price"}}, scaled_down(seed))

    def records(number: Numbers, t_us: Numbers) -> Records:
        auction, _ = content.rows(number, t_us)
        return Records(np.arange(len(number)), auction.to_numpy())

    return Load(shape(rate), content, records, slots_of_ints, Columns("auction", "n"))


def slots_of_ints(keys: Numbers) -> Numbers:
    """Slots of integer keys."""
    return np.asarray(slots_of(int_keys(keys).hashes, SLOTS), np.int64)


# -- word count


def counted_words(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Ranks of words, and the count of each so far."""
    ranks = pc.index_in(batch.column("word"), value_set=vocabulary(_WORDS))
    return ranks.to_numpy(), batch.column("n").to_numpy()


def _word_count(scenario: Scenario) -> tuple[Load, Steps]:
    content = SentenceRows(_WORDS)
    codec = KeyCodec(pa.schema([pa.field("word", pa.string())]))

    def records(number: Numbers, t_us: Numbers) -> Records:
        return Records(np.repeat(np.arange(len(number)), content.length), content.ranks(number))

    def slots(ranks: Numbers) -> Numbers:
        words = pa.record_batch({"word": vocabulary(_WORDS)})
        hashes = codec.encode(words).hashes
        return np.asarray(slots_of(hashes, SLOTS), np.int64)[ranks]

    return Load(shape(scenario.rate), content, records, slots, counted_words), _words


def _words(sentences: LiveSource) -> ps.Flow:
    split = ps.flow(sentences).key_by("id", slots=SLOTS).process(Split())
    return split.key_by("word", slots=SLOTS).aggregate(n=ps.count())


LOADS: dict[str, Callable[[Scenario], tuple[Load, Steps]]] = {
    "exchange": _exchange,
    "sine": lambda scenario: (bids(scenario.rate), bids_by_auction),
    "wordcount": _word_count,
}
