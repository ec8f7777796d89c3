"""Aggregates in tumbling and hopping windows, compared with a model, with mishaps on the way."""

from __future__ import annotations

import datetime as dt
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import FlowError, ProtocolError
from penstock.operators.operator import EpochTime
from penstock.operators.window.pane_combiner import PairIndex
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import Window, hopping, session_window, tumbling
from tests.operators.trials import Epoch, Row, run
from tests.operators.window_model import Model, Place
from tests.operators.window_trials import (
    AGGREGATES,
    SCHEMA,
    UTC_TYPE,
    by_day,
    by_event,
    epochs_of,
    follow,
    got_changes,
    micros,
    results,
    when,
)

windows = st.sampled_from(
    [
        tumbling("5ms"),
        tumbling("7ms", offset="3ms"),
        hopping("10ms", "2ms"),
        hopping("7ms", "3ms", offset="1ms"),
    ]
)


@settings(max_examples=90)
@given(
    windows,
    st.sampled_from([["k"], ["j"], ["k", "j"], []]),
    st.sampled_from([0, 4]),
    st.sampled_from(["close", "update"]),
    epochs_of(),
)
def test_windows_by_event_time_are_what_the_model_has(
    window: Window, keys: list[str], lateness: int, emit: Any, epochs: list[Epoch]
) -> None:
    plan = WindowPlan(SCHEMA, keys, AGGREGATES, window, "at", lateness, emit)
    model = Model(window, keys, by_event, lateness, emit)
    outcome = follow(plan, model, epochs, keys)
    assert outcome.operator is not None
    assert len(outcome.operator.table) == len(model.held)


@settings(max_examples=50)
@given(windows, st.sampled_from([["k"], []]), st.sampled_from([0, 4]), epochs_of())
def test_changes_come_to_what_updates_say(
    window: Window, keys: list[str], lateness: int, epochs: list[Epoch]
) -> None:
    plan = WindowPlan(SCHEMA, keys, AGGREGATES, window, "at", lateness, "changes")
    model, outcome = Model(window, keys, by_event, lateness, "update"), run(plan, epochs)
    standing: dict[Place, Place] = {}
    for number, epoch in enumerate(epochs):
        expected: Counter[Place] = Counter()
        for update in model.run(epoch)[0]:
            old, new = standing.get(update.place), results(update.rows)
            if old != new:
                if old is not None:
                    expected[(*update.place, *old, -1)] += 1
                expected[(*update.place, *new, 1)] += 1
                standing[update.place] = new
        assert got_changes(outcome.rows[number], keys) == expected


@settings(max_examples=40)
@given(st.sampled_from([["k"], []]), st.sampled_from(["close", "update"]), epochs_of())
def test_windows_by_processing_time_go_by_the_epochs(
    keys: list[str], emit: Any, epochs: list[Epoch]
) -> None:
    window = hopping("6ms", "4ms", clock="processing")
    plan = WindowPlan(SCHEMA, keys, AGGREGATES, window, None, 0, emit)
    outcome = follow(plan, Model(window, keys, by_day, 0, emit), epochs, keys)
    assert not any(outcome.late)


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_event_times_of_any_unit(unit: str) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp(unit))])
    plan = WindowPlan(schema, ["k"], {"n": ps.count()}, hopping(10, 5), "at")
    at = dt.datetime(1969, 12, 31, 23, 59, 58)
    rows = [{"k": "a", "at": at}, {"k": "a", "at": at + dt.timedelta(seconds=4)}]
    outcome = run(plan, [Epoch([rows], final=True)])
    ends = sorted((row["window_end"], row["n"]) for row in outcome.all)
    new_year = dt.datetime(1970, 1, 1)
    seconds = [(0, 1), (5, 2), (10, 1)]
    assert ends == [(new_year + dt.timedelta(seconds=s), n) for s, n in seconds]
    assert plan.output.field("window_end").type == pa.timestamp(unit)


def test_a_null_key_is_a_value_where_that_is_asked_for() -> None:
    values: list[Row] = [
        {"k": None, "at": when(1)},
        {"k": "a", "at": when(2)},
        {"k": None, "at": None},
    ]
    rows: list[Row] = [dict.fromkeys(SCHEMA.names) | row for row in values]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    strict = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, tumbling("5ms"), "at")
    unfit = strict.unfit(0, batch)
    assert unfit is not None
    assert unfit.rows.tolist() == [True, False, True]
    assert unfit.reason == "a null in the key (k) or a null in the event time (at)"
    assert strict.unfit(0, batch.slice(1, 1)) is None
    plan = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, tumbling("5ms"), "at", nulls=True)
    unfit = plan.unfit(0, batch)
    assert unfit is not None
    assert unfit.rows.tolist() == [False, False, True]
    assert unfit.reason == "a null in the event time (at)"
    out = run(plan, [Epoch([rows[:2]]), Epoch([rows[:1]], final=True)]).all
    assert sorted((str(row["k"]), row["n"]) for row in out) == [("None", 2), ("a", 1)]


@pytest.mark.parametrize("keys", [["j"], ["k", "j"]])
@pytest.mark.parametrize("window", [tumbling("1s"), hopping("5s", "1s")])
def test_many_rows_go_raw_or_combined_with_the_same_result(window: Window, keys: list[str]) -> None:
    rng = np.random.default_rng(7)
    for distinct in (50, 10**12):
        plan = WindowPlan(SCHEMA, keys, {"n": ps.count()}, window, "at")
        operator = plan.operator(8, "step", "fail")
        time = EpochTime(0, 0, 2_000)
        operator.open(time)
        total = lates = 0
        for _ in range(2):
            times = rng.integers(0, 10_000_000, 30_000)
            columns = [
                pa.array(rng.integers(0, 3, 30_000)).cast(pa.string()),
                pa.array(rng.integers(0, distinct, 30_000)),
                pa.array(times, UTC_TYPE),
                pa.nulls(30_000, pa.int64()),
                pa.nulls(30_000, pa.string()),
            ]
            sender = plan.sender(time)
            sent = list(sender.add(0, pa.RecordBatch.from_arrays(columns, schema=SCHEMA)))
            kind, rest = sender.finish()
            assert kind == ("rows" if distinct > 50 else "partials")
            sent += rest
            operator.apply(kind, [batch for batch, _ in sent])
            rows, _ = window.spread(times, 2_000_000)
            total += len(rows)
            lates += sum(batch.num_rows for _, batch in sender.late)
            late = window.late(times, 2_000_000)
            assert (0 if late is None else np.count_nonzero(late)) == sum(
                batch.num_rows for _, batch in sender.late
            )
        operator.open(EpochTime(1, 0, 2_000, final=True))
        out = operator.close().batches
        assert sum(sum(batch.column("n").to_pylist()) for batch in out) == total
        assert len(operator.table) == 0


def test_pairs_are_found_in_the_grid_and_beyond_it() -> None:
    rng = np.random.default_rng(3)
    for panes_in_all, users_in_all in ((3, 2_000), (3_000, 3_000)):
        index = PairIndex()
        numbers: dict[tuple[int, int], int] = {}
        for _ in range(6):
            users = rng.integers(0, users_in_all, 2_000)
            panes = np.sort(rng.integers(0, panes_in_all, 2_000))
            runs = np.flatnonzero(np.diff(panes, prepend=-1))
            entries = index.upsert(users, users_in_all, runs, panes[runs], panes_in_all)
            for pair, entry in zip(zip(users, panes, strict=True), entries, strict=True):
                assert numbers.setdefault(pair, entry) == entry
        assert index.size == len(numbers) == len(set(numbers.values()))
        stored = index.keys(np.arange(index.size)).ints
        assert stored is not None
        assert all(stored[e] == (u << 32 | p) for (u, p), e in numbers.items())
        assert (index._hashed is not None) == (panes_in_all == 3_000)


@pytest.mark.parametrize(
    ("window", "end"), [(tumbling("3ms"), 3_000), (session_window("3ms"), 4_000)]
)
def test_a_window_is_emitted_again_when_late_rows_have_changed_it(window: Window, end: int) -> None:
    plan = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, window, "at", lateness_ms=4, emit="close")
    early, later = (dict.fromkeys(SCHEMA.names) | {"k": "a", "at": when(ms)} for ms in (0, 1))
    epochs = [Epoch([[early]], 0), Epoch([[]], 5), Epoch([[later]], 6), Epoch([[]], 6)]
    outcome = run(plan, [*epochs, Epoch([[early]], 9)])
    out = [
        [(micros(row["window_start"]), micros(row["window_end"]), row["n"]) for row in rows]
        for rows in outcome.rows
    ]
    assert out == [[], [(0, 3_000, 1)], [(0, end, 2)], [], []]
    assert [len(late) for late in outcome.late] == [0, 0, 0, 0, 1]


def test_plans_pickle_and_say_what_they_are() -> None:
    plan = WindowPlan(SCHEMA, ["k"], AGGREGATES, tumbling("1s"), "at", 5, "changes", False)
    copy = pickle.loads(pickle.dumps(plan))
    assert isinstance(copy, WindowPlan)
    assert (copy.output, copy.codec.schema) == (plan.output, plan.codec.schema)
    assert plan.output.names == ["k", "window_start", "window_end", *AGGREGATES, "_change"]
    assert plan.codec.schema.names == ["k", "window_start"]
    assert (plan.key_names, plan.merges, plan.has_timers) == (["k"], True, True)


def test_windows_of_windows() -> None:
    first = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, tumbling("1s"), "at")
    second = WindowPlan(
        first.output,
        [],
        {"most": ps.max("n"), "from": ps.min("window_start")},
        tumbling("10s"),
        "window_start",
    )
    assert second.output.names == ["window_start", "window_end", "most", "from"]
    rows = [
        {"k": k, "window_start": when(s * 1000), "window_end": when(s * 1000 + 1000), "n": s}
        for k, s in [("a", 2), ("b", 3), ("a", 12)]
    ]
    out = run(second, [Epoch([rows], final=True)]).all
    assert sorted((row["most"], micros(row["from"]) // 10**6) for row in out) == [
        (3, 2),
        (12, 12),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"keys": ["window_start"]}, "name window_start is reserved"),
        ({"aggregates": {"window_end": ps.count()}}, "name window_end is reserved"),
        ({"keys": ["nix"]}, "'nix' of the key is not among"),
        ({"aggregates": {"k": ps.count()}}, "is both a key column and an aggregate"),
        ({"on": "v"}, "is of type int64"),
        ({"emit": "never"}, "unknown emit 'never'"),
        ({"lateness_ms": -1}, "lateness is -1 ms"),
        ({"schema": SCHEMA.append(pa.field("_change", pa.int8()))}, "change stream"),
    ],
)
def test_what_cannot_work_is_refused_with_advice(options: dict[str, Any], complaint: str) -> None:
    schema = options.pop("schema", SCHEMA.append(pa.field("window_start", UTC_TYPE)))
    keys, on = options.pop("keys", ["k"]), options.pop("on", "at")
    aggregates = options.pop("aggregates", {"n": ps.count()})
    with pytest.raises(FlowError, match=f"{complaint}.*What to do"):
        WindowPlan(schema, keys, aggregates, tumbling("1s"), on, **options)


def test_a_kind_of_channel_that_is_unknown_is_refused() -> None:
    plan = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, tumbling("1s"), "at")
    with pytest.raises(ProtocolError, match="does not accept"):
        plan.operator(8, "step", "fail").apply("letters", [])
