"""Distinct rows, compared with a plain implementation."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError, ProtocolError
from penstock.operators.operator import EpochTime
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from tests.operators.trials import MISHAPS, Epoch, Row, bag, epochs_of, run

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)


rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c"]),
        "v": st.integers(0, 3),
        "at": st.integers(-2000, 6000).map(at),
    }
)


@settings(max_examples=50)
@given(st.sampled_from([["k"], ["k", "v"], ["v"], []]), epochs_of(rows))
def test_the_first_row_of_each_key_passes_and_no_other(
    keys: list[str], epochs: list[Epoch]
) -> None:
    outcome = run(DistinctPlan(SCHEMA, keys), epochs)
    seen: dict[tuple[Any, ...], Row] = {}
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        wanted = []
        for row in (row for channel in epoch.channels for row in channel):
            key = tuple(row[name] for name in keys)
            if key not in seen:
                seen[key] = row
                wanted.append(row)
        assert got == wanted


@settings(max_examples=60)
@given(epochs_of(rows, most=6), st.lists(st.integers(0, 8), min_size=6, max_size=6))
def test_keys_are_forgotten_after_their_time(epochs: list[Epoch], steps: list[int]) -> None:
    for number, epoch in enumerate(epochs):
        epoch.now_ms = sum(steps[: number + 1])
    outcome = run(DistinctPlan(SCHEMA, ["k"], ttl_ms=10), epochs)
    came: dict[str, int] = {}
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        wanted = []
        for row in (row for channel in epoch.channels for row in channel):
            if row["k"] not in came or came[row["k"]] + 10 <= epoch.now_ms:
                came[row["k"]] = epoch.now_ms
                wanted.append(row)
        assert got == wanted


@settings(max_examples=50)
@given(
    epochs_of(rows),
    st.lists(st.none() | st.integers(0, 3000), min_size=4, max_size=4),
    st.sampled_from([(tumbling("1s"), 1000), (hopping("3s", "2s"), 2000)]),
    st.sampled_from([0, 700]),
)
def test_windows_give_a_key_once_each(
    epochs: list[Epoch], steps: list[int | None], window: Any, lateness: int
) -> None:
    shape, every = window
    size = shape.size_us // 1000
    watermark = None
    for epoch, step in zip(epochs, steps, strict=False):
        watermark = watermark if step is None else (watermark or 0) + step
        epoch.watermark_ms = watermark
    epochs[-1].final = True
    plan = DistinctPlan(SCHEMA, ["k"], window=shape, on="at", lateness_ms=lateness)
    outcome = run(plan, epochs)
    seen: set[Any] = set()
    for epoch, got, late in zip(epochs, outcome.rows, outcome.late, strict=True):
        wanted, too_late = 0, []
        for row in (row for channel in epoch.channels for row in channel):
            ms = round((row["at"] - at(0)).total_seconds() * 1000)
            starts = [s for s in range(-6000, 8000, every) if s <= ms < s + size]
            if epoch.watermark_ms is not None:
                starts = [s for s in starts if s + size + lateness > epoch.watermark_ms]
            if not starts:
                too_late.append(row)
            wanted += len({(row["k"], s) for s in starts} - seen)
            seen |= {(row["k"], s) for s in starts}
        assert bag(late) == bag(too_late)
        assert len(got) == wanted
        for row in got:
            assert row["window_start"] <= row["at"] < row["window_end"]
            assert row["window_end"] - row["window_start"] == dt.timedelta(milliseconds=size)


def test_state_is_forgotten_when_windows_close() -> None:
    plan = DistinctPlan(SCHEMA, ["k"], window=tumbling("1s"), on="at")
    first = Epoch([[{"k": "a", "v": 1, "at": at(500)}, {"k": "b", "v": 1, "at": at(1500)}]])
    outcome = run(plan, [first, Epoch([[]], watermark_ms=1000)])
    assert outcome.operator is not None
    assert len(outcome.operator.table) == 1
    assert plan.has_timers


def test_windows_by_processing_time() -> None:
    plan = DistinctPlan(SCHEMA, ["k"], window=tumbling("1s", clock="processing"))
    row = {"k": "a", "v": 1, "at": None}
    epochs = [Epoch([[row]], now_ms=now) for now in (100, 900, 1000, 1100)]
    outcome = run(plan, epochs)
    assert [len(rows) for rows in outcome.rows] == [1, 0, 1, 0]
    assert plan.output.field("window_end").type == pa.timestamp("us", "UTC")
    assert outcome.operator is not None
    assert len(outcome.operator.table) == 1


def test_null_keys_are_unfit_or_keys() -> None:
    batch = pa.RecordBatch.from_pylist([{"k": None, "v": 1, "at": at(0)}, {"k": "a"}], SCHEMA)
    windowed = DistinctPlan(SCHEMA, ["k"], window=tumbling("1s"), on="at")
    unfit = windowed.unfit(0, batch)
    assert unfit is not None
    assert unfit.rows.tolist() == [True, True]
    assert unfit.reason == "a null in the key (k) or a null in the event time (at)"
    assert DistinctPlan(SCHEMA, ["v"]).unfit(0, batch.slice(0, 1)) is None
    rows = [{"k": None, "v": 1, "at": None}, {"k": None, "v": 2, "at": None}]
    outcome = run(DistinctPlan(SCHEMA, ["k"], nulls=True), [Epoch([rows]), Epoch([rows])])
    assert outcome.rows == [rows[:1], []]


def test_a_sender_gives_up_where_keys_do_not_repeat() -> None:
    schema = pa.schema([("k", pa.int64())])
    plan = DistinctPlan(schema, ["k"])
    rng = np.random.default_rng(0)
    for numbers, sent in ((2**60, 90_000), (100, 100)):
        sender = plan.sender(EpochTime(0, 0))
        total = 0
        for _ in range(3):
            batch = pa.RecordBatch.from_arrays([pa.array(rng.integers(0, numbers, 30_000))], ["k"])
            total += sum(batch.num_rows for batch, _ in sender.add(0, batch))
        assert total == sent
        assert sender.finish() == ("rows", ())


def test_plans_pickle_and_refuse_what_cannot_work() -> None:
    plan = DistinctPlan(SCHEMA, ["k"], window=tumbling("1s"), on="at", lateness_ms=5, nulls=True)
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.output, copy.window, copy.lateness_ms) == (plan.output, plan.window, 5)
    assert copy.codec.schema == plan.codec.schema
    assert not DistinctPlan(SCHEMA, ["k"]).has_timers
    refused: list[tuple[dict[str, Any], str]] = [
        ({"key_names": ["x"]}, "'x' of distinct is not among the columns"),
        ({"ttl_ms": 0}, "cannot use a ttl"),
        ({"ttl_ms": 5, "window": tumbling("1s"), "on": "at"}, "cannot use a ttl"),
        ({"window": session_window("1s"), "on": "at"}, "session"),
        ({"window": tumbling("1s")}, "needs a column of event times"),
        ({"window": tumbling("1s"), "on": "v"}, "type int64"),
        ({"window": tumbling("1s", clock="processing"), "on": "at"}, "no event time"),
        ({"input_schema": SCHEMA.append(pa.field("_change", pa.int8()))}, "change stream"),
        (
            {
                "input_schema": SCHEMA.append(pa.field("window_end", pa.int8())),
                "window": tumbling("1s"),
                "on": "at",
            },
            "reserved for windows",
        ),
    ]
    for changes, complaint in refused:
        with pytest.raises(FlowError, match=complaint):
            DistinctPlan(**{"input_schema": SCHEMA, "key_names": ["k"], **changes})
    with pytest.raises(ProtocolError, match="does not accept"):
        plan.operator(8, "step", "fail").apply("partials", [])


def test_all_mishaps_are_tried() -> None:
    rows = [{"k": "a", "v": n, "at": at(n)} for n in range(3)]
    for mishap in MISHAPS:
        outcome = run(DistinctPlan(SCHEMA, ["v"]), [Epoch([rows]), Epoch([rows], mishap=mishap)])
        assert outcome.rows == [rows, []]
