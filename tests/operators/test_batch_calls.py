"""Processors with `handle_batch`: one call for all rows of some slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StepError
from penstock.operators.operator import EpochTime
from penstock.operators.places import Places
from penstock.operators.process import batch_calls
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessOperator, ProcessPlan
from penstock.state.keys.codec import slots_of
from tests.operators.processors import SCHEMA, SLOTS, as_dict, batch, export, operator, rows_of


class ByKey(KeyedProcessor):
    """A processor of running totals, key by key."""

    output_schema = "user string, n long, total long"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long, last string", ttl=1000)

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            if row.n == 13:
                raise ValueError("unlucky")
            total = (self.total.get() or (0,))[0] + (row.n or 0)
            self.total.update((total, None if row.n is None else f"{row.n}"))
            yield (key[0], row.n, total)


class ByBatch(KeyedProcessor):
    """A processor of running totals, for many keys at once."""

    output_schema = ByKey.output_schema

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long, last string", ttl=1000)

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("n"), 13)).as_py():
            raise ValueError("unlucky")
        old = self.total.get_many(batch)
        base = pc.fill_null(pc.struct_field(old, "n"), 0).to_numpy()
        users, ns = batch.column("user").to_pylist(), pc.fill_null(batch.column("n"), 0).to_numpy()
        running: dict[str, int] = {}
        totals = []
        for user, start, n in zip(users, base.tolist(), ns.tolist(), strict=True):
            running[user] = running.get(user, start) + n
            totals.append(running[user])
        new = pa.array(totals, pa.int64())
        last = pc.cast(batch.column("n"), pa.string())
        self.total.update_many(batch, pa.record_batch({"last": last, "n": new}))
        return pa.record_batch({"total": new, "user": batch.column("user"), "n": batch.column("n")})


EPOCHS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(-5, 15)), max_size=12),
    max_size=4,
)


@settings(max_examples=60)
@given(epochs=EPOCHS)
def test_the_vectorised_form_equals_the_form_by_key(
    epochs: list[list[tuple[str, int | None]]],
) -> None:
    by_key, by_batch = operator(ByKey(), "dead_letter"), operator(ByBatch(), "dead_letter")
    for number, rows in enumerate(epochs):
        outcomes = []
        for op in (by_key, by_batch):
            op.open(EpochTime(number, number * 400))
            answer = op.apply("rows", [batch(*rows)])
            letters = sorted((letter.key, letter.row, letter.error) for letter in answer.dead)
            outcomes.append((sorted(rows_of(answer), key=lambda r: r[0]), letters, as_dict(op)))
            op.table.seal()
        assert outcomes[0] == outcomes[1]
        assert len(outcomes[0][1]) == sum(n == 13 for _, n in rows)


def test_a_failing_batch_is_undone_and_names_the_row() -> None:
    op = operator(ByBatch())
    op.open(EpochTime(1, 0))
    op.apply("rows", [batch(("ann", 1), ("bob", 2))])
    before = export(op)
    with pytest.raises(StepError) as caught:
        op.apply("rows", [batch(*(("ann", n) for n in range(20)), ("bob", 1), ("cid", 1))])
    assert export(op).equals(before)
    assert (caught.value.key, json.loads(caught.value.row)["n"]) == ('["ann"]', 13)
    assert "ByBatch.handle_batch failed" in caught.value.message
    assert "test_batch_calls.py" in caught.value.hint


def batch_operator(
    function: Callable[[Any, pa.RecordBatch], Any], on_error: Any = "fail", ordered: bool = False
) -> ProcessOperator:
    class Batches(KeyedProcessor):
        output_schema = "user string, n long"

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.value = handle.get_value_state("value", "n long")
            self.items = handle.get_list_state("items", "n long")

        def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> Any:
            return function(self, batch)

        def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Any:
            return [(key[0], expired.expiry_ms)]

    plan = ProcessPlan(SCHEMA, ["user"], Batches())
    op = ProcessOperator(plan, SLOTS, "process-1", on_error, ordered)
    op.open(EpochTime(1, 0))
    return op


def test_a_batch_may_change_many_keys_and_single_ones() -> None:
    def work(self: Any, rows: pa.RecordBatch) -> pa.Table:
        self.value.update_many(rows, pa.record_batch({"n": rows.column("n")}))
        for user in set(rows.column("user").to_pylist()):
            with self.handle.for_key(user):
                assert self.value.exists()
                self.items.append_value(self.value.get())
                if user == "bob":
                    self.value.clear()
        some = rows.filter(pc.greater(rows.column("n"), 2))
        self.handle.register_timers(some, some.column("n"))
        with suppress(ZeroDivisionError), self.handle.for_key((user,)):
            self.items.clear()
            raise ZeroDivisionError
        values = pc.struct_field(self.value.get_many(rows), "n")
        return pa.table({"n": values, "user": rows.column("user")})

    op = batch_operator(work)
    answer = op.apply("rows", [batch(("ann", 1), ("bob", 2), ("ann", 3), ("cid", 4))])
    assert sorted(rows_of(answer), key=str) == [("ann", 3), ("ann", 3), ("bob", None), ("cid", 4)]
    with op.inspect(("ann",)) as handle:
        assert list(handle.state("items").get()) == [(3,)]  # type: ignore[attr-defined]
    op.table.seal()
    assert rows_of(op.open(EpochTime(2, 9))) == [("ann", 3), ("cid", 4)]


def test_a_null_in_update_many_clears_and_the_last_row_wins() -> None:
    def work(self: Any, rows: pa.RecordBatch) -> None:
        mask = pc.equal(rows.column("n"), 0)
        values = pa.StructArray.from_arrays([rows.column("n")], ["n"], mask=mask)
        self.value.update_many(rows, values)

    op = batch_operator(work)
    op.apply("rows", [batch(("ann", 1), ("bob", 2), ("ann", 3), ("new", 5), ("new", 0))])
    assert len(op.table) == 2
    op.apply("rows", [batch(("ann", 0), ("ann", 9), ("bob", 4), ("bob", 0), ("never", 0))])
    assert len(op.table) == 1
    with op.inspect(("ann",)) as handle:
        assert handle.state("value").get() == (9,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("enough", [1, 40, 1000])
def test_a_batch_is_whole_slots_in_order(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_calls, "ENOUGH", enough)
    seen: list[list[tuple[str, int]]] = []

    def work(self: Any, rows: pa.RecordBatch) -> None:
        seen.append([tuple(row.values()) for row in rows.to_pylist()])

    op = batch_operator(work)
    rows = [(f"u{i % 30}", i) for i in range(200)]
    op.apply("rows", [batch(*rows[:90]), batch(*rows[90:])])
    assert sorted(row for part in seen for row in part) == sorted(rows)
    users = [{user for user, _ in part} for part in seen]
    assert sum(map(len, users)) == 30
    for part in seen:
        for user in users[0]:
            numbers = [n for of, n in part if of == user]
            assert numbers == sorted(numbers)
    assert all(len(part) >= enough for part in seen[:-1])
    assert {1: 4, 40: 2, 1000: 1}[enough] <= len(seen) <= {1: SLOTS, 40: 5, 1000: 1}[enough]


def test_the_order_of_output_does_not_depend_on_the_slots_of_a_channel() -> None:
    """In ordered flows a call that does not answer row by row has the place of its last row. So its rows
    must be the same, whichever slots a host has."""

    def work(self: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.slice(rows.num_rows - 1)

    def placed(rows: list[tuple[str, int]]) -> set[tuple[str, int, int]]:
        op = batch_operator(work, ordered=True)
        places = Places.of_records(1, np.array([n for _, n in rows]))
        answer = op.apply("rows", [batch(*rows)], places)
        numbers = Places.joined(answer.places).minor.tolist()
        return {(*row, n) for row, n in zip(rows_of(answer), numbers, strict=True)}

    rows = [(f"u{i % 9}", i) for i in range(40)]
    keys = batch_operator(work).table.codec.encode(batch(*rows))
    odd = (slots_of(keys.hashes, SLOTS) % 2).tolist()
    hosts = [[row for row, its in zip(rows, odd, strict=True) if its == half] for half in (0, 1)]
    assert all(hosts)
    assert placed(rows) == placed(hosts[0]) | placed(hosts[1])


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (lambda self, rows: 5, "int returned: return a RecordBatch"),
        (lambda self, rows: rows.select(["user"]), "the returned columns are user, not user, n"),
        (
            lambda self, rows: rows.set_column(1, "n", pc.cast(rows.column("user"), pa.binary())),
            "the column 'n' takes int64, not binary",
        ),
        (lambda self, rows: self.value.get(), "for_key"),
        (lambda self, rows: self.value.get_many(batch(("other", 1))), "not in the batch"),
        (lambda self, rows: self.handle.for_key("other").__enter__(), "not in the batch"),
        (lambda self, rows: self.value.update_many(rows, rows), "has the fields n"),
    ],
)  # fmt: skip
def test_misuse_in_a_batch_is_reported(work: Any, problem: str) -> None:
    op = batch_operator(work)
    with pytest.raises(StepError, match=r"step process-1: .*handle_batch failed") as caught:
        op.apply("rows", [batch(("ann", 1))])
    assert problem in str(caught.value)


def test_a_batch_that_fails_only_as_a_whole() -> None:
    def work(self: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows > 2:
            raise MemoryError("too much at once")
        return rows

    rows = batch(*(("ann", n) for n in range(7)))
    op = batch_operator(work)
    with pytest.raises(StepError, match=r"a batch of .* rows: MemoryError"):
        op.apply("rows", [rows])
    op = batch_operator(work, "dead_letter")
    answer = op.apply("rows", [rows])
    assert [n for _, n in rows_of(answer)] == list(range(7))
    assert answer.dead == []
