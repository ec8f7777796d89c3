"""Flows with windows, sessions, joins and tops, each with its model and matching rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.operators.aggregate import aggregates
from penstock.operators.aggregate.aggregates import Aggregate, AggregatePlan
from penstock.operators.join.plan import Interval, InWindow, JoinPlan, Regular
from penstock.operators.operator import OnError, StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.tagged import INPUT
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.trials.event_rows import (
    CLICKS,
    LOTS,
    OFFERS,
    PAIRS,
    ROUTED,
    Make,
    bid_on,
    click,
    counted,
    lot,
    nameless,
    offer,
    pair,
    routed,
    sums,
    timeless,
    totals,
    with_click,
    with_offer,
)
from tests.trials.event_twins import ClockTwin, FlowTwin, Rows, SessionTwin, StepTwin, WindowTwin
from tests.trials.join_twins import ChangingJoinTwin, IntervalTwin, RecentTwin, WindowJoinTwin
from tests.trials.ledger import SLOTS
from tests.trials.own_aggregates import OWN, owned
from tests.trials.own_processors import (
    BatchSums,
    BatchSumsTwin,
    CompiledSums,
    Histogram,
    HistogramTwin,
)
from tests.trials.plain_rows import Row
from tests.trials.top_twins import DistinctTwin, GroupTwin, TopTwin, TopUntilTwin

DELAY_MS = 1_500


@dataclass(frozen=True)
class Case:
    """A flow on trial."""

    flow: FlowPlan
    steps: Callable[[], dict[str, StepTwin]]
    makers: tuple[Make, ...]
    """Functions that make the rows of each source."""
    by_clock: bool = False
    """Whether the output depends on when rows arrive."""

    @property
    def closes(self) -> bool:
        """Whether the flow emits rows at the end of its input."""
        return not self.by_clock and any(step.has_timers for step in self.flow.keyed)

    def twin(self) -> FlowTwin:
        return FlowTwin(self.flow, self.steps())

    def rows(self, pick: random.Random, rows: int, now_ms: int, behind: Sequence[int]) -> Rows:
        """Rows that are up to one of these numbers of milliseconds older than now."""
        made = []
        for _ in range(rows):
            source = pick.randrange(len(self.makers))
            row = self.makers[source](pick, now_ms - pick.randrange(pick.choice(behind) + 1))
            made.append(row | {INPUT: source} if len(self.makers) > 1 else row)
        return made


def _case(
    steps: Sequence[KeyedStep],
    twins: Callable[[], Sequence[StepTwin]],
    sources: Sequence[tuple[pa.Schema, Make]] = ((CLICKS, click),),
    by_clock: bool = False,
    on_error: OnError = "fail",
) -> Case:
    plans = [
        SourcePlan(schema, "ts", DELAY_MS, partition="p", idle_ms=2_500)
        if "p" in schema.names
        else SourcePlan(schema, "ts" if "ts" in schema.names else None, DELAY_MS)
        for schema, _ in sources
    ]
    steps = [replace(step, on_error=on_error) for step in steps]
    flow = FlowPlan(tuple(plans), tuple(steps), on_error)
    ids = [step.id for step in steps]
    makers = tuple(make for _, make in sources)
    return Case(flow, lambda: dict(zip(ids, twins(), strict=True)), makers, by_clock)


def _step(id: str, plan: StepPlan, *reads: int) -> KeyedStep:
    return KeyedStep(id, SLOTS, plan, reads=reads)


SUMS: dict[str, Aggregate] = {
    "n": aggregates.count(),
    "total": aggregates.sum("v"),
    "high": aggregates.max("v"),
    "kinds": aggregates.count_distinct("v"),
}


def _windows(*args: Any, **options: Any) -> StepPlan:
    return WindowPlan(CLICKS, ["k"], *args, **options)


def _join(how: Any, bound: Any) -> StepPlan:
    return JoinPlan(CLICKS, OFFERS, (("k", "k"),), how, bound)


BOTH = ((CLICKS, click), (OFFERS, offer))
_LAST = TopPlan(CLICKS, ["k"], 1, "ts desc")
_COUNTS = _windows({"n": aggregates.count()}, hopping("4s", "1s"), "ts", lateness_ms=2_000)
_BIDS = JoinPlan(LOTS, CLICKS, (("k", "k"),), "inner", Interval("ts", "ts", 0, "expires"))
_LOT = ("k", "g", "ts", "expires")
_BEST = TopPlan(_BIDS.output, _LOT, 1, "v desc", until="expires")
_TOTALS: dict[str, Aggregate] = {"n": aggregates.count(), "total": aggregates.sum("v")}
_OWN = JoinPlan(_LAST.output, CLICKS, (("k", "k"),), "left", Regular())
_ENRICHED = JoinPlan(_LAST.output, OFFERS, (("k", "k"),), "left", Regular())


def _last(row: Row) -> int:
    return -int(row["ts"])


def _most(row: Row) -> int:
    return -int(row["n"])


def _highest(row: Row) -> int:
    return -int(row["v"])


def _expires(row: Row) -> int:
    return int(row["expires"])


def _time(row: Row) -> int:
    return int(row["ts"])


CASES: dict[str, Case] = {
    "tumbling": _case(
        [_step("tumbling", _windows(SUMS, tumbling("4s"), "ts", lateness_ms=2_000, nulls=True))],
        lambda: [WindowTwin(4_000, 4_000, sums, lateness=2_000)],
        ((CLICKS, nameless(click)),),
    ),
    "partitions": _case(
        [_step("partitions", WindowPlan(ROUTED, ["k"], SUMS, tumbling("3s"), "ts"))],
        lambda: [WindowTwin(3_000, 3_000, sums)],
        ((ROUTED, routed),),
        by_clock=True,
    ),
    "by-clock": _case(
        [_step("by-clock", _windows(SUMS, hopping("3s", "2s", clock="processing"), None))],
        lambda: [ClockTwin(3_000, 2_000, sums)],
        by_clock=True,
    ),
    "hopping": _case(
        [_step("hopping", _windows(SUMS, hopping("3s", "2s"), "ts"))],
        lambda: [WindowTwin(3_000, 2_000, sums)],
    ),
    "timeless": _case(
        [_step("timeless", _windows(SUMS, session_window("1s"), "ts"))],
        lambda: [SessionTwin(1_000, sums)],
        ((CLICKS, timeless),),
        on_error="dead_letter",
    ),
    "changing": _case(
        [_step("changing", _windows(SUMS, hopping("6s", "2s"), "ts", 1_000, "changes"))],
        lambda: [WindowTwin(6_000, 2_000, sums, lateness=1_000, emit="changes")],
    ),
    "session": _case(
        [_step("session", _windows(SUMS, session_window("1500ms"), "ts"))],
        lambda: [SessionTwin(1_500, sums)],
    ),
    "late-session": _case(
        [_step("late-session", _windows(SUMS, session_window("1s"), "ts", lateness_ms=3_000))],
        lambda: [SessionTwin(1_000, sums, lateness=3_000)],
    ),
    "interval": _case(
        [_step("interval", _join("left", Interval("ts", "ts", -1_000, 2_000)), 0, 1)],
        lambda: [
            IntervalTwin(
                lambda row: _time(row) - 1_000, lambda row: _time(row) + 2_000, with_offer, True
            )
        ],
        ((CLICKS, nameless(click)), (OFFERS, nameless(offer))),
    ),
    "window-join": _case(
        [_step("window-join", _join("left", InWindow(hopping("4s", "2s"), "ts", "ts")), 0, 1)],
        lambda: [WindowJoinTwin(4_000, 2_000, with_offer)],
        BOTH,
    ),
    "recent": _case(
        [_step("recent", _join("inner", Regular(ttl_ms=2_500)), 0, 1)],
        lambda: [RecentTwin(2_500, with_offer)],
        BOTH,
        by_clock=True,
    ),
    "recent-left": _case(
        [_step("recent-left", _join("left", Regular(ttl_ms=2_500)), 0, 1)],
        lambda: [RecentTwin(2_500, with_offer, outer=True)],
        BOTH,
        by_clock=True,
    ),
    "itself": _case(
        [
            _step(
                "itself",
                JoinPlan(
                    CLICKS, CLICKS, (("k", "k"),), "left", InWindow(tumbling("2s"), "ts", "ts")
                ),
                0,
                0,
            )
        ],
        lambda: [WindowJoinTwin(2_000, 2_000, with_click)],
    ),
    "own": _case(
        [_step("last", _LAST, 0), _step("own", _OWN, 1, 0)],
        lambda: [TopTwin(1, _last), ChangingJoinTwin(_OWN.output.names[:-1], with_click)],
    ),
    "enriched": _case(
        [_step("last", _LAST, 0), _step("enriched", _ENRICHED, 2, 1)],
        lambda: [
            TopTwin(1, _last),
            ChangingJoinTwin(_ENRICHED.output.names[:-1], with_offer),
        ],
        BOTH,
    ),
    "top": _case(
        [_step("top", TopPlan(CLICKS, ["k"], 2, "v desc", rank="place"))],
        lambda: [TopTwin(2, _highest, "place")],
    ),
    "groups": _case(
        [
            _step("last", _LAST),
            _step("groups", AggregatePlan(_LAST.output, ["g"], _TOTALS, emit="changes")),
        ],
        lambda: [TopTwin(1, _last), GroupTwin("g", totals)],
    ),
    "kinds": _case(
        [_step("kinds", AggregatePlan(CLICKS, ["k"], SUMS, emit="changes"))],
        lambda: [GroupTwin("k", sums)],
    ),
    "own-tumbling": _case(
        [_step("own-tumbling", _windows(OWN, tumbling("4s"), "ts", lateness_ms=2_000))],
        lambda: [WindowTwin(4_000, 4_000, owned, lateness=2_000)],
    ),
    "own-session": _case(
        [_step("own-session", _windows(OWN, session_window("1s"), "ts", lateness_ms=3_000))],
        lambda: [SessionTwin(1_000, owned, lateness=3_000)],
    ),
    "own-changes": _case(
        [_step("own-changes", AggregatePlan(CLICKS, ["k"], OWN, emit="changes"))],
        lambda: [GroupTwin("k", owned)],
    ),
    "histogram": _case(
        [_step("histogram", ProcessPlan(CLICKS, ["k"], Histogram()))],
        lambda: [HistogramTwin()],
        by_clock=True,
    ),
    "batch-sums": _case(
        [_step("batch-sums", ProcessPlan(CLICKS, ["k"], BatchSums()))],
        lambda: [BatchSumsTwin()],
        by_clock=True,
    ),
    "compiled-sums": _case(
        [_step("compiled-sums", ProcessPlan(CLICKS, ["k"], CompiledSums()))],
        lambda: [BatchSumsTwin()],
        by_clock=True,
    ),
    "distinct": _case(
        [_step("distinct", DistinctPlan(PAIRS, ["k", "v"], ttl_ms=2_500))],
        lambda: [DistinctTwin(2_500)],
        ((PAIRS, pair),),
        by_clock=True,
    ),
    "hot": _case(
        [
            _step("counts", _COUNTS),
            _step(
                "hot",
                TopPlan(_COUNTS.output, ["window_end"], 1, "n desc", ties=True, until="window_end"),
            ),
        ],
        lambda: [
            WindowTwin(4_000, 1_000, counted, lateness=2_000),
            TopUntilTwin(1, _most, ("window_end",), "window_end", ties=True),
        ],
    ),
    "auctions": _case(
        [
            _step("bids", _BIDS, 0, 1),
            _step("best", _BEST),
            _step("auctions", AggregatePlan(_BEST.output, ["g"], _TOTALS, emit="changes")),
        ],
        lambda: [
            IntervalTwin(_time, _expires, bid_on, False),
            TopUntilTwin(1, _highest, _LOT, "expires"),
            GroupTwin("g", totals),
        ],
        ((LOTS, lot), (CLICKS, click)),
    ),
}
