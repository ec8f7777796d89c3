"""Couriers' counts of sent records, compared with counting one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock import codec
from penstock.exchange.tally import REPORTED, Tally
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import EpochTime, StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.steps import KeyedStep
from penstock.state.keys.codec import slots_of
from penstock.wire.report import HotKeyCount, Seen
from tests.operators.processors import Summed

SLOTS = 3
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
ROWS = ProcessPlan(SCHEMA, ["user"], Summed())
batches = st.lists(st.lists(st.integers(0, 12), max_size=30), max_size=4)


def batch_of(users: list[str]) -> pa.RecordBatch:
    return pa.record_batch({"user": users, "n": range(len(users))}, SCHEMA)


def noted(plan: StepPlan, batches: list[pa.RecordBatch], watched: tuple[int, ...]) -> Tally:
    """The tally after all these batches were sent."""
    tally, sender = Tally(KeyedStep("step", SLOTS, plan), watched), plan.sender(EpochTime(0, 0))
    sent = [out for batch in batches for out in sender.add(0, batch)]
    for batch, hashes in [*sent, *sender.finish()[1]]:
        assert np.array_equal(tally.note(batch, hashes), slots_of(hashes, SLOTS))
    return tally


@settings(max_examples=60)
@given(batches, st.sets(st.integers(0, SLOTS - 1)))
def test_slots_and_keys_are_counted(users: list[list[int]], watched: set[int]) -> None:
    tally = noted(
        ROWS, [batch_of([f"u{n}" for n in some]) for some in users], tuple(sorted(watched))
    )
    rows = Counter(f"user=u{n}" for some in users for n in some)
    names = sorted(rows)
    keys = ROWS.codec.encode(batch_of([name.removeprefix("user=") for name in names]))
    slots = dict(zip(names, slots_of(keys.hashes, SLOTS).tolist(), strict=True))
    by_slot = [sum(rows[name] for name in names if slots[name] == s) for s in range(SLOTS)]
    assert tally.counts.tolist() == by_slot
    hot = tally.hot()
    assert all(key.count == rows[key.key] and slots[key.key] == key.slot for key in hot)
    for slot in range(SLOTS):
        keys_of_slot = [key for key in hot if key.slot == slot]
        key_counts = [key.count for key in keys_of_slot]
        assert key_counts == sorted(key_counts, reverse=True)
        assert len(keys_of_slot) <= REPORTED
        if slot not in watched:
            assert not keys_of_slot
            continue
        assert len(keys_of_slot) >= min(1, by_slot[slot])
        heavy = {name for name in names if slots[name] == slot and 4 * rows[name] > by_slot[slot]}
        assert heavy <= {key.key for key in keys_of_slot}


def test_keys_are_named_whatever_is_sent() -> None:
    all_slots = tuple(range(SLOTS))
    rows = pa.record_batch({"user": ["ann"] * 4 + ["bob"], "n": [7, 7, 7, 8, 7]}, SCHEMA)
    at = pa.array([1_500] * 5, pa.timestamp("ms"))
    timed = rows.append_column("at", at)
    cases: list[tuple[StepPlan, pa.RecordBatch, set[tuple[str, int]]]] = [
        (ROWS, rows, {("user=ann", 4), ("user=bob", 1)}),
        (ProcessPlan(SCHEMA, [], Summed()), rows, {("(the only key)", 5)}),
        (
            AggregatePlan(SCHEMA, ["user", "n"], {"m": ps.count()}),
            rows,
            {("user=ann, n=7", 1), ("user=ann, n=8", 1), ("user=bob, n=7", 1)},
        ),
        (
            AggregatePlan(SCHEMA, ["user"], {"m": ps.approx_distinct("n")}),
            rows,
            {("user=ann", 4), ("user=bob", 1)},
        ),
        (
            WindowPlan(timed.schema, ["n"], {"m": ps.count()}, tumbling("1s"), "at"),
            timed,
            {(f"n={n}, window_start=1970-01-01T00:00:01", 1) for n in (7, 8)},
        ),
        (
            JoinPlan(SCHEMA, SCHEMA, (("user", "user"),), "inner", Regular()),
            rows,
            {("user=ann", 4), ("user=bob", 1)},
        ),
    ]
    for plan, batch, wanted in cases:
        hot = noted(plan, [batch], all_slots).hot()
        assert {(key.key, key.count) for key in hot} == wanted, str(plan)


def test_long_keys_are_cut_and_still_differ() -> None:
    tally = noted(ROWS, [batch_of(["x" * 1000 + end for end in "abb"])], tuple(range(SLOTS)))
    keys = {key.key: key.count for key in tally.hot()}
    assert sorted(keys.values()) == [1, 2]
    assert all(len(key) < 220 for key in keys)


def test_the_report_to_the_driver_has_all_counts() -> None:
    """All steps are in one report, which is sent as JSON."""
    tallies = [noted(ROWS, [batch_of(["a", "b", "a"])], (0, 1, 2)), noted(ROWS, [], (0,))]
    tallies[1].step = "second"
    loads = {tally.step: tally.counts for tally in tallies}
    report = Seen(0, loads=loads, hot=tuple(key for tally in tallies for key in tally.hot()))
    seen = codec.decode(codec.encode(report), Seen)
    assert {step: counts.sum() for step, counts in seen.loads.items()} == {"step": 3, "second": 0}
    assert seen.loads["step"].dtype == np.int64
    hot = tallies[0].hot()[0]
    assert HotKeyCount("step", hot.slot, "user=a", 2, hot.hash) in seen.hot
