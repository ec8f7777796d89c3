"""Rows of joins that burst workers have packed into bags: the output is that of plain rows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.operators.join.plan import Interval, InWindow, JoinPlan, Regular
from penstock.operators.operator import CHANGE, PARTIALS, EpochTime, Sender
from penstock.operators.window.windows import hopping

AT = pa.timestamp("ms", "UTC")
LEFT = pa.schema([("k", pa.string()), ("at", AT), ("v", pa.int64())])
RIGHT = pa.schema([("at", AT), ("id", pa.string()), ("w", pa.list_(pa.int64()))])
ON = (("k", "id"),)
PLANS = {
    "all": JoinPlan(LEFT, RIGHT, ON, "inner", Regular()),
    "left": JoinPlan(LEFT, RIGHT, ON, "left", Regular(50)),
    "interval": JoinPlan(LEFT, RIGHT, ON, "left", Interval("at", "at", -4, 6)),
    "window": JoinPlan(LEFT, RIGHT, ON, "inner", InWindow(hopping("10ms", "5ms"), "at", "at")),
}
sides = st.tuples(
    st.integers(0, 1), st.sampled_from(["a", "b", None]), st.integers(0, 40), st.integers(0, 3)
)
epochs = st.lists(
    st.lists(st.lists(sides, max_size=8), min_size=1, max_size=3), min_size=1, max_size=4
)


def batch(side: int, rows: list[tuple[int, Any, int, int]]) -> pa.RecordBatch:
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    made = []
    for _, key, ms, v in rows:
        at = start + dt.timedelta(milliseconds=ms)
        made.append({"k": key, "id": key, "at": at, "v": v, "w": [v]})
    return pa.RecordBatch.from_pylist(made, (LEFT, RIGHT)[side])


def outcome(plan: JoinPlan, story: list[list[list[Any]]], bags: bool) -> tuple[Any, Any]:
    """The net output of all epochs, and the late rows."""
    operator = plan.operator(4, "join", "fail")
    net: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for number, channels in enumerate(story):
        time = EpochTime(number, 10 * number, 10 * number - 5, number == len(story) - 1)
        answers = [operator.open(time)]
        for channel, rows in enumerate(channels):
            packed = bags and channel % 2 == 0
            sender: Sender = plan.partial_sender(time) if packed else plan.sender(time)
            sent = []
            for side in (0, 1):
                some = [row for row in rows if row[0] == side]
                sent += [out.batch for out in sender.add(side, batch(side, some))]
            kind, rest = sender.finish()
            assert (kind == PARTIALS) == packed
            for out in rest:
                sent.append(out.batch)
                assert plan.sent_keys(out.batch).hashes.tolist() == out.hashes.tolist()
            if packed and len(sent) > 1:
                sent = [pa.concat_batches(sent)]  # as live couriers do
            operator.keys(kind, sent)
            answers.append(operator.apply(kind, sent))
            late.update(str(row) for _, some in sender.late for row in some.to_pylist())
        answers.append(operator.close())
        for row in (row for answer in answers for b in answer.batches for row in b.to_pylist()):
            net[str({k: v for k, v in row.items() if k != CHANGE})] += row.get(CHANGE, 1)
        operator.table.seal()
    return {row: n for row, n in net.items() if n}, late


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=30)
@given(epochs)
def test_bags_make_no_difference(name: str, story: list[list[list[Any]]]) -> None:
    assert outcome(PLANS[name], story, bags=True) == outcome(PLANS[name], story, bags=False)


def test_a_bag_is_one_record_of_its_key_and_side() -> None:
    plan = PLANS["all"]
    sender = plan.partial_sender(EpochTime(0, 0))
    rows = [(0, "ab"[n % 2], n, n) for n in range(20)] + [(0, None, 1, 1)]
    assert list(sender.add(0, batch(0, rows))) == []
    assert list(sender.add(1, batch(1, rows[:3]))) == []
    _, sent = sender.finish()
    assert [[len(bag) for bag in out.batch["__bag"].to_pylist()] for out in sent] == [
        [10, 10],
        [2, 1],
    ]
    assert not plan.merges, "two stages do not help a hot key"


def test_bags_with_other_columns_are_refused() -> None:
    plan = PLANS["all"]
    wrong = pa.record_batch(
        [plan.codec.to_storage(plan.keys(0, batch(0, [(0, "a", 1, 1)]))), pa.array([[{"x": 1}]])],
        names=plan.bags.names,
    )
    operator = plan.operator(4, "join", "fail")
    operator.open(EpochTime(0, 0))
    with pytest.raises(ProtocolError, match="nested rows"):
        operator.apply(PARTIALS, [wrong])
    assert len(operator.table) == 0
