"""The text that `explain` prints."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.flows.explain import explained
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.operators.aggregate.aggregates import AggregatePlan, count
from penstock.operators.join.plan import Interval, JoinPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan

AUCTION = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us")), ("expires", pa.timestamp("us"))]
)
BID = pa.schema([("auction", pa.int64()), ("at", pa.timestamp("us")), ("price", pa.int64())])


def test_a_graph_is_printed_step_by_step() -> None:
    bound = Interval("at", "at", 0, "expires")
    joined = JoinPlan(AUCTION, BID, (("id", "auction"),), "inner", bound)
    top = TopPlan(joined.output, ["id"], 1, "price desc", until="expires")
    windows = WindowPlan(BID, ["auction"], {"n": count()}, tumbling("1s"), "at")
    plan = FlowPlan(
        (SourcePlan(AUCTION, "at", 5), SourcePlan(BID, "at", 5, "auction", 60_000)),
        (
            KeyedStep("join-1", 64, joined, reads=(0, 1)),
            KeyedStep("top-2", 64, top, reads=(2,)),
            KeyedStep("window-3", 16, windows, reads=(1,)),
        ),
    )
    lines = explained(plan, None).splitlines()
    assert lines[0].startswith("source-1    spark    id int64, at timestamp[us]")
    assert lines[3].strip() == (
        "event time is column at, up to 5 ms late, for each auction, idle after 60000 ms"
    )
    assert lines[4] == (
        "join-1      hosts    (source-1, source-2) by id, 64 slots: inner join, at from at + 0 ms "
        "to expires (state does not merge)"
    )
    assert lines[6] == (
        "top-2       hosts    by id, 64 slots: first 1 by price desc (partial states merge)"
    )
    assert lines[8] == (
        "window-3    hosts    (source-2) by auction, 16 slots: tumbling 1 s: n=count(*) "
        "(partial states merge)"
    )
    assert lines[-1] == "sla         none"


def test_a_chain_needs_no_names_of_streams() -> None:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    step = AggregatePlan(BID, ["auction"], {"n": count()})
    plan = FlowPlan(
        (SourcePlan(BID),), (MapStep("map-1", keep, BID, BID), KeyedStep("aggregate-2", 8, step))
    )
    lines = explained(plan, None).splitlines()
    assert not any(line.startswith("order") for line in lines)
    ordered = explained(replace(plan, ordered=True), None).splitlines()
    assert ordered[-2] == "order       of arrival, for each partition of the source"
    assert lines[1].startswith("map-1       couriers keep -> auction int64")
    assert lines[2] == (
        "aggregate-2 hosts    by auction, 8 slots: n=count(*) (partial states merge)"
    )


def test_streams_and_depths_follow_the_graph() -> None:
    step = AggregatePlan(BID, ["auction"], {"n": count()})
    top = TopPlan(step.output, ["auction"], 1, "n desc")
    plan = FlowPlan((SourcePlan(BID),), (KeyedStep("a", 8, step), KeyedStep("t", 8, top)))
    assert plan.graph == (("a", (0,)), ("t", ("a",)))
    assert plan.depths == {"a": 1, "t": 2}
    assert plan.reads(0) == (0,)
    assert plan.reads(1) == (1,)


def test_operators_for_functions_are_printed_if_the_flow_has_functions() -> None:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    bound = Interval("at", "at", 0, "expires")
    joined = JoinPlan(AUCTION, BID, (("id", "auction"),), "inner", bound)
    counted = AggregatePlan(joined.output, ["id"], {"n": count()})
    plan = FlowPlan(
        (SourcePlan(AUCTION, "at"), SourcePlan(BID, "at")),
        (
            MapStep("map-1", keep, BID, BID, (1,)),
            KeyedStep("join-2", 64, joined, reads=(0, 2)),
            KeyedStep("count-3", 64, counted, reads=(3,)),
            KeyedStep("distinct-4", 64, DistinctPlan(counted.output, ["id"]), reads=(4,)),
        ),
    )
    lines = explained(plan, None).splitlines()
    with_functions = explained(plan, None, LocalFunctions(at_most=40, speed=0.5)).splitlines()
    assert with_functions[: len(lines) - 1] == lines[:-1]
    assert with_functions[len(lines) - 1 :] == [
        "functions   at most 40, each at 50% of a host's speed, while hosts are not enough",
        "router      couriers source-2 -> map-1, transient map-1",
        "transient   function map-1 -> router join-2",
        "router      couriers source-1 -> join-2, transient join-2",
        "router      couriers map-1, transient map-1 -> join-2, transient join-2",
        "transient   function join-2 -> merge join-2",
        "merge       hosts    join-2, transient join-2 -> router count-3",
        "router      couriers merge join-2 -> count-3, transient count-3",
        "transient   function count-3 -> merge count-3",
        "merge       hosts    count-3, transient count-3 -> router distinct-4",
        "router      couriers merge count-3 -> distinct-4, transient distinct-4",
        "transient   function distinct-4 by whole keys -> merge distinct-4",
        "merge       hosts    distinct-4, transient distinct-4 -> output",
        lines[-1],
    ]
    whole = explained(replace(plan, ordered=True), None, LocalFunctions()).splitlines()
    assert "left whole  join-2: its output is in the order of arrival" in whole
