"""A step in parts, compared with the plain operator: the same rows, dead letters, deltas and places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.host.parted import PartedOperator
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import Interval, InWindow, JoinPlan, Regular
from penstock.operators.operator import OnError, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from tests.host.parted_trials import SLOTS, run
from tests.operators.join_trials import OneStream, in_one_stream, tagged_rows, timed_epochs
from tests.operators.trials import Epoch, Row
from tests.operators.window_trials import SCHEMA, epochs_of, when
from tests.runtime.switches import forced_switches


class Remembering(KeyedProcessor):
    """A processor that is called by key, with state, both kinds of timers, and a row that it refuses."""

    output_schema = "k string, j long, seen long, said string"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.get_value_state("seen", "n long")
        self.values = handle.get_list_state("values", "v long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            if row.v == 3:
                raise ValueError("three")
            (seen,) = self.seen.get() or (0,)
            self.seen.update((seen + 1,))
            self.values.append_value((row.v,))
            self.handle.register_timer(timers.processing_time_ms + 5)
            self.handle.register_timer(row.j * 7, "event")
            yield (*key, seen, row.s)

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield (*key, expired.expiry_ms, expired.kind)
        if expired.kind == "event":
            self.seen.clear()


class Counting(KeyedProcessor):
    """A processor that is called by batch."""

    output_schema = "k string, j long, before long"

    def init(self, handle: Any) -> None:
        self.count = handle.get_value_state("count", "n long")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        before = self.count.get_many(batch)
        counts = [row["n"] or 0 for row in before.to_pylist()]
        output = {"k": batch["k"], "j": batch["j"], "before": pa.array(counts, pa.int64())}
        latest: dict[Any, int] = {}
        for at, key in enumerate(zip(*(batch[n].to_pylist() for n in "kj"), strict=True)):
            latest[key] = latest.get(key, counts[at]) + 1
            counts[at] = latest[key]
        self.count.update_many(batch, pa.record_batch({"n": pa.array(counts, pa.int64())}))
        return pa.record_batch(output)


PLAIN = {"n": ps.count(), "total": ps.sum("v"), "low": ps.min("s")}
SUMS = PLAIN | {"values": ps.count_distinct("v")}
KEY = ["k", "j"]
SINGLE: dict[str, StepPlan] = {
    "aggregate": AggregatePlan(SCHEMA, KEY, SUMS),
    "changes": AggregatePlan(SCHEMA, ["k"], SUMS, emit="changes"),
    "tumbling": WindowPlan(SCHEMA, KEY, SUMS, tumbling("10ms"), "at"),
    "hopping, late": WindowPlan(SCHEMA, KEY, SUMS, hopping("10ms", "5ms"), "at", lateness_ms=6),
    "session": WindowPlan(SCHEMA, KEY, PLAIN, session_window("3ms"), "at", emit="changes"),
    "top": TopPlan(SCHEMA, ["k"], 2, "v desc", rank="rank"),
    "distinct": DistinctPlan(SCHEMA, KEY, ttl_ms=5),
    "by key": ProcessPlan(SCHEMA, KEY, Remembering()),
    "by batch": ProcessPlan(SCHEMA, KEY, Counting()),
}
SHAPES = st.tuples(
    st.sampled_from([1, 2, 5]), st.sampled_from([1, 3]), st.sampled_from([1, 7, 1000])
)


def same(plan: StepPlan, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool) -> None:
    """Check that the plain operator and the one in parts have the same output."""
    on_error: OnError = "dead_letter" if isinstance(plan, ProcessPlan) else "fail"
    step: StepPlan = plan.plan if isinstance(plan, OneStream) else plan

    def plain() -> Any:
        return step.operator(SLOTS, "step", on_error, ordered)

    def in_parts() -> Any:
        parts, workers, chunk_rows = shape
        return PartedOperator(plain, parts, workers=workers, chunk_rows=chunk_rows)

    wanted, got = (run(make, plan, epochs, ordered) for make in (plain, in_parts))
    for number, (one, other) in enumerate(zip(wanted, got, strict=True)):
        assert one.rows == other.rows, number
        assert one.bag == other.bag, number
        assert one.dead == other.dead, number
        assert one.delta == other.delta, number
        assert (one.entries, one.due) == (other.entries, other.due), number


@pytest.mark.parametrize("name", SINGLE)
@given(epochs_of(), SHAPES, st.booleans())
@settings(max_examples=4)
def test_same_as_the_plain_operator(
    name: str, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool
) -> None:
    same(SINGLE[name], epochs, shape, ordered)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
@given(epochs_of(), SHAPES, st.booleans())
@settings(max_examples=60)
def test_same_as_the_plain_operator_often(
    name: str, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool
) -> None:
    same(SINGLE[name], epochs, shape, ordered)


LEFT = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms")), ("a", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms")), ("b", pa.string())])
ON = (("k", "k"),)
JOINS = {
    "inner": JoinPlan(LEFT, RIGHT, ON, "inner", Regular()),
    "left": JoinPlan(LEFT, RIGHT, ON, "left", Regular(ttl_ms=6)),
    "interval": JoinPlan(LEFT, RIGHT, ON, "left", Interval("at", "at", -3, 3)),
    "window": JoinPlan(LEFT, RIGHT, ON, "left", InWindow(tumbling("5ms"), "at", "at")),
}
TIMES = st.integers(0, 25).map(when).map(lambda time: time.replace(tzinfo=None))
SIDES = tagged_rows(
    st.fixed_dictionaries(
        {"k": st.none() | st.integers(0, 5), "at": TIMES, "a": st.integers(0, 2)}
    ),
    st.fixed_dictionaries({"k": st.integers(0, 5), "at": TIMES, "b": st.sampled_from("xy")}),
)


def same_join(name: str, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool) -> None:
    stream = OneStream(JOINS[name])
    same(stream, in_one_stream(stream, epochs), shape, ordered)


@pytest.mark.parametrize("name", JOINS)
@given(timed_epochs(SIDES, st.integers(0, 8)), SHAPES, st.booleans())
@settings(max_examples=4)
def test_joins_as_the_plain_operator(
    name: str, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool
) -> None:
    same_join(name, epochs, shape, ordered)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
@given(timed_epochs(SIDES, st.integers(0, 8)), SHAPES, st.booleans())
@settings(max_examples=60)
def test_joins_as_the_plain_operator_often(
    name: str, epochs: list[Epoch], shape: tuple[int, int, int], ordered: bool
) -> None:
    same_join(name, epochs, shape, ordered)


@pytest.mark.parametrize("name", SINGLE)
def test_with_threads_switched_all_the_time(name: str) -> None:
    """Channels are large enough to keep all workers busy, and threads switch all the time."""
    random = np.random.default_rng(11)
    epochs = [
        Epoch([random_rows(random, number * 8, 60) for _ in range(2)], number * 8 - 6, number * 8)
        for number in range(2)
    ]
    with forced_switches():
        same(SINGLE[name], epochs, (7, 4, 5), ordered=True)


def random_rows(random: np.random.Generator, ms: int, count: int) -> list[Row]:
    """Return random rows of many keys, with the schema of `window_trials`."""
    return [
        {
            "k": f"key {random.integers(0, 40)}",
            "j": int(random.integers(0, 2)),
            "at": when(ms + int(random.integers(-6, 10))),
            "v": int(random.integers(-3, 4)),
            "s": str(random.integers(0, 3)),
        }
        for _ in range(count)
    ]
