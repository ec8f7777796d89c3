"""The first n rows of each key, compared with a plain sort of all rows."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError, ProtocolError
from penstock.operators.operator import EpochTime
from penstock.operators.top.order import coarse_codes, parse_order
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.state.table.table import ColumnTable
from tests.operators.trials import Epoch, Row, bag, epochs_of, net, run

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("price", pa.float64()),
        ("at", pa.timestamp("ms")),
        ("name", pa.string()),
        ("tags", pa.list_(pa.int64())),
    ]
)


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)


rows = st.fixed_dictionaries(
    {
        "k": st.integers(0, 2),
        "price": st.sampled_from([None, -1.5, 0.0, 2.0, 3.0, 4.0, math.nan]),
        "at": st.integers(-3, 6).map(lambda s: at(500 * s)),
        "name": st.sampled_from([None, "", "a", "abcdefgh1", "abcdefgh2", "é"]),
        "tags": st.sampled_from([None, [], [1], [2]]),
    }
)
ORDERS = ["price desc, at", "at", "at desc", ["name desc"], "name, price", ["tags", "at desc"]]


def rank_of(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value + 0.0)
    if isinstance(value, list):
        return (1, [rank_of(part) for part in value])
    return (1, value.encode() if isinstance(value, str) else value)


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.value == other.value


def by_of(order: Any, row: Row) -> list[Any]:
    columns = parse_order(order, SCHEMA)
    return [
        _Reversed(rank_of(row[c])) if descending else rank_of(row[c]) for c, descending in columns
    ]


def first(rows: list[Row], order: Any, n: int, ties: bool, rank: str | None) -> list[Row]:
    """The model: sort all rows and take the first n."""
    rest = [name for name in SCHEMA.names if name not in [c for c, _ in parse_order(order, SCHEMA)]]
    ordered = sorted(rows, key=lambda r: [*by_of(order, r), *(rank_of(r[c]) for c in rest)])
    kept = []
    for place, row in enumerate(ordered):
        equal = next(i for i, r in enumerate(ordered) if by_of(order, r) == by_of(order, row))
        place = equal if ties else place
        if place < n:
            kept.append(row | ({rank: place + 1} if rank else {}))
    return kept


def listed(rows: list[Row]) -> list[Row]:
    """Rows with values that a `Counter` can hash."""
    return [{c: tuple(v) if isinstance(v, list) else v for c, v in row.items()} for row in rows]


def by_key(rows: list[Row], keys: list[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


@settings(max_examples=60)
@given(
    st.sampled_from([["k"], []]),
    st.integers(1, 4),
    st.sampled_from(ORDERS),
    st.booleans(),
    st.sampled_from([None, "place"]),
    epochs_of(rows),
)
def test_changes_come_to_the_first_rows_of_all_that_came(
    keys: list[str], n: int, order: Any, ties: bool, rank: str | None, epochs: list[Epoch]
) -> None:
    outcome = run(TopPlan(SCHEMA, keys, n, order, ties=ties, rank=rank), epochs)
    came: list[Row] = []
    emitted: list[Row] = []
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        came += [row for channel in epoch.channels for row in channel]
        emitted += listed(got)
        groups = by_key(came, keys).values()
        wanted = [row for group in groups for row in first(group, order, n, ties, rank)]
        assert net(emitted) == bag(listed(wanted))


@settings(max_examples=60)
@given(st.sampled_from(ORDERS), epochs_of(rows))
def test_updates_give_the_row_that_took_a_place(order: Any, epochs: list[Epoch]) -> None:
    outcome = run(TopPlan(SCHEMA, ["k"], 1, order, emit="update"), epochs)
    held: dict[Any, Row] = {}
    came: list[Row] = []
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        came += [row for channel in epoch.channels for row in channel]
        assert len({row["k"] for row in got}) == len(got)
        held |= {row["k"]: row for row in got}
        wanted = [first(group, order, 1, False, None)[0] for group in by_key(came, ["k"]).values()]
        assert bag(listed(list(held.values()))) == bag(listed(wanted))


watermarks = st.lists(st.none() | st.integers(0, 1500), min_size=4, max_size=4)


def set_watermarks(epochs: list[Epoch], steps: list[int | None]) -> None:
    watermark = None
    for epoch, step in zip(epochs, steps, strict=False):
        watermark = watermark if step is None else (watermark or 0) + step
        epoch.watermark_ms = watermark
    epochs[-1].final = True


@settings(max_examples=50)
@given(
    epochs_of(rows),
    watermarks,
    st.sampled_from([(tumbling("1s"), 1000), (hopping("1s", "400ms"), 400)]),
    st.sampled_from([0, 300]),
    st.booleans(),
    st.sampled_from(["close", "changes"]),
)
def test_windows_give_their_first_rows(
    epochs: list[Epoch], steps: list[Any], shape: Any, lateness: int, ties: bool, emit: Any
) -> None:
    window, every = shape
    set_watermarks(epochs, steps)
    plan = TopPlan(
        SCHEMA, ["k"], 2, "price desc", ties=ties, rank="place", window=window, on="at",
        lateness_ms=lateness, emit=emit,
    )  # fmt: skip
    outcome = run(plan, epochs)
    came: dict[tuple[Any, int], list[Row]] = {}
    emitted: list[Row] = []
    for epoch, got, late in zip(epochs, outcome.rows, outcome.late, strict=True):
        too_late = 0
        limit = -(10**9) if epoch.watermark_ms is None else epoch.watermark_ms - lateness
        for row in (row for channel in epoch.channels for row in channel):
            ms = round((row["at"] - at(0)).total_seconds() * 1000)
            starts = [s for s in range(-8000, 8000, every) if s <= ms < s + 1000]
            starts = [s for s in starts if s + 1000 > limit]
            too_late += not starts
            for start in starts:
                came.setdefault((row["k"], start), []).append(row)
        assert len(late) == too_late
        emitted += listed(got)
        wanted = [
            row | {"window_start": at(start), "window_end": at(start + 1000)}
            for (_, start), group in came.items()
            for row in first(group, "price desc", 2, ties, "place")
            if emit == "changes" or start + 1000 <= limit or epoch.final
        ]
        assert (net(emitted) if emit == "changes" else bag(emitted)) == bag(listed(wanted))


@settings(max_examples=50)
@given(epochs_of(rows), watermarks, st.sampled_from([0, 300]), st.booleans())
def test_a_key_is_over_after_the_latest_of_its_times(
    epochs: list[Epoch], steps: list[Any], lateness: int, closes: bool
) -> None:
    set_watermarks(epochs, steps)
    plan = TopPlan(
        SCHEMA, ["k"], 2, "price desc", until="at", lateness_ms=lateness,
        emit="close" if closes else "changes",
    )  # fmt: skip
    outcome = run(plan, epochs)
    open_: dict[Any, list[Row]] = {}
    over: list[Row] = []
    emitted: list[Row] = []

    def finish(limit: float) -> None:
        for key, group in list(open_.items()):
            if max(row["at"] for row in group) < at(0) + dt.timedelta(milliseconds=limit):
                over.extend(first(open_.pop(key), "price desc", 2, False, None))

    for epoch, got, late in zip(epochs, outcome.rows, outcome.late, strict=True):
        limit = -(10**6) if epoch.watermark_ms is None else epoch.watermark_ms - lateness
        if not epoch.final:
            finish(limit)
        too_late = []
        for row in (row for channel in epoch.channels for row in channel):
            if row["at"] < at(limit):
                too_late.append(row)
            else:
                open_.setdefault(row["k"], []).append(row)
        if epoch.final and closes:
            finish(10**6)
        assert bag(listed(late)) == bag(listed(too_late))
        emitted += listed(got)
        wanted = list(over)
        if not closes:
            groups = open_.values()
            wanted += [
                row for group in groups for row in first(group, "price desc", 2, False, None)
            ]
            assert net(emitted) == bag(listed(wanted))
        else:
            assert bag(emitted) == bag(listed(wanted))
    assert outcome.operator is not None
    assert len(outcome.operator.table) == len(open_)


def test_windows_by_processing_time() -> None:
    window = tumbling("1s", clock="processing")
    plan = TopPlan(SCHEMA, ["k"], 1, "price desc", window=window)
    rows: list[Row] = [
        {"k": 1, "price": price, "at": None, "name": "", "tags": []} for price in (1.0, 3.0)
    ]
    epochs = [
        Epoch([[row]], now_ms=now) for row, now in zip(rows * 2, (1, 2, 999, 1000), strict=True)
    ]
    outcome = run(plan, [*epochs, Epoch([[]], now_ms=1001, final=True)])
    assert [len(got) for got in outcome.rows] == [0, 0, 0, 1, 1]
    assert [row["price"] for row in outcome.all] == [3.0, 3.0]


def test_rows_behind_the_nth_leave_the_table_untouched() -> None:
    plan = TopPlan(SCHEMA, ["k"], 2, "price desc")
    operator = plan.operator(8, "step", "fail")

    def batch(*prices: float) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"k": 1, "price": price} for price in prices], SCHEMA)

    operator.open(EpochTime(0, 0))
    operator.apply("rows", [batch(5.0, 6.0, 7.0)])
    operator.close()
    operator.table.seal()
    operator.open(EpochTime(1, 0))
    operator.apply("rows", [batch(5.0, 1.0), batch(6.0)])
    assert isinstance(operator.table, ColumnTable)
    assert not len(operator.table.touched())
    assert operator.close().batches == []
    operator.apply("rows", [batch(6.5)])
    changes = [row for b in operator.close().batches for row in b.to_pylist()]
    assert [(row["price"], row["_change"]) for row in changes] == [(6.0, -1), (6.5, 1)]


def test_a_sender_leaves_out_what_cannot_win_and_gives_up_where_all_may() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("until", pa.timestamp("ms"))])
    rng = np.random.default_rng(0)

    def sent(plan: TopPlan, keys: int) -> int:
        sender, total = plan.sender(EpochTime(0, 0)), 0
        for _ in range(3):
            arrays = [rng.integers(0, keys, 20_000), rng.integers(0, 2**40, 20_000)]
            times = pa.array(arrays[1] // 2**20, pa.timestamp("ms"))
            batch = pa.RecordBatch.from_arrays([*map(pa.array, arrays), times], schema=schema)
            total += sum(out.batch.num_rows for out in sender.add(0, batch))
        assert sender.finish() == ("rows", ())
        return total

    assert sent(TopPlan(schema, ["k"], 3, "v"), 10) == 3 * 3 * 10
    assert sent(TopPlan(schema, ["k"], 3, "v"), 2**60) == 60_000
    assert sent(TopPlan(schema, ["k"], 1000, "v"), 2) == 60_000
    # the row with the latest time is sent too
    assert sent(TopPlan(schema, ["k"], 3, "v", until="until"), 10) == 3 * (3 + 1) * 10


@pytest.mark.parametrize("n", [1, 3, 300])
def test_many_rows_at_once(n: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
    rng = np.random.default_rng(n)
    plan = TopPlan(schema, ["k"], n, "v desc", rank="r")
    came: list[Row] = []
    epochs = []
    for _ in range(3):
        rows = [
            {"k": k, "v": v, "s": str(v % 7)}
            for k, v in zip(
                rng.integers(0, 40, 3000).tolist(),
                rng.integers(0, 2000, 3000).tolist(),
                strict=True,
            )
        ]
        came += rows
        epochs.append(Epoch([rows[:1000], rows[1000:]], mishap="rollback"))
    outcome = run(plan, epochs, cut=700)
    wanted: Counter[Any] = Counter()
    for group in by_key(came, ["k"]).values():
        best = sorted(group, key=lambda row: (-row["v"], row["s"]))[:n]
        wanted += bag([row | {"r": place + 1} for place, row in enumerate(best)])
    assert net(outcome.all) == wanted


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal("-1.5"), None, Decimal(10**30), Decimal("-1e30"), Decimal("2.25")]),
        pa.array([3.5, math.nan, -0.0, None, -2.0, math.inf]),
        pa.array([2**64 - 1, 0, 2**63, None], pa.uint64()),
        pa.array(["b", "", None, "abcdefghij", "abcdefgh", "é"]),
        pa.array([b"\xff", b"", b"a"], pa.large_binary()),
        pa.array([[1], [2]]),
    ],
)
def test_codes_never_contradict_the_order(column: pa.Array) -> None:
    values = column.to_pylist()
    for descending in (False, True):
        codes = coarse_codes(column.slice(0), descending).tolist()
        for i, value in enumerate(values):
            for j, other in enumerate(values):
                before = rank_of(value) < rank_of(other)
                if before:
                    assert codes[j] <= codes[i] if descending else codes[i] <= codes[j]
        assert coarse_codes(column.slice(1), descending).tolist() == codes[1:]


def test_null_keys_and_times() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"k": None, "at": at(0)}, {"k": 1}, {"k": 1, "at": at(0)}], SCHEMA
    )
    unfit = TopPlan(SCHEMA, ["k"], 1, "at", until="at").unfit(0, batch)
    assert unfit is not None
    assert unfit.rows.tolist() == [True, True, False]
    null = [
        {"k": None, "price": price, "at": at(0), "name": None, "tags": None} for price in (1.0, 2.0)
    ]
    outcome = run(TopPlan(SCHEMA, ["k"], 1, "price", nulls=True), [Epoch([null])])
    assert outcome.all == [null[0] | {"_change": 1}]


def test_plans_pickle_and_refuse_what_cannot_work() -> None:
    plan = TopPlan(
        SCHEMA,
        ["k"],
        3,
        ["price desc", "at"],
        ties=True,
        rank="place",
        window=tumbling("1s"),
        on="at",
    )
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.output, copy.order, copy.ties) == (plan.output, plan.order, True)
    assert plan.output.names[-3:] == ["window_start", "window_end", "place"]
    assert plan.has_timers
    assert not TopPlan(SCHEMA, ["k"], 1, "at").has_timers
    refused: list[tuple[dict[str, Any], str]] = [
        ({"n": 0}, "n of top is 0"),
        ({"by": "x desc"}, "'x' of .* is not among the columns"),
        ({"by": []}, "order has no column"),
        ({"until": "price"}, "type double"),
        ({"until": "at", "window": tumbling("1s"), "on": "at"}, "both a window and until"),
        ({"on": "at"}, "but no window"),
        ({"window": session_window("1s"), "on": "at"}, "session"),
        ({"rank": "name"}, "already"),
        ({"emit": "close"}, "never closes"),
        ({"emit": "update", "n": 2}, "only with n=1"),
        ({"emit": "sometimes"}, "unknown emit"),
        ({"key_names": ["x"]}, "'x' of .* is not among the columns"),
        ({"input_schema": SCHEMA.append(pa.field("_change", pa.int8()))}, "change stream"),
    ]
    for changes, complaint in refused:
        options = {"input_schema": SCHEMA, "key_names": ["k"], "n": 1, "by": "at", **changes}
        with pytest.raises(FlowError, match=complaint):
            TopPlan(**options)
    with pytest.raises(ProtocolError, match="does not accept"):
        plan.operator(8, "step", "fail").apply("partials", [])
