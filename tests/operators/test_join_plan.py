"""The input and output of join plans, and the plans that are refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import FlowError, ProtocolError
from penstock.operators.join.plan import Interval, InWindow, JoinPlan, Regular
from penstock.operators.operator import CHANGE, EpochTime
from penstock.operators.window.windows import session_window, tumbling

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", TIME),
        ("name", pa.string()),
        ("until", TIME),
    ]
)
RIGHT = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", TIME), ("price", pa.int32())])
ON = (("id", "id"),)


def plan(
    left: pa.Schema = LEFT,
    right: pa.Schema = RIGHT,
    on: Any = ON,
    how: Any = "inner",
    bound: Any = None,
    **options: Any,
) -> JoinPlan:
    return JoinPlan(left, right, on, how, bound or Regular(), **options)


def test_output_is_the_left_columns_then_the_right_ones() -> None:
    assert plan().output.names == ["id", "at", "name", "until", "at_right", "price"]
    assert plan(on=(("id", "price"),), left=LEFT.set(0, pa.field("id", pa.int32()))).output.names == [
        "id", "at", "name", "until", "id_right", "at_right", "price",
    ]  # fmt: skip
    assert plan(suffix="2").output.names[4] == "at2"
    windowed = plan(bound=InWindow(tumbling("1s"), "at", "at")).output
    assert windowed.names[-2:] == ["window_start", "window_end"]
    assert windowed.field("window_end").type == TIME


def test_a_left_join_may_have_no_right_row() -> None:
    right = RIGHT.set(2, pa.field("price", pa.int32(), nullable=False))
    assert not plan(right=right).output.field("price").nullable
    assert plan(right=right, how="left").output.field("price").nullable


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, False),
        ({"how": "left"}, True),
        ({"left": LEFT.append(pa.field(CHANGE, pa.int8()))}, True),
        ({"right": RIGHT.append(pa.field(CHANGE, pa.int8()))}, True),
        ({"how": "left", "bound": Interval("at", "at", 0, 5)}, False),
    ],
)
def test_changes_are_given_where_rows_may_be_taken_back(
    options: dict[str, Any], changes: bool
) -> None:
    output = plan(**options).output
    assert (output.names[-1] == CHANGE) == changes
    assert output.names.count(CHANGE) == changes


def test_a_plan_survives_pickling() -> None:
    for bound in (Regular(5), Interval("at", "at", 0, "until"), InWindow(tumbling(1), "at", "at")):
        made = plan(bound=bound, how="left")
        again = pickle.loads(pickle.dumps(made))
        assert again.output.equals(made.output)
        assert again.bound == bound
        assert again.codec.schema.equals(made.codec.schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": ()}, "has no key"),
        ({"on": (("id", "nope"),)}, "right side of the join has no column 'nope'"),
        ({"on": (("id", "price"),)}, "'id' of type int64 with 'price' of type int32"),
        ({"on": (("id", "id"), ("id", "id"))}, "twice in the join's key"),
        ({"how": "outer"}, "unknown join type 'outer'"),
        ({"suffix": ""}, "would have two columns 'at'"),
        ({"bound": Regular(0)}, "TTL is 0 ms"),
        ({"lateness_ms": 5}, "lateness is 5 ms"),
        ({"lateness_ms": -5, "bound": Interval("at", "at", 0, 5)}, "lateness is -5 ms"),
        ({"distinct": True}, "only a window join"),
        (
            {"bound": Interval("name", "at", 0, 5)},
            "'name' of the join's left side is of type string",
        ),
        ({"bound": Interval("at", "nope", 0, 5)}, "'nope' of the join's right side is not among"),
        ({"bound": Interval("at", "at", 0, "name")}, "upper bound is of type string"),
        (
            {"bound": Interval("at", "at", 5, 4)},
            "lower bound, 5 ms, is above its upper bound, 4 ms",
        ),
        ({"bound": Interval("at", "at", -(10**18), 4)}, "ms is too large"),
        ({"bound": InWindow(session_window("1s"), "at", "at")}, "session 1 s"),
        ({"bound": InWindow(tumbling("1s", clock="processing"), "at", "at")}, "processing time"),
        (
            {
                "bound": InWindow(tumbling("1s"), "at", "at"),
                "left": LEFT.append(pa.field("window_end", TIME)),
            },
            "would have two columns 'window_end'",
        ),
        (
            {
                "bound": Interval("at", "at", 0, 5),
                "right": RIGHT.append(pa.field(CHANGE, pa.int8())),
            },
            "right side of this window or interval join is a change stream",
        ),
        (
            {
                "bound": InWindow(tumbling("1s"), "at", "at"),
                "distinct": True,
                "left": LEFT.append(pa.field("m", pa.map_(pa.string(), pa.int64()))),
            },
            "cannot be compared: column 'm'",
        ),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FlowError, match=message) as caught:
        plan(**options)
    assert caught.value.hint


def test_rows_without_a_key_match_nothing() -> None:
    left = pa.schema([("k", pa.string()), ("a", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"k": ["x", None], "a": [1, 2]}, left)
    for how, sent in (("inner", [1, 1]), ("left", [2, 1])):
        made = plan(left, left, (("k", "k"),), how)
        for input in (0, 1):
            assert made.unfit(input, rows) is None
            (out,) = made.sender(EpochTime(0, 0)).add(input, rows)
            assert out.batch.num_rows == len(out.hashes) == sent[input]


def test_rows_that_cannot_be_compared_are_unfit() -> None:
    left = pa.schema([("k", pa.list_(pa.int64())), (CHANGE, pa.int8())])
    rows = pa.RecordBatch.from_pydict({"k": [[1], [None], None], CHANGE: [1, 1, 1]}, left)
    unfit = plan(left, left, (("k", "k"),)).unfit(0, rows)
    assert unfit is not None
    assert unfit.rows.tolist() == [False, True, False]
    plain = left.remove(1)
    unfit = plan(plain, plain, (("k", "k"),), "left").unfit(0, rows.select(["k"]))
    assert unfit is not None
    assert unfit.rows.tolist() == [False, True, False]


def test_large_output_comes_in_several_batches() -> None:
    made = plan(bound=Regular())
    left = pa.RecordBatch.from_pylist(
        [{"id": 1, "at": i, "name": str(i), "until": None} for i in range(500)], LEFT
    )
    right = pa.RecordBatch.from_pylist(
        [{"id": 1, "at": None, "price": i} for i in range(400)], RIGHT
    )
    operator = made.operator(8, "step", "fail")
    answer = operator.apply("rows", [made.tagged.pack(0, left), made.tagged.pack(1, right)])
    assert len(answer.batches) > 1
    table = pa.Table.from_batches(answer.batches)
    pairs = np.unique(
        table["name"].to_numpy(zero_copy_only=False).astype(int) * 400 + table["price"]
    )
    assert pairs.tolist() == list(range(200_000))


def test_records_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ProtocolError, match="'sums'"):
        plan().operator(8, "step", "fail").apply("sums", [])


@pytest.mark.parametrize("bound", [Regular(), InWindow(tumbling("1s"), "at", "at")])
def test_keys_of_a_batch_are_in_the_order_of_its_rows(bound: Any) -> None:
    """Hosts hold rows back by these keys while their slots move."""
    joined = plan(bound=bound)
    sides = [
        pa.RecordBatch.from_pydict(
            {f.name: pa.array(ids if f.name == "id" else [0] * len(ids)).cast(f.type) for f in side}
        )
        for ids, side in zip(([5, 6, 7], [8, 5]), joined.tagged.inputs, strict=True)
    ]
    tagged = pa.concat_batches([joined.tagged.pack(n, rows) for n, rows in enumerate(sides)])
    operator = joined.operator(8, "join", "fail")
    alone = [joined.keys(n, rows).hashes.tolist() for n, rows in enumerate(sides)]
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1], [4], [1, 0], []):
        mixed = tagged.take(pa.array(order, pa.int64()))
        (keys,) = operator.keys("rows", [mixed])
        assert keys.hashes.tolist() == [[*alone[0], *alone[1]][row] for row in order]
