"""Compiled handlers do what the same code does in Python, and say what cannot be compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import FlowError, StepError
from penstock.operators.operator import ROWS, EpochTime
from penstock.operators.places import Places
from penstock.operators.process.step import ProcessOperator, ProcessPlan
from penstock.testing import ProcessorTester

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("v", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("w", pa.string()),
    ]
)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@numba.njit
def _twice(v: int) -> int:
    return 2 * v


class Everything(ps.KeyedProcessor):
    """Uses all that a compiled handler can: fails on 13, sets a second timer on 7, fails in a timer on 5."""

    output_schema = "user string, n long, small short, ts timestamp, word string, x double"
    gap_ms = 30

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.get_value_state("seen", "n long, small short, last long")
        self.brief = handle.get_value_state("brief", "n int, x double", ttl=50)

    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        n, small, last = self.seen.get((0, 0, 0))
        for row in rows:
            if row.v is None:
                continue
            if row.v == 13:
                raise ValueError("13 is bad")
            n += _twice(row.v)
            small += 1
            last = row.v
            brief, x = self.brief.get((0, 0.0))
            if row.v % 3 == 0:
                self.brief.update((brief + 1, x + 0.5))
            elif row.v % 11 == 0:
                self.brief.clear()
            if row.ts is not None and row.w is not None and row.v % 2 == 0:
                yield key[0], n, small, row.ts + 1_000_000, row.w, x
        if last % 17 == 0:
            self.seen.clear()
        else:
            self.seen.update((n, small, last))
        if last != 7:
            for old in self.handle.list_timers():
                self.handle.delete_timer(old)
        self.handle.register_timer(timers.processing_time_ms + self.gap_ms + last % 5)
        if last % 4 == 0 and timers.watermark_ms is not None:
            for old in self.handle.list_timers("event"):
                self.handle.delete_timer(old, "event")
            self.handle.register_timer(timers.watermark_ms + last, "event")

    @ps.compiled
    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        n, small, last = self.seen.get((0, 0, 0))
        if last == 5:
            raise ValueError("5 is bad")
        kind = 1.0 if expired.kind == "event" else 2.0
        yield key[0], n, small, expired.expiry_ms, key[0], kind
        if (
            last % 3 == 1 and expired.kind == "processing"
        ):  # is due at once, as long as it lags behind
            self.handle.register_timer(expired.expiry_ms + 20)
        elif last % 2 == 0:
            self.seen.clear()


def in_python(op: ProcessOperator) -> None:
    """Make an operator call its compiled handlers in Python."""
    for calls in (op._calls, op._timer_calls):
        calls._runner.in_python = lambda keys, entries, timers: np.ones(len(keys), np.bool_)  # type: ignore


def _rows(rng: random.Random, count: int, nulls: bool) -> list[tuple[Any, ...]]:
    return [
        (
            rng.choice(["ann", "bob", "zoë", "", *map(str, range(30))]),
            None if nulls and rng.random() < 0.05 else rng.randrange(40),
            BEGIN + timedelta(seconds=rng.randrange(100)),
            None if nulls and rng.random() < 0.05 else rng.choice(["x", "y", "zzz"]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_same_code_compiled_and_in_python(seed: int) -> None:
    rng = random.Random(seed)
    compiled, python = (
        ProcessorTester(Everything(), SCHEMA, "user", on_error="dead_letter", watermark_ms=0)
        for _ in range(2)
    )
    in_python(python._operator)
    for epoch in range(12):
        rows = _rows(rng, rng.choice([0, 3, 60]), nulls=epoch % 3 == 2)
        outputs = []
        for tester in (compiled, python):
            tester.now_ms, tester.watermark_ms = epoch * 13, epoch * 5 if epoch > 1 else None
            if epoch == 7:
                tester.restart()
                in_python(python._operator)
            outputs.append(sorted(tester.feed(rows), key=repr))
        assert outputs[0] == outputs[1]
        assert _held(compiled) == _held(python)
    ends = [sorted(tester.finish(), key=repr) for tester in (compiled, python)]
    assert ends[0] == ends[1]
    assert ends[0]
    letters = [sorted(t.dead_letters, key=repr) for t in (compiled, python)]
    assert letters[0] == letters[1]
    assert {letter.error for letter in letters[0]} >= {"ValueError: 13 is bad"}


def _held(tester: ProcessorTester) -> list[dict[str, Any]]:
    table = tester._operator.table
    rows = table.export(table.entries_in(np.arange(table.slots))).to_pylist()
    return sorted(rows, key=lambda row: row["__key"])


def _operator(kind: type[ps.KeyedProcessor], ordered: bool = False) -> ProcessOperator:
    return ProcessPlan(SCHEMA, ["user"], kind()).operator(4, "process-1", "fail", ordered)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )


def test_output_rows_have_the_places_of_the_rows_that_caused_them() -> None:
    rows = _rows(random.Random(7), 200, nulls=True)
    rows = [row for row in rows if row[1] != 13]
    placed = []
    for prepare in (in_python, lambda op: None):
        op = _operator(Everything, ordered=True)
        prepare(op)
        op.open(EpochTime(0, 0, 0))
        answer = op.apply(ROWS, [_batch(rows)], Places.of_records(0, np.arange(len(rows))))
        found = []
        for batch, places in zip(answer.batches, answer.places, strict=True):
            pairs = zip(places.major.tolist(), places.minor.tolist(), strict=True)
            found += list(zip(pairs, map(repr, batch.to_pylist()), strict=True))
        placed.append(sorted(found))
    assert placed[0] == placed[1]
    assert placed[0]


def test_a_failed_call_names_step_key_and_row_and_changes_nothing() -> None:
    op = _operator(Everything)
    op.open(EpochTime(0, 0, 0))
    op.apply(ROWS, [_batch([("ann", 1, BEGIN, "x")])])
    op.table.seal()
    before = op.table.export(op.table.entries_in(np.arange(4)))
    op.open(EpochTime(1, 1, 0))
    with pytest.raises(StepError, match="13 is bad") as caught:
        op.apply(
            ROWS,
            [_batch([("bob", 2, BEGIN, "x"), ("ann", 3, BEGIN, "x"), ("ann", 13, BEGIN, "x")])],
        )
    assert (caught.value.step, caught.value.key) == ("process-1", '["ann"]')
    assert '"v": 13' in caught.value.row
    assert "in handle_input_rows" in caught.value.hint
    op.rollback()
    assert op.table.export(op.table.entries_in(np.arange(4))).equals(before)


class _Base(ps.KeyedProcessor):
    output_schema = "user string, n long"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")
        self.text = handle.get_value_state("text", "s string")
        self.pages = handle.get_map_state("pages", "page string", "n long")


class _UsesMap(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        yield key[0], len(self.pages)


class _UsesText(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        self.text.update(("x",))


class _Stores(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        self.count = 1


class _YieldsFloat(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        yield key[0], 1.5


class _YieldsTooMuch(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        yield key[0], 1, 2


class _NoSuchColumn(_Base):
    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            self.n.update((row.other,))


@pytest.mark.parametrize(
    ("kind", "line", "problem"),
    [
        (_UsesMap, "", "self.pages is map state"),
        (_UsesText, "", "the state 'text' has a field 's' of string: use numbers"),
        (_Stores, "self.count = 1", "it sets the attribute 'count'"),
        (_YieldsFloat, "", "the column 'n' takes int64, not float64"),
        (_YieldsTooMuch, "", "a row has 3 values for 2 columns"),
        (_NoSuchColumn, "row.other", "other"),
    ],
)
def test_what_cannot_be_compiled_is_refused_when_the_flow_is_made(
    kind: type[ps.KeyedProcessor], line: str, problem: str
) -> None:
    with pytest.raises(FlowError) as caught:
        ProcessPlan(SCHEMA, ["user"], kind())
    assert f"{kind.__name__}.handle_input_rows cannot be compiled" in caught.value.message
    assert problem in caught.value.message
    assert line in caught.value.message
    assert "remove @compiled" in (caught.value.hint or "")


def test_only_handlers_can_be_compiled() -> None:
    with pytest.raises(FlowError, match="handle_batch cannot be compiled"):

        @ps.compiled
        def handle_batch(self: Any, batch: Any, timers: Any) -> None: ...


def test_a_kernel_is_made_once() -> None:
    one, other = (_operator(Everything)._calls for _ in range(2))
    assert one._runner.kernel.run is other._runner.kernel.run  # type: ignore[union-attr]


class Counts(ps.KeyedProcessor):
    """Uses no column of its rows, and yields a number in place of text for a key with 3 rows."""

    output_schema = "user string, n long"

    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        n = 0
        for _ in rows:
            n += 1
        yield (7 if n == 3 else key[0]), n


def test_null_is_a_key_like_any_other() -> None:
    plan = ProcessPlan(SCHEMA, ["user"], Counts(), nulls=True)
    op = plan.operator(4, "process-1", "fail")
    op.open(EpochTime(0, 0))
    answer = op.apply(
        ROWS, [_batch([("ann", 1, BEGIN, "x"), (None, 1, BEGIN, "x"), (None, 2, BEGIN, "y")])]
    )
    rows = [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()]
    assert sorted(rows, key=repr) == [("ann", 1), (None, 2)]


def test_a_number_is_not_text() -> None:
    tester = ProcessorTester(Counts(), SCHEMA, "user")
    assert tester.feed([("ann", 1, BEGIN, "x")] * 2) == [("ann", 2)]
    with pytest.raises(StepError, match="the column 'user' takes string, not 7"):
        tester.feed([("ann", 1, BEGIN, "x")] * 3)


class Merging(ps.KeyedProcessor):
    output_schema = "user string, n long"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")

    @ps.compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        (n,) = self.n.get((0,))
        for row in rows:
            n += row.v
        self.n.update((n,))

    def merge(self, other: Any) -> None:
        self.n.update((self.n.get((0,)).n + other.n.get().n,))

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        yield key[0], self.n.get().n


def test_a_compiled_handler_that_merges_is_called_in_parts() -> None:
    rows = list(_rows(random.Random(1), 300, nulls=False))
    whole, parts = (ProcessorTester(Merging(), SCHEMA, "user") for _ in range(2))
    assert sorted(whole.feed(rows)) == sorted(parts.feed(rows, parts=3))
    assert _held(whole) == _held(parts)


def test_a_processor_that_merges_must_not_emit_in_its_compiled_handler() -> None:
    class Emits(Merging):
        @ps.compiled
        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # type: ignore[override]
            yield key[0], 1

    tester = ProcessorTester(Emits(), SCHEMA, "user")
    with pytest.raises(StepError, match="has merge, but its handler emits rows"):
        tester.feed([("ann", 1, BEGIN, "x")])
