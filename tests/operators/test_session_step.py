"""Aggregates in sessions, compared with a model, with mishaps on the way."""

from __future__ import annotations

import pickle
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import ProtocolError
from penstock.operators.operator import EpochTime
from penstock.operators.window import sender as session_sender
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import Window, hopping, session_window
from tests.operators.trials import Epoch, run
from tests.operators.window_model import Place, SessionModel, overlap
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
    wanted,
    when,
)


@settings(max_examples=90)
@given(
    st.sampled_from(["1ms", "3ms", "8ms"]),
    st.sampled_from([["k"], ["j"], ["k", "j"], []]),
    st.sampled_from([0, 4]),
    st.sampled_from(["close", "update"]),
    epochs_of(),
)
def test_sessions_are_what_the_model_has(
    gap: str, keys: list[str], lateness: int, emit: Any, epochs: list[Epoch]
) -> None:
    window = session_window(gap)
    plan = WindowPlan(SCHEMA, keys, AGGREGATES, window, "at", lateness, emit)
    model = SessionModel(window, keys, by_event, lateness, emit)
    outcome = follow(plan, model, epochs, keys)
    assert outcome.operator is not None
    assert len(outcome.operator.table) == len({place[:-2] for place in model.held})


@settings(max_examples=50)
@given(st.sampled_from(["3ms", "8ms"]), st.sampled_from([0, 4]), epochs_of())
def test_changes_take_back_the_sessions_that_grew(
    gap: str, lateness: int, epochs: list[Epoch]
) -> None:
    window = session_window(gap)
    plan = WindowPlan(SCHEMA, ["k"], AGGREGATES, window, "at", lateness, "changes")
    model, outcome = SessionModel(window, ["k"], by_event, lateness, "update"), run(plan, epochs)
    for number, epoch in enumerate(epochs):
        before = {place: results(held.rows) for place, held in model.held.items()}
        if epoch.watermark_ms is not None and not epoch.final:
            horizon = (epoch.watermark_ms - lateness) * 1000
            before = {place: old for place, old in before.items() if place[-1] > horizon}
        out, _ = model.run(epoch)
        new = wanted(out)
        old = Counter(
            (*place, *values)
            for place, values in before.items()
            if any(overlap(place, grown.place) for grown in out)
        )
        expected: Counter[Place] = Counter()
        expected.update({(*row, 1): count for row, count in (new - old).items()})
        expected.update({(*row, -1): count for row, count in (old - new).items()})
        assert got_changes(outcome.rows[number], ["k"]) == expected


@settings(max_examples=40)
@given(st.sampled_from(["close", "update"]), epochs_of())
def test_sessions_by_processing_time_go_by_the_epochs(emit: Any, epochs: list[Epoch]) -> None:
    window = session_window("5ms", clock="processing")
    plan = WindowPlan(SCHEMA, ["k"], AGGREGATES, window, None, 0, emit)
    outcome = follow(plan, SessionModel(window, ["k"], by_day, 0, emit), epochs, ["k"])
    assert not any(outcome.late)


def test_a_pause_of_exactly_the_gap_ends_a_session() -> None:
    plan = WindowPlan(SCHEMA, ["k"], {"n": ps.count()}, session_window("10ms"), "at")
    rows = [dict.fromkeys(SCHEMA.names) | {"k": "a", "at": when(ms)} for ms in (0, 9, 19, 28, 39)]
    sessions = run(plan, [Epoch([rows[::2], rows[1::2]]), Epoch([[]], final=True)]).all
    bounds = [(micros(r["window_start"]), micros(r["window_end"]), r["n"]) for r in sessions]
    assert sorted(bounds) == [(0, 19_000, 2), (19_000, 38_000, 2), (39_000, 49_000, 1)]


def test_many_rows_in_and_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    monkeypatch.setattr(session_sender, "_ENOUGH", 7_000)
    schema = pa.schema([("j", pa.int64()), ("at", UTC_TYPE)])
    plan = WindowPlan(schema, ["j"], {"n": ps.count()}, session_window("1s"), "at")
    for in_order in (True, False):
        operator = plan.operator(8, "step", "fail")
        users, times = rng.integers(0, 300, 40_000), rng.integers(0, 900_000_000, 40_000)
        if in_order:
            times.sort()
        for part in np.array_split(np.arange(40_000), 4):
            time = EpochTime(0, 0)
            operator.open(time)
            sender = plan.sender(time)
            sent: list[pa.RecordBatch] = []
            for some in np.array_split(part, 5):
                columns = [pa.array(users[some]), pa.array(times[some], UTC_TYPE)]
                sent += sender.add(0, pa.RecordBatch.from_arrays(columns, schema=schema))
            kind, rest = sender.finish()
            operator.apply(kind, [batch for batch, _ in [*sent, *rest]])
            assert operator.close().batches == []
            operator.table.seal()
        operator.open(EpochTime(4, 0, final=True))
        (batch,) = operator.close().batches
        order = np.lexsort((times, users))
        users, times = users[order], times[order]
        first = (np.diff(users, prepend=-1) != 0) | (np.diff(times, prepend=0) >= 1_000_000)
        counts = np.diff(np.flatnonzero(first), append=len(users))
        starts = batch.column("window_start").cast(pa.int64()).to_numpy()
        order = np.lexsort((starts, batch.column("j").to_numpy()))
        assert starts[order].tolist() == times[first].tolist()
        assert batch.column("n").to_numpy()[order].tolist() == counts.tolist()


@pytest.mark.parametrize("window", [session_window("3ms"), hopping("8ms", "4ms")])
def test_state_of_every_kind(window: Window) -> None:
    schema = pa.schema(
        [("k", pa.string()), ("at", UTC_TYPE), ("money", pa.decimal128(9, 2)), ("yes", pa.bool_())]
    )
    aggregates = {
        "sum": ps.sum("money"),
        "about": ps.approx_distinct("money"),
        "exact": ps.count_distinct("at", where="yes"),
        "last": ps.last("yes", by="at"),
    }
    plan = WindowPlan(schema, ["k"], aggregates, window, "at")
    rows = [
        {"k": "a", "at": when(ms), "money": Decimal(money), "yes": yes}
        for ms, money, yes in [(4, "1.50", True), (5, "2.00", None), (6, "1.50", False)]
    ]
    epochs = [Epoch([rows[:1]], mishap="exported"), Epoch([rows[2:], rows[1:2]], mishap="deltas")]
    out = run(plan, [*epochs, Epoch([[]], final=True, mishap="exported")]).all
    results = [tuple(row[name] for name in aggregates) for row in out]
    assert results == [(Decimal("5.00"), 2, 1, False)] * len(out)
    assert len(out) == (1 if window.kind == "session" else 2)


def test_an_epoch_without_sessions_leaves_nothing() -> None:
    plan = WindowPlan(SCHEMA, ["k"], AGGREGATES, session_window("1s"), "at")
    operator = plan.operator(8, "step", "fail")
    operator.open(EpochTime(0, 0, 5))
    sender = plan.sender(EpochTime(0, 0, 5))
    assert list(sender.add(0, pa.RecordBatch.from_pylist([], SCHEMA))) == []
    assert sender.finish() == ("partials", [])
    operator.apply("partials", [])
    assert operator.close().batches == []
    assert len(operator.table) == 0
    with pytest.raises(ProtocolError, match="does not accept"):
        operator.apply("rows", [])


def test_plans_pickle_and_say_what_they_are() -> None:
    plan = WindowPlan(SCHEMA, ["k"], AGGREGATES, session_window("1s"), "at", nulls=True)
    copy = pickle.loads(pickle.dumps(plan))
    assert isinstance(copy, WindowPlan)
    assert (copy.output, copy.codec.nulls) == (plan.output, True)
    assert plan.output.names == ["k", "window_start", "window_end", *AGGREGATES]
    assert plan.codec.schema.names == plan.key_names == ["k"]
