"""The segments of a flow that can go to burst workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.offload.plan.graph import rewritten
from penstock.offload.plan.segments import Segment, by_arrival, segments
from penstock.operators.aggregate.aggregates import AggregatePlan, count, first, last
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import session_window, tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from tests.operators.processors import SCHEMA as USERS
from tests.operators.processors import Summed
from tests.trials.event_rows import CLICKS
from tests.trials.own_processors import Histogram

BID = pa.schema([("auction", pa.int64()), ("at", pa.timestamp("us"))])
COUNTED = AggregatePlan(BID, ["auction"], {"n": count()})
JOINED = JoinPlan(BID, BID, (("auction", "auction"),), "inner", Regular())
SUMMED = ProcessPlan(USERS, ["user"], Summed())
MERGED = ProcessPlan(CLICKS, ["k"], Histogram())
SOURCE = SourcePlan(BID)


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def mapped(id: str, *reads: int) -> MapStep:
    return MapStep(id, keep, BID, BID, reads)


def keyed(id: str, *reads: int, plan: StepPlan = COUNTED) -> KeyedStep:
    return KeyedStep(id, 8, plan, reads=reads)


def flow_of(*steps: Step, sources: int = 1, **options: Any) -> FlowPlan:
    return FlowPlan((SOURCE,) * sources, steps, **options)


def summary(segment: Segment) -> tuple[list[str], str | None, str]:
    own = None if segment.keyed is None else segment.keyed.id
    return [step.id for step in segment.maps], own, segment.reason


def edges(plan: FlowPlan) -> set[str]:
    mark = {"one-to-one": "->", "exchange": "=>"}
    return {f"{e.source} {mark[e.kind]} {e.target}" for e in rewritten(plan).edges}


def test_stateless_steps_go_with_the_keyed_one_behind_them() -> None:
    plan = flow_of(mapped("a"), mapped("b"), keyed("k"), mapped("c"))
    one, two = segments(plan)
    assert summary(one) == (["a", "b"], "k", "")
    assert (one.id, one.reads, one.gives, one.by_slot) == ("k", (0,), 3, False)
    assert summary(two) == (["c"], None, "")
    assert (two.id, two.reads, two.gives, two.by_slot) == ("c", (3,), 4, False)
    assert edges(plan) == {
        "source -> router a",
        "router a -> a",
        "router a -> transient a",
        "a -> b",
        "transient a -> transient b",
        "b => router k",
        "router k -> k",
        "router k -> transient k",
        "transient b -> transient k",
        "k -> merge k",
        "transient k => merge k",
        "merge k -> router c",
        "router c -> c",
        "router c -> transient c",
        "c -> output",
        "transient c -> output",
    }


def test_keyed_steps_in_a_row_read_merged_rows() -> None:
    plan = flow_of(keyed("k"), keyed("m"))
    assert [(summary(s), s.by_slot) for s in segments(plan)] == [
        (([], "k", ""), True),
        (([], "m", ""), True),
    ]
    assert {"source => router k", "merge k => router m", "merge m -> output"} <= edges(plan)
    assert not any(
        edge.startswith("transient k") for edge in edges(plan) - {"transient k => merge k"}
    )


def test_a_join_is_offloaded_apart_from_the_steps_before_it() -> None:
    plan = flow_of(mapped("a", 0), keyed("j", 2, 1, plan=JOINED), keyed("k", 3), sources=2)
    assert list(map(summary, segments(plan))) == [
        (["a"], None, ""),
        ([], "j", ""),
        ([], "k", ""),
    ]
    assert not segments(plan)[1].by_slot
    assert edges(plan) == {
        "source-1 -> router a",
        "router a -> a",
        "router a -> transient a",
        "a => router j",
        "transient a => router j",
        "router j -> j",
        "router j -> transient j",
        "source-2 => router j",
        "j -> merge j",
        "transient j => merge j",
        "merge j => router k",
        "router k -> k",
        "router k -> transient k",
        "k -> merge k",
        "transient k => merge k",
        "merge k -> output",
    }


def test_a_processor_alone_leaves_the_flow_as_it_was() -> None:
    plan = FlowPlan((SourcePlan(USERS),), (keyed("p", plan=SUMMED),))
    assert edges(plan) == {"source => p", "p -> output"}
    assert summary(segments(plan)[0]) == ([], "p", "its state does not merge")


def test_stateless_work_before_a_processor_is_offloaded_without_it() -> None:
    steps = (MapStep("a", len, USERS, USERS), keyed("p", plan=SUMMED))
    plan = FlowPlan((SourcePlan(USERS),), steps)
    assert list(map(summary, segments(plan))) == [
        (["a"], None, ""),
        ([], "p", "its state does not merge"),
    ]
    assert {"transient a => router p", "router p -> p"} <= edges(plan)


def test_a_processor_that_merges_is_offloaded_with_the_steps_before_it() -> None:
    steps = (MapStep("a", len, CLICKS, CLICKS), keyed("p", plan=MERGED))
    plan = FlowPlan((SourcePlan(CLICKS),), steps)
    assert list(map(summary, segments(plan))) == [(["a"], "p", "")]


def test_a_stateless_step_with_two_readers_runs_once_for_both() -> None:
    plan = flow_of(mapped("a", 0), mapped("b", 1), keyed("k", 2), keyed("j", 3, 1, plan=JOINED))
    assert list(map(summary, segments(plan))) == [
        (["a"], None, ""),
        (["b"], "k", ""),
        ([], "j", ""),
    ]
    assert [segment.reads for segment in segments(plan)] == [(0,), (1,), (3, 1)]
    assert {"transient a -> router b", "transient a => router j", "merge k => router j"} <= edges(
        plan
    )
    assert "transient a -> transient b" not in edges(plan)


def test_a_join_of_a_stream_with_itself() -> None:
    plan = flow_of(mapped("a", 0), keyed("j", 1, 1, plan=JOINED))
    assert list(map(summary, segments(plan)))[1] == ([], "j", "")
    assert [str(node) for node in rewritten(plan).nodes].count("router j") == 1


def test_a_merging_step_with_two_streams_is_not_offloaded() -> None:
    plan = flow_of(keyed("k", 0, 1), sources=2)
    assert summary(segments(plan)[0]) == ([], "k", "it reads more than one stream")


def test_ordered_output_and_a_single_host_prevent_offloading() -> None:
    plan = flow_of(mapped("a"), keyed("k"))
    assert list(map(summary, segments(replace(plan, ordered=True)))) == [
        (["a"], None, ""),
        ([], "k", "its output is in the order of arrival"),
    ]
    on_one = replace(plan, one_host=True)
    assert list(map(summary, segments(on_one))) == [
        (["a"], None, "all steps run in one host"),
        ([], "k", "all steps run in one host"),
    ]
    assert edges(on_one) == {"source -> a", "a => k", "k -> output"}


def test_stateless_flows_and_flows_without_steps() -> None:
    assert list(map(summary, segments(flow_of(mapped("a"), mapped("b"))))) == [
        (["a", "b"], None, "")
    ]
    assert segments(flow_of()) == ()
    assert edges(flow_of()) == {"source -> output"}


ORDERLESS = {
    "count": COUNTED,
    "tumbling": WindowPlan(BID, ["auction"], {"n": count()}, tumbling("1s"), "at"),
    "top": TopPlan(BID, ["auction"], 2, "at"),
}
BY_ARRIVAL = {
    "first": AggregatePlan(BID, ["auction"], {"n": count(), "f": first("at")}),
    "last by": AggregatePlan(BID, ["auction"], {"l": last("at", by="at")}),
    "session": WindowPlan(BID, ["auction"], {"f": first("auction")}, session_window("1s"), "at"),
    "distinct": DistinctPlan(BID, ["auction"]),
}


@pytest.mark.parametrize("name", [*ORDERLESS, *BY_ARRIVAL])
def test_if_the_first_row_matters_keys_stay_whole(name: str) -> None:
    plan = (ORDERLESS | BY_ARRIVAL)[name]
    assert by_arrival(plan) == (name in BY_ARRIVAL)
    flow = flow_of(mapped("a"), keyed("k", plan=plan))
    *before, segment = segments(flow)
    assert segment.offloadable
    assert segment.whole_keys == (name in BY_ARRIVAL)
    # rows that leave before a stateless step have no key yet
    assert len(before) == segment.whole_keys
    assert segment.by_slot == segment.whole_keys
    assert ("transient a => router k" in edges(flow)) == segment.whole_keys
