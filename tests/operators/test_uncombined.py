"""Couriers that combine nothing: hosts get one record per row, and their output is the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.operator import PARTIALS, ROWS, EpochTime, StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.testing import Uncombined
from tests.operators.test_two_stage import MANY, PLANS, epochs_of
from tests.operators.trials import Epoch, Stages, bag, run

COUNTS = {"n": ps.count(), "total": ps.sum("v")}


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=10)
@given(epochs_of(), st.sampled_from(["none", "some"]), st.integers(1, 5))
def test_the_results_are_the_same(name: str, epochs: list[Epoch], stages: Stages, cut: int) -> None:
    """That holds even if some channels bring combined states."""
    usual = run(PLANS[name], epochs, cut)
    plain = run(PLANS[name], epochs, cut, two_stage=stages, combines=False)
    assert list(map(bag, plain.rows)) == list(map(bag, usual.rows))
    assert list(map(bag, plain.late)) == list(map(bag, usual.late))


def windowed(window: Any) -> StepPlan:
    return WindowPlan(MANY, ["k"], COUNTS, window, "at")


def sent(
    plan: StepPlan, batch: pa.RecordBatch, two_stage: bool = False, combines: bool = True
) -> tuple[str, int]:
    """The kind of a channel, and its number of records."""
    sender = plan.sender(EpochTime(0, 0), two_stage)
    if not combines:
        Uncombined()({"sender": sender})
    outgoing = list(sender.add(0, batch))
    kind, rest = sender.finish()
    return kind, sum(out.batch.num_rows for out in [*outgoing, *rest])


@pytest.mark.parametrize(
    ("plan", "kind", "each"),
    [
        (AggregatePlan(MANY, ["k"], COUNTS), ROWS, 1),
        (windowed(tumbling("1s")), ROWS, 1),
        (windowed(hopping("6s", "2s")), ROWS, 3),
        (windowed(session_window("1s")), PARTIALS, 1),
        (DistinctPlan(MANY, ["k"]), ROWS, 1),
        (DistinctPlan(MANY, ["k"], window=tumbling("1s"), on="at"), ROWS, 1),
        (TopPlan(MANY, ["k"], 2, "v"), ROWS, 1),
    ],
)
def test_each_row_is_a_record_in_each_of_its_windows(plan: StepPlan, kind: str, each: int) -> None:
    columns = {"k": [1, 2] * 500, "v": range(1000), "at": [12_345] * 1000}
    rows = pa.RecordBatch.from_pydict(columns, MANY)
    assert sent(plan, rows, combines=False) == (kind, each * 1000)
    assert sent(plan, rows, two_stage=True, combines=False) == (kind, each * 1000)
    combined = each * 2 * (2 if isinstance(plan, TopPlan) else 1)
    assert sent(plan, rows)[1] == combined, "the same rows, combined"
    assert sent(plan, rows, two_stage=True)[1] == combined, "the same rows, combined in two stages"
