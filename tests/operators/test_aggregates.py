"""Aggregates, compared with their definition in plain Python, row by row."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import FlowError, ProtocolError, SumOverflowError
from penstock.operators.aggregate.aggregates import Aggregate, AggregatePlan
from penstock.operators.aggregate.combiner import Combiner
from penstock.operators.aggregate.state import pack
from penstock.operators.aggregate.step import AggregateOperator
from penstock.operators.operator import EpochTime

Row = dict[str, Any]

TYPES: dict[str, pa.DataType] = {
    "small": pa.int32(),
    "large": pa.int64(),
    "unsigned": pa.uint64(),
    "real": pa.float64(),
    "single": pa.float32(),
    "money": pa.decimal128(10, 2),
    "text": pa.string(),
    "blob": pa.large_binary(),
    "yes": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "tags": pa.list_(pa.string()),
}
SCHEMA = pa.schema([("k", pa.string()), ("j", pa.int64()), *TYPES.items()])
UTC = dt.UTC
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "small": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2),
    "large": st.integers(-(2**55), 2**55) | st.integers(-2, 2),
    "unsigned": st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "real": st.sampled_from([-1.5, 0.0, 0.25, 3.0, math.inf, math.nan]),
    "single": st.sampled_from([-1.5, 0.0, 0.25, 3.0, math.nan]),
    "money": st.decimals(-999, 999, places=2),
    "text": st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"]),
    "blob": st.sampled_from([b"", b"\0", b"\xff", b"a"]),
    "yes": st.booleans(),
    "day": st.sampled_from([dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "at": st.sampled_from([dt.datetime(year, 1, 1, tzinfo=UTC) for year in (1900, 2030)]),
    "tags": st.sampled_from([[], ["a"], ["a", "b"]]),
}
ORDERED = [name for name in TYPES if name != "tags"]


def some_aggregates() -> dict[str, Aggregate]:
    chosen = {"n": ps.count()}
    for name in TYPES:
        chosen[f"n {name}"] = ps.count(name)
        chosen[f"first {name}"], chosen[f"last {name}"] = ps.first(name), ps.last(name)
    for name, by in product(("small", "real", "text"), ("small", "real", "text", "at")):
        chosen[f"first {name} {by}"] = ps.first(name, by=by)
        chosen[f"last {name} {by}"] = ps.last(name, by=by)
    for name in ORDERED:
        chosen[f"min {name}"], chosen[f"max {name}"] = ps.min(name), ps.max(name)
    for name in ("small", "large", "real", "single", "money"):
        chosen[f"sum {name}"], chosen[f"avg {name}"] = ps.sum(name), ps.avg(name)
    return chosen


AGGREGATES = some_aggregates()


def order(value: Any) -> tuple[bool, Any]:
    """A sort key for Spark's order: NaN after all other numbers."""
    nan = isinstance(value, float) and math.isnan(value)
    return (nan, 0 if nan else value)


def expected(aggregate: Aggregate, rows: list[Row]) -> Any:
    if aggregate.column is None:
        return len(rows)
    pairs = [(row[aggregate.column], row[aggregate.by] if aggregate.by else 0) for row in rows]
    pairs = [pair for pair in pairs if None not in pair]
    values = [value for value, _ in pairs]
    kind = aggregate.kind
    if kind == "count":
        return len(values)
    if not values:
        return None
    if kind in ("min", "max"):
        return min(values, key=order) if kind == "min" else max(values, key=order)
    if kind == "first":
        return min(pairs, key=lambda pair: order(pair[1]))[0]
    if kind == "last":
        return max(enumerate(pairs), key=lambda pair: (order(pair[1][1]), pair[0]))[1][0]
    if kind == "avg":
        return float(sum(map(Decimal, values)) / len(values)) if finite(values) else sum(values)
    return sum(values)


def finite(values: list[Any]) -> bool:
    return all(math.isfinite(value) for value in values)


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and got is not None:
        if math.isnan(wanted) or math.isinf(wanted):
            return math.isnan(got) if math.isnan(wanted) else got == wanted
        return math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-3 if abs(wanted) < 2**40 else 1e9)
    return type(got) is type(wanted) and got == wanted


def batch_of(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def send(operator: AggregateOperator, batches: list[pa.RecordBatch], combine: bool) -> None:
    """Apply one channel, as a courier sends it."""
    combiner = Combiner(operator.plan)
    if not combine:
        operator.apply("rows", [combiner.raw(batch) for batch in batches])
        return
    for batch in batches:
        combiner.add(batch)
    keys, partials = combiner.finish()
    assert partials.schema == operator.plan.partial_schema
    packed = pack(operator.plan.codec, keys, partials)
    packed.validate(full=True)
    assert packed.schema == operator.plan.packed_schema
    operator.apply("partials", [packed.slice(0, 1), packed.slice(1)])


def check(operator: AggregateOperator, keys: list[str], rows: list[Row]) -> None:
    answer = operator.close()
    got = {}
    for batch in answer.batches:
        batch.validate(full=True)
        assert batch.schema == operator.output == operator.plan.output
        for row in batch.to_pylist():
            got[tuple(row[key] for key in keys)] = row
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    assert got.keys() == groups.keys()
    for key, group in groups.items():
        for name, aggregate in operator.plan.aggregates.items():
            wanted = expected(aggregate, group)
            assert same(got[key][name], wanted), (name, key, got[key][name], wanted)


rows_of = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "j": st.integers(0, 1)}
    | {name: st.none() | values for name, values in VALUES.items()}
)
channels = st.lists(
    st.tuples(st.lists(st.lists(rows_of, max_size=4), min_size=1, max_size=2), st.booleans()),
    max_size=4,
)


@settings(max_examples=60)
@given(st.sampled_from([["k"], ["j"], ["k", "j"], []]), channels)
def test_combined_and_raw_channels_give_what_row_by_row_gives(
    keys: list[str], channels: list[tuple[list[list[Row]], bool]]
) -> None:
    plan = AggregatePlan(SCHEMA, keys, AGGREGATES)
    operator = AggregateOperator(plan, 16, "step")
    rows: list[Row] = []
    for lists, combine in channels:
        send(operator, [batch_of(rows) for rows in lists], combine)
        rows += [row for part in lists for row in part]
    check(operator, keys, rows)


def test_an_epoch_gives_only_the_rows_that_it_touched() -> None:
    plan = AggregatePlan(SCHEMA, ["j"], {"n": ps.count(), "sum": ps.sum("small")})
    operator = AggregateOperator(plan, 16, "step")
    nothing = dict.fromkeys(SCHEMA.names)
    one, two = nothing | {"j": 1, "small": 5}, nothing | {"j": 2}
    assert operator.open(EpochTime(0, 0)).batches == []
    send(operator, [batch_of([one, two])], combine=True)
    operator.table.seal()
    send(operator, [batch_of([two])], combine=True)
    assert operator.close().batches[0].to_pylist() == [{"j": 2, "n": 2, "sum": None}]
    operator.rollback()
    assert operator.close().batches == []
    send(operator, [batch_of([one])], combine=False)
    assert operator.close().batches[0].to_pylist() == [{"j": 1, "n": 2, "sum": 10}]


def test_a_channel_that_fails_leaves_nothing_behind() -> None:
    plan = AggregatePlan(
        SCHEMA, ["k"], {"n": ps.count(), "sum": ps.sum("large"), "t": ps.max("text")}
    )
    operator = AggregateOperator(plan, 16, "step")
    good = batch_of([dict.fromkeys(SCHEMA.names) | {"k": "a", "small": 1, "text": "x"}])
    send(operator, [good], combine=False)
    before = operator.close().batches[0].to_pylist()
    broken = batch_of([dict.fromkeys(SCHEMA.names) | {"k": "a", "large": 2**62}] * 2)
    with pytest.raises(SumOverflowError):
        operator.apply("rows", [good, good, broken])
    assert operator.close().batches[0].to_pylist() == before
    with pytest.raises(ProtocolError, match="with these columns"):
        operator.apply("rows", [good, good.drop_columns(["text"])])
    assert operator.close().batches[0].to_pylist() == before
    with pytest.raises(ProtocolError, match="does not accept"):
        operator.apply("letters", [good])


def test_state_survives_being_stored() -> None:
    plan = AggregatePlan(SCHEMA, ["k"], AGGREGATES | {"about": ps.approx_distinct("text")})
    row = {
        "k": "a", "j": 1, "small": 5, "large": 2**40, "unsigned": 2**63, "real": math.nan,
        "single": 0.5, "money": Decimal("1.25"), "text": "x", "blob": b"\0", "yes": True,
        "day": dt.date(2024, 2, 29), "at": dt.datetime(2030, 1, 1, tzinfo=UTC), "tags": ["a"],
    }  # fmt: skip
    one, other = AggregateOperator(plan, 16, "step"), AggregateOperator(plan, 16, "step")
    rows = [row, row | {"small": None, "text": "y", "money": Decimal("-3.00")}]
    one.apply("rows", [batch_of(rows)])
    other.table.load(one.table.delta())
    for operator in (one, other):
        operator.table.seal()
        operator.apply("rows", [batch_of([row])])
    assert repr(one.close().batches[0].to_pylist()) == repr(other.close().batches[0].to_pylist())


@pytest.mark.parametrize(("precision", "bound"), [(9, 0.16), (12, 0.06)])
@pytest.mark.parametrize("size", [0, 1, 10, 100, 1_000, 10_000, 100_000])
def test_distinct_values_are_counted_within_the_error(
    precision: int, bound: float, size: int
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    plan = AggregatePlan(schema, ["k"], {"about": ps.approx_distinct("v", precision)})
    operator = AggregateOperator(plan, 16, "step")
    values = np.arange(size) * 12_345
    for part in (values, values[: size // 2]):
        keys = np.zeros(len(part) + 1, np.int64)
        column = pa.array([None, *part.tolist()], pa.int64())
        batch = pa.RecordBatch.from_arrays([pa.array(keys), column], schema=schema)
        send(operator, [batch], combine=False)
        assert not Combiner(plan).combines
        send(operator, [batch], combine=True)
    estimate = operator.close().batches[0].to_pylist()[0]["about"]
    assert abs(estimate - size) <= bound * size


def test_a_combiner_goes_on_where_keys_repeat_and_gives_up_where_they_do_not() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    plan = AggregatePlan(schema, ["k"], {"sum": ps.sum("v")})
    rng = np.random.default_rng(0)
    sent: list[list[int]] = []

    def combiner_after(keys: Callable[[int], Any], rows: int) -> Combiner:
        combiner = Combiner(plan)
        for size in (1_000, rows - 1_000):
            column = pa.array(keys(size), pa.int64())
            sent.append(column.to_pylist())
            combiner.add(pa.RecordBatch.from_arrays([column, column], schema=schema))
        return combiner

    repeating = combiner_after(lambda size: rng.integers(0, 100_000, size), 100_000)
    assert repeating.combines
    assert repeating.rows == 100_000
    keys, partials = repeating.finish()
    assert len(keys) == partials.num_rows == len(set(keys.ints.tolist()))  # type: ignore[union-attr]
    assert sum(partials.column("sum(v)").to_pylist()) == sum(map(sum, sent))
    assert (repeating.rows, repeating.groups, repeating.combines) == (0, 0, True)
    distinct = combiner_after(lambda size: rng.integers(0, 2**60, size), 100_000)
    assert not distinct.combines
    assert distinct.rows == 20_000
    with pytest.raises(ProtocolError, match="raw rows"):
        distinct.finish()
    few = combiner_after(lambda size: rng.integers(0, 2**60, size), 5_000)
    assert few.combines


def test_a_combiner_can_be_used_again() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    plan = AggregatePlan(schema, ["k"], {"sum": ps.sum("v"), "low": ps.min("v"), "n": ps.count()})
    combiner = Combiner(plan)
    outcomes = []
    for _ in range(2):
        combiner.add(pa.RecordBatch.from_pydict({"k": ["a", "b"], "v": [1.5, None]}, schema))
        outcomes.append(pack(plan.codec, *combiner.finish()).to_pylist())
    first = [
        {"__key": b"a", "float sum(v)": 1.5, "min(v)": 1.5, "count(*)": 1},
        {"__key": b"b", "float sum(v)": None, "min(v)": None, "count(*)": 1},
    ]
    assert outcomes == [first, first]


def test_aggregates_of_one_column_share_their_state() -> None:
    plan = AggregatePlan(
        SCHEMA, ["k"], {"s": ps.sum("small"), "a": ps.avg("small"), "n": ps.count("small")}
    )
    assert [c.name for c in plan.columns] == ["sum(small)", "sum(small) seen", "count(small)"]


def test_an_average_does_not_wrap_around() -> None:
    schema = pa.schema([("v", pa.int64())])
    operator = AggregateOperator(AggregatePlan(schema, [], {"a": ps.avg("v")}), 1, "step")
    send(operator, [batch_of([{"v": 2**62}] * 4, schema)], combine=True)
    assert operator.close().batches[0].to_pylist() == [{"a": 2.0**62}]


def test_a_decimal_sum_beyond_its_type_is_null() -> None:
    schema = pa.schema([("v", pa.decimal128(38, 0))])
    operator = AggregateOperator(AggregatePlan(schema, [], {"s": ps.sum("v")}), 1, "step")
    most = Decimal(10**38 - 1)
    operator.apply("rows", [batch_of([{"v": most}], schema)])
    assert operator.close().batches[0].to_pylist() == [{"s": most}]
    operator.apply("rows", [batch_of([{"v": Decimal(1)}], schema)])
    assert operator.close().batches[0].to_pylist() == [{"s": None}]


def test_plans_pickle() -> None:
    plan = AggregatePlan(SCHEMA, ["k"], AGGREGATES)
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.output, copy.columns, copy.aggregates) == (plan.output, plan.columns, AGGREGATES)


@pytest.mark.parametrize(
    ("keys", "aggregate", "complaint"),
    [
        (["k"], ps.sum("text"), "needs numbers"),
        (["k"], ps.avg("at"), "needs numbers"),
        (["k"], ps.sum("yes"), "needs numbers"),
        (["k"], ps.sum("nix"), "'nix' of sum.nix. is not among"),
        (["nix"], ps.count(), "'nix' of the key is not among"),
        (["k"], ps.max("tags"), "cannot compare column 'tags'"),
        (["k"], ps.first("k", by="tags"), "cannot compare column 'tags'"),
        (["k"], ps.last("k", by="nix"), "'nix' of last"),
        (["k"], ps.approx_distinct("text", 30), "precision 30"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_with_advice(
    keys: list[str], aggregate: Aggregate, complaint: str
) -> None:
    with pytest.raises(FlowError, match=f"{complaint}.*What to do"):
        AggregatePlan(SCHEMA, keys, {"x": aggregate})


def test_an_aggregate_cannot_be_called_like_its_key() -> None:
    with pytest.raises(FlowError, match="rename the aggregate"):
        AggregatePlan(SCHEMA, ["k"], {"k": ps.count()})
