"""Two stages: couriers always combine the rows of each key, and the output is the same."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.operators.aggregate import combiner
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import PARTIALS, ROWS, EpochTime, StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top import plan as sender
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.order import MOST
from penstock.operators.top.plan import TopPlan
from penstock.operators.window import row_windows
from penstock.operators.window import sender as session_sender
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from tests.operators.processors import SCHEMA as USERS
from tests.operators.processors import Summed
from tests.operators.trials import MISHAPS, Epoch, Stages, bag, run
from tests.trials.own_aggregates import OWN

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("money", pa.decimal128(10, 2)),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
CHANGES = SCHEMA.append(pa.field("_change", pa.int8()))
AGGREGATES = {
    "n": ps.count(),
    "total": ps.sum("v"),
    "mean": ps.avg("x"),
    "paid": ps.sum("money"),
    "first": ps.first("v"),
    "last": ps.last("x", by="at"),
    "least": ps.min("k"),
    "values": ps.count_distinct("v"),
}
ABOUT = {"n": ps.count(), "kinds": ps.approx_distinct("v", precision=4)}


def windowed(window: Any, **options: Any) -> StepPlan:
    aggregates = {name: a for name, a in AGGREGATES.items() if name != "first"} | ABOUT
    return WindowPlan(SCHEMA, ["k"], aggregates, window, "at", **options)


PLANS: dict[str, StepPlan] = {
    "aggregate": AggregatePlan(SCHEMA, ["k"], AGGREGATES),
    "with a sketch": AggregatePlan(SCHEMA, ["k", "v"], AGGREGATES | ABOUT),
    "global": AggregatePlan(SCHEMA, [], ABOUT),
    "of changes": AggregatePlan(CHANGES, ["k"], {"n": ps.count(), "total": ps.sum("v")}),
    "own": AggregatePlan(SCHEMA, ["k"], {"n": ps.count(), **OWN}),
    "own in windows": WindowPlan(SCHEMA, ["k"], OWN, hopping("9ms", "4ms"), "at", emit="changes"),
    "own in sessions": WindowPlan(SCHEMA, ["k"], OWN, session_window("4ms"), "at"),
    "tumbling": windowed(tumbling("5ms")),
    "hopping": windowed(hopping("9ms", "4ms"), emit="changes"),
    "session": windowed(session_window("4ms")),
    "distinct": DistinctPlan(SCHEMA, ["k", "v"]),
    "distinct in windows": DistinctPlan(SCHEMA, ["k"], window=hopping("9ms", "4ms"), on="at"),
    "top": TopPlan(SCHEMA, ["k"], 2, "v desc, at", rank="place"),
    "top with ties": TopPlan(SCHEMA, ["k"], 2, "x", ties=True, emit="changes"),
    "top until": TopPlan(SCHEMA, ["k"], 1, "v", until="at", lateness_ms=3),
    "top in windows": TopPlan(SCHEMA, ["k"], 2, "x desc", window=tumbling("5ms"), on="at"),
    "large top": TopPlan(SCHEMA, ["k"], MOST + 1, "v"),
}


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from("abc"),
        "v": st.integers(-3, 3),
        "x": st.sampled_from([None, -1.5, 0.0, 0.25, math.inf]),
        "money": st.sampled_from([None, Decimal("0.10"), Decimal("7.25")]),
        "at": st.integers(0, 30).map(at),
        "_change": st.just(1),
    }
)


@st.composite
def epochs_of(draw: st.DrawFn) -> list[Epoch]:
    """Epochs with a rising watermark; the last one ends the input."""
    epochs, watermark = [], None
    for left in reversed(range(draw(st.integers(1, 4)))):
        channels = draw(st.lists(st.lists(rows, max_size=9), min_size=1, max_size=3))
        mishap = draw(st.sampled_from(MISHAPS))
        epochs.append(Epoch(channels, watermark, 0, left == 0, mishap))
        watermark = (watermark or 0) + draw(st.integers(0, 8))
    return epochs


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    """Make senders give up combining, and combiners full, after a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combiner, "_LOOK_FROM", 2)
        patch.setattr(combiner, "_LOOK_TO", 4)
        patch.setattr(combiner, "_MOSTLY_NEW", 0.4)
        patch.setattr(combiner, "_MOST_BYTES", 150)
        patch.setattr(row_windows, "_JUDGED_FROM", 4)
        patch.setattr(row_windows, "_MOSTLY_KEPT", 0.4)
        patch.setattr(sender, "_ENOUGH", 6)
        patch.setattr(session_sender, "_ENOUGH", 6)
        yield


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=10)
@given(epochs_of(), st.sampled_from(["some", "all"]), st.integers(1, 5))
def test_the_results_are_the_same(name: str, epochs: list[Epoch], stages: Stages, cut: int) -> None:
    usual = run(PLANS[name], epochs, cut)
    two = run(PLANS[name], epochs, cut, two_stage=stages)
    assert list(map(bag, two.rows)) == list(map(bag, usual.rows))
    assert list(map(bag, two.late)) == list(map(bag, usual.late))


def sent(
    plan: StepPlan, batches: list[pa.RecordBatch], two_stage: bool
) -> tuple[str, Counter[Any]]:
    """The kind of the channel, and the number of records of each key in it."""
    made = plan.sender(EpochTime(0, 0), two_stage)
    outgoing = [out for batch in batches for out in made.add(0, batch)]
    kind, rest = made.finish()
    counts: Counter[Any] = Counter()
    for batch, hashes in [*outgoing, *rest]:
        keys = plan.sent_keys(batch)
        assert np.array_equal(keys.hashes, hashes)
        counts.update(key[0] for key in plan.codec.as_tuples(keys))
    return kind, counts


MANY = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])


def one_hot_key() -> list[pa.RecordBatch]:
    """Batches in which every third row has key 7, and all other keys occur once."""
    batches = []
    for start in (0, 30_000):
        number = np.arange(start, start + 30_000)
        keys = np.where(number % 3 == 0, 7, number + 1000)
        columns = [pa.array(keys), pa.array(number % 2), pa.array(number % 100, pa.timestamp("ms"))]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=MANY))
    return batches


@pytest.mark.parametrize(
    ("plan", "kind", "records"),
    [
        (AggregatePlan(MANY, ["k"], {"n": ps.count()}), PARTIALS, 1),
        (AggregatePlan(MANY, ["k"], ABOUT), PARTIALS, 1),
        (WindowPlan(MANY, ["k"], ABOUT, tumbling("1s"), "at"), PARTIALS, 1),
        (WindowPlan(MANY, ["k"], ABOUT, session_window("1s"), "at"), PARTIALS, 1),
        (AggregatePlan(MANY, ["k"], OWN), PARTIALS, 1),
        (DistinctPlan(MANY, ["k"]), ROWS, 1),
        (TopPlan(MANY, ["k"], 4, "v, at"), ROWS, 4),
        (TopPlan(MANY, ["k"], 300, "v, at"), ROWS, 300),
        # and the row with the greatest `until`, which determines when the key ends
        (TopPlan(MANY, ["k"], 4, "v, at", until="at"), ROWS, 4 + 1),
    ],
)
def test_a_hot_key_costs_its_host_one_record_of_a_task(
    plan: StepPlan, kind: str, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sender, session_sender):
        monkeypatch.setattr(module, "_ENOUGH", 1 << 18)
    monkeypatch.setattr(combiner, "_MOST_BYTES", 1 << 26)
    sent_kind, counts = sent(plan, one_hot_key(), two_stage=True)
    assert sent_kind == kind
    assert counts.pop(7) == records
    assert len(counts) == 40_000
    assert set(counts.values()) == {1}
    assert plan.merges


def test_a_full_combiner_is_emptied() -> None:
    """A sketch is large, so the state of a courier must not grow with the number of keys."""
    plan = AggregatePlan(MANY, ["k"], {"kinds": ps.approx_distinct("v", precision=4)})
    most = combiner._MOST_BYTES // 16
    made = plan.sender(EpochTime(0, 0), two_stage=True)
    for batch in one_hot_key():
        sizes = [out.batch.num_rows for out in made.add(0, batch.slice(0, 100))]
        assert sizes
        assert max(sizes) < 2 * most


def test_two_stage_has_no_effect_on_steps_that_do_not_merge() -> None:
    users = pa.RecordBatch.from_pylist([{"user": "a", "n": n} for n in range(9)], USERS)
    join = JoinPlan(USERS, USERS, (("user", "user"),), "inner", Regular())
    for plan in (ProcessPlan(USERS, ["user"], Summed()), join):
        assert not plan.merges
        assert sent(plan, [users], True) == sent(plan, [users], False) == (ROWS, {"a": 9})
