"""The rows that a courier sends to burst workers: as many as the plan says, and always the same ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.offload.courier.router import Router
from penstock.offload.plan.segments import Segment, segments
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.operator import StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from penstock.state.keys.codec import slots_of

SLOTS = 4
SCHEMA = pa.schema(
    [("k", pa.string()), ("v", pa.int32()), ("x", pa.float64()), ("at", pa.timestamp("ms"))]
)
SUMS = AggregatePlan(SCHEMA, ["k"], {"n": ps.count()})
WINDOWS = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, tumbling("1s"), "at")
SHARES = np.array([0.0, 0.2, 0.7, 1.0])


def segment_of(plan: StepPlan, *maps: MapStep) -> Segment:
    steps: tuple[Step, ...] = (*maps, KeyedStep("step", SLOTS, plan))
    [segment] = segments(FlowPlan((SourcePlan(plan.inputs[0]),), steps))
    return segment


def router_of(plan: StepPlan, shares: Any = SHARES) -> Router:
    return Router(segment_of(plan), Offload(np.array(shares), 4, 1_000))


def many(rows: int, seed: int = 1) -> pa.RecordBatch:
    pick = random.Random(seed)
    return pa.record_batch(
        {
            "k": [f"key {pick.randrange(200)}" for _ in range(rows)],
            "v": [pick.randrange(10) for _ in range(rows)],
            "x": [pick.random() for _ in range(rows)],
            "at": [1000 * n for n in range(rows)],
        },
        SCHEMA,
    )


def bag(batches: list[pa.RecordBatch]) -> Counter[str]:
    return Counter(str(row) for batch in batches for row in batch.to_pylist())


def test_each_slot_gives_its_share() -> None:
    router, rows = router_of(SUMS), many(20_000)
    stays = router.stays(rows)
    [aside] = router.aside
    assert bag([stays, aside]) == bag([rows])
    assert (router.kept, router.carried) == (stays.num_rows, aside.num_rows)
    slots = slots_of(SUMS.codec.encode(aside).hashes, SLOTS)
    assert router.by_slot is not None
    assert np.bincount(slots, minlength=SLOTS).tolist() == router.by_slot.tolist()
    of_each = np.bincount(slots_of(SUMS.codec.encode(rows).hashes, SLOTS), minlength=SLOTS)
    assert np.allclose(router.by_slot / of_each, SHARES, atol=0.03)
    assert router.by_slot[0] == 0
    assert router.by_slot[3] == of_each[3]


def test_windows_have_one_share_for_all_slots() -> None:
    """The slot of a row depends on its key and window, and a row may be in several windows."""
    router, rows = router_of(WINDOWS), many(20_000)
    router.stays(rows)
    assert router.by_slot is None
    assert router.carried / rows.num_rows == pytest.approx(SHARES.mean(), abs=0.02)


def test_before_stateless_steps_there_is_one_share_for_all_slots() -> None:
    step = MapStep("map", lambda batch: batch, SCHEMA, SCHEMA)
    router = Router(segment_of(SUMS, step), Offload(SHARES, 4, 1_000))
    router.stays(many(20_000))
    assert router.by_slot is None
    assert router.carried / 20_000 == pytest.approx(SHARES.mean(), abs=0.02)


@pytest.mark.parametrize("window", [None, tumbling("1s")])
def test_if_the_first_row_of_a_key_counts_all_its_rows_go_one_way(window: Any) -> None:
    plan = DistinctPlan(SCHEMA, ["k"], window=window, on=None if window is None else "at")
    router, rows = router_of(plan, [0.5] * SLOTS), many(5_000)
    stays = router.stays(rows)
    kept, gone = set(stays.column("k").to_pylist()), set(router.aside[0].column("k").to_pylist())
    assert not kept & gone
    assert 70 < len(gone) < 130  # of 200
    assert (router.by_slot is None) == (window is not None)


@pytest.mark.parametrize(("share", "goes"), [(0.0, 0), (1.0, 300)])
def test_shares_of_zero_and_one(share: float, goes: int) -> None:
    for plan in (SUMS, WINDOWS):
        router = router_of(plan, [share] * SLOTS)
        assert [batch.num_rows for batch in router.through([many(300)])] == [300 - goes] * (
            not goes
        )
        assert router.carried == goes


def test_rows_without_usable_columns_are_picked_by_number() -> None:
    schema = pa.schema([("list", pa.list_(pa.int64()))])
    plan = AggregatePlan(schema, ["list"], {"n": ps.count()})
    rows = pa.record_batch({"list": [[1]] * 1000}, schema)
    whole, parts = router_of(plan, [0.3] * SLOTS), router_of(plan, [0.3] * SLOTS)
    whole.stays(rows)
    assert whole.carried == pytest.approx(300, abs=2)
    for begin in range(0, 1000, 90):
        parts.stays(rows.slice(begin, 90))
    assert parts.carried == whole.carried


values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "ä"]),
        "v": st.none() | st.integers(-5, 5),
        "x": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
        "at": st.none() | st.integers(0, 40),
    }
)


@settings(max_examples=60)
@given(st.lists(values, max_size=40), st.randoms(use_true_random=False), st.sampled_from("ab"))
def test_a_retried_task_splits_its_rows_in_the_same_way(
    rows: list[dict[str, Any]], chance: random.Random, kind: str
) -> None:
    """The choice does not depend on the order of rows or on how they are cut into batches."""
    schema = SCHEMA if kind == "a" else pa.schema([("k", pa.string())])
    rows = [{name: row[name] for name in schema.names} for row in rows]
    plan = AggregatePlan(schema, ["k"], {"n": ps.count()})
    again = list(rows)
    chance.shuffle(again)
    asides = []
    for some in (rows, again):
        router, whole = router_of(plan), pa.RecordBatch.from_pylist(some, schema)
        at = 0
        while at < len(some):
            size = chance.randint(1, 9)
            router.stays(whole.slice(at, size))
            at += size
        asides.append(bag(router.aside))
    assert asides[0] == asides[1]
