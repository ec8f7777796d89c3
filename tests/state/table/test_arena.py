"""An arena returns rows of all types as they were stored."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError, ProtocolError
from penstock.state.table import arena as module
from penstock.state.table.arena import Arena

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("half", pa.float16()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(23, 3)),
        ("wide", pa.decimal256(50, 2)),
        ("id", pa.binary(3)),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("long_text", pa.large_string()),
        ("long_bytes", pa.large_binary()),
        ("items", pa.list_(pa.string())),
        ("pair", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int32())),
        ("none", pa.null()),
        ("code", pa.dictionary(pa.int8(), pa.string())),
    ]
)
VALUES: list[Any] = [
    lambda n: n * 10**12,
    lambda n: n % 100 - 50,
    lambda n: n % 2 == 0,
    lambda n: n / 7,
    lambda n: np.float16(n % 8),
    lambda n: datetime(2015, 7, 15, tzinfo=UTC) - timedelta(microseconds=n),
    lambda n: date(1969, 12, 1) + timedelta(n),
    lambda n: Decimal(n) / 1000 - 5,
    lambda n: Decimal(-n * 10**30),
    lambda n: bytes([n % 256, 0, 255]),
    lambda n: "ü" * (n % 5) + str(n),
    lambda n: b"\0" * (n % 3),
    lambda n: "" if n % 3 else "🙂" * n,
    lambda n: bytes([n % 256]) * (n % 20),
    lambda n: [None if n % 2 else "a"] * (n % 4),
    lambda n: {"x": n, "y": None if n % 2 else str(n)},
    lambda n: [(str(n), n)] * (n % 2),
    lambda n: None,
    lambda n: "ab"[n % 2],
]


def row(n: int) -> dict[str, Any]:
    """A row with a value of every type. About every fifth value is null."""
    names = SCHEMA.names
    values = {name: value(n) for name, value in zip(names, VALUES, strict=True)}
    return {name: None if (n + at) % 5 == 0 else values[name] for at, name in enumerate(names)}


def batch(numbers: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(n) for n in numbers], SCHEMA)


numbers = st.lists(st.integers(0, 60), max_size=30)


@settings(max_examples=60)
@given(st.lists(st.tuples(numbers, st.booleans(), st.integers(0, 3)), max_size=8), st.randoms())
def test_rows_come_back_as_they_were(parts: list[tuple[list[int], bool, int]], random: Any) -> None:
    arena = Arena(SCHEMA)
    model: list[int] = []
    for added, ordered, cut in parts:
        rows = batch(added).slice(min(cut, len(added)))
        stored = added[cut:]
        order = None
        if ordered:
            order = np.array([random.randrange(len(stored)) for _ in stored], np.int64)
            stored = [stored[at] for at in order]
        assert arena.append(rows, order) == len(model)
        model += stored
        assert arena.size == len(model)
        if random.random() < 0.3:
            kept = [random.randrange(len(model)) for _ in range(len(model) // 2)]
            arena.keep(np.array(kept, np.int64))
            model = [model[at] for at in kept]
        wanted = [random.randrange(len(model)) for _ in range(len(model) and 20)]
        taken = arena.take(np.array(wanted, np.int64))
        taken.validate(full=True)
        assert taken.schema == SCHEMA
        assert taken.to_pylist() == batch([model[at] for at in wanted]).to_pylist()
        for name in ("items", "text", "flag"):
            assert arena.values(name, np.array(wanted, np.int64)).equals(taken.column(name))


def test_rows_without_nulls_need_no_masks() -> None:
    schema = pa.schema([("n", pa.int64())])
    arena = Arena(schema)
    arena.append(pa.record_batch({"n": list(range(64))}))
    assert arena.nbytes == 64 * 8
    arena.append(pa.record_batch({"n": pa.array([None], pa.int64())}))
    assert arena.nbytes > 128 * 8
    arena.keep(np.arange(64))
    assert arena.nbytes == 64 * 8


def test_rows_of_other_types_are_rejected() -> None:
    arena = Arena(pa.schema([("text", pa.string())]))
    with pytest.raises(ProtocolError, match=r"large_string"):
        arena.append(pa.record_batch({"text": pa.array(["a"], pa.large_string())}))


def test_nested_values_are_joined_as_they_grow() -> None:
    arena = Arena(pa.schema([("items", pa.list_(pa.int64()))]))
    for n in range(1000):
        arena.append(pa.record_batch({"items": pa.array([[n, n + 1]], pa.list_(pa.int64()))}))
    assert len(arena._fields[0]._parts) < 12  # type: ignore[union-attr]
    taken = arena.take(np.array([999, 0, 500])).column("items").to_pylist()
    assert taken == [[999, 1000], [0, 1], [500, 501]]


def test_too_much_text_for_an_array_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(pa.schema([("text", pa.string())]))
    arena.append(pa.record_batch({"text": ["abc", "defg"]}))
    monkeypatch.setattr(module, "_TEXT_BYTES", 6)
    assert arena.take(np.array([1])).column("text").to_pylist() == ["defg"]
    with pytest.raises(FlowError, match=r"2 GB of text.*What to do"):
        arena.take(np.array([0, 1]))
