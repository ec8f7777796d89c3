"""Processors on the operator that hosts run: calls, timers, errors, dead letters, restore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock.errors import FlowError, ProtocolError, StepError
from penstock.operators.operator import Answer, EpochTime
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessOperator, ProcessPlan
from penstock.state.variables.values import Row
from penstock.testing import ProcessorTester
from tests.operators.processors import (
    SCHEMA,
    SLOTS,
    Summed,
    as_dict,
    batch,
    export,
    operator,
    rows_of,
)


def test_one_call_per_key_in_order_of_first_appearance() -> None:
    calls: list[Any] = []

    class Noting(KeyedProcessor):
        output_schema = "user string"

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
            calls.append((key, [row.n for row in rows]))
            return [(key[0],), (key[0],)]

    op = operator(Noting())
    op.open(EpochTime(1, 0))
    answer = op.apply(
        "rows", [batch(("b", 1), ("a", 2)), batch(), batch(("b", 3), ("c", 4), ("b", 5))]
    )
    assert calls == [(("b",), [1, 3, 5]), (("a",), [2]), (("c",), [4])]
    assert rows_of(answer) == [("b",), ("b",), ("a",), ("a",), ("c",), ("c",)]
    assert len(answer.batches) == 1
    assert answer.batches[0].schema == op.output
    assert len(op.table.touched()) == 0
    assert op.apply("rows", []) == op.apply("rows", [batch()]) == op.close() == Answer()


def test_many_keys_and_one_key_with_many_rows_are_served_in_order() -> None:
    op = operator()
    op.open(EpochTime(1, 0))
    wanted = [(f"u{i % 5000}" if i % 3 else "big", 1) for i in range(20_000)]
    answer = op.apply("rows", [batch(*wanted[:7000]), batch(*wanted[7000:])])
    counts: dict[str, int] = {}
    for user, _ in wanted:
        counts[user] = counts.get(user, 0) + 1
    assert rows_of(answer) == [
        (user, n, 1, 1) for user, count in counts.items() for n in range(1, count + 1)
    ]
    assert len(op.table) == len(counts)


def test_state_lasts_over_epochs_and_restore_goes_on_exactly() -> None:
    rng = np.random.default_rng(7)
    op, other = operator(), operator()
    deltas: list[pa.Table] = []
    sealed: dict[bytes, dict[str, Any]] = {}
    for epoch in range(6):
        time = EpochTime(epoch, epoch * 700)
        rows = [batch(*((f"u{k}", int(n)) for k, n in rng.integers(0, 9, (20, 2))))]
        answers = [op.open(time), op.apply("rows", rows)]
        if epoch == 3:
            for delta in deltas:
                other.table.load(delta)
            assert as_dict(other) == sealed
        if epoch >= 3:
            again = [other.open(time), other.apply("rows", rows)]
            assert [sorted(map(str, rows_of(a))) for a in again] == [
                sorted(map(str, rows_of(a))) for a in answers
            ]
            assert as_dict(other) == as_dict(op)
            other.table.seal()
        deltas.append(op.table.delta())
        sealed = as_dict(op)
        op.table.seal()


def test_an_exception_undoes_the_channel_and_names_everything() -> None:
    op = operator()
    op.open(EpochTime(1, 0))
    op.apply("rows", [batch(("ann", 1), ("bob", 2))])
    before, touched = export(op), op.table.touched().tolist()
    with pytest.raises(StepError) as caught:
        op.apply("rows", [batch(("eve", 1), ("ann", 5), ("ann", -6), ("ann", 7), ("new", 1))])
    error = caught.value
    assert export(op).equals(before)
    assert op.table.touched().tolist() == touched
    assert (error.step, error.key) == ("process-1", '["ann"]')
    assert json.loads(error.row) == {"user": "ann", "n": -6}
    assert "Summed.handle_input_rows failed" in error.message
    assert "ValueError: -6 is negative" in error.message
    assert "processors.py" in error.hint
    assert 'raise ValueError(f"{row.n} is negative")' in error.hint
    assert isinstance(error.__cause__, ValueError)
    assert rows_of(op.apply("rows", [batch(("ann", 5))])) == [("ann", 6, 5, 2)]


def test_what_a_generator_does_at_its_end_is_undone_too() -> None:
    class Tidy(KeyedProcessor):
        output_schema = "n long"

        def init(self, handle: Any) -> None:
            self.seen = handle.get_value_state("seen", "n long")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            try:
                for row in rows:
                    yield ("wrong" if row.n < 0 else row.n,)
            finally:
                self.seen.update((len(key[0]),))

    op = operator(Tidy(), "dead_letter")
    op.open(EpochTime(1, 0))
    answer = op.apply("rows", [batch(("a", -1), ("bb", 1), ("ccc", -1), ("ccc", 2))])
    assert rows_of(answer) == [(1,), (2,)]
    assert len(answer.dead) == 2
    assert {k: row["seen.n"] for k, row in as_dict(op).items()} == {b"bb": 2, b"ccc": 3}


def test_rollback_and_run_again_gives_the_same() -> None:
    op = operator()
    op.open(EpochTime(1, 0))
    op.apply("rows", [batch(("ann", 1), ("bob", 2))])
    op.table.seal()
    sealed = export(op)
    runs = []
    for _ in range(2):
        fired = op.open(EpochTime(2, 1000))
        done = op.apply("rows", [batch(("ann", 3), ("cid", 4))])
        runs.append((rows_of(fired), rows_of(done), op.table.delta()))
        op.rollback()
        assert export(op).equals(sealed)
        with pytest.raises(ProtocolError, match="before its epoch was opened"):
            op.apply("rows", [batch(("ann", 3))])
    assert runs[0][0] == [("ann", -1, 1000, None), ("bob", -1, 1000, None)]
    assert runs[0][:2] == runs[1][:2]
    assert runs[0][2].equals(runs[1][2])


def test_dead_letters_lose_nothing_but_the_bad_rows() -> None:
    op, clean = operator(on_error="dead_letter"), operator()
    rows = [("ann", 1), ("bob", -1), ("ann", -2), ("ann", 3), ("cid", -5), ("cid", 6), ("ann", -4)]
    op.open(EpochTime(1, 0))
    clean.open(EpochTime(1, 0))
    answer = op.apply("rows", [batch(*rows)])
    wanted = clean.apply("rows", [batch(*(row for row in rows if row[1] > 0))])
    assert rows_of(answer) == rows_of(wanted)
    assert as_dict(op) == as_dict(clean)
    assert [(letter.key, json.loads(letter.row)["n"]) for letter in answer.dead] == [
        ('["ann"]', -2), ('["ann"]', -4), ('["bob"]', -1), ('["cid"]', -5),
    ]  # fmt: skip
    assert answer.dead[0].step == "process-1"
    assert answer.dead[0].error == "ValueError: -2 is negative"


@pytest.mark.parametrize("bad", [{0}, {3}, {7}, {2, 5}, {0, 1, 7}, set(range(8)), set()])
def test_the_bad_row_is_found_also_when_all_rows_are_read_first(bad: set[int]) -> None:
    class Greedy(KeyedProcessor):
        output_schema = "ns string"

        def init(self, handle: Any) -> None:
            self.calls = handle.get_value_state("calls", "n long")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
            every = list(rows)
            (n,) = self.calls.get() or (0,)
            self.calls.update((n + 1,))
            for row in every:
                if row.n in bad:
                    raise KeyError(row.n)
            return [(str([row.n for row in every]),)]

    op = operator(Greedy(), "dead_letter")
    op.open(EpochTime(1, 0))
    answer = op.apply("rows", [batch(*(("ann", n) for n in range(8)))])
    good = [n for n in range(8) if n not in bad]
    assert sorted(json.loads(letter.row)["n"] for letter in answer.dead) == sorted(bad)
    assert {letter.error for letter in answer.dead} == {f"KeyError: {n}" for n in bad}
    assert rows_of(answer) == ([(str(good),)] if good else [])
    with op.inspect(("ann",)) as handle:
        assert handle.state("calls").get() == ((1,) if good else None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("ann",), "a row has 1 values for the 2 columns user, n"),
        (("ann", "x"), "the column 'n' takes int64, not 'x' (str)"),
        ({"user": "ann", "m": 1}, "there is no column 'm', only user, n"),
        (7, "7 (int) is not a row of the columns user, n: use a tuple, a dict or a Row"),
    ],
)
def test_rows_that_do_not_fit_the_output_are_reported(row: Any, problem: str) -> None:
    class Wrong(KeyedProcessor):
        output_schema = "user string, n long"

        def init(self, handle: Any) -> None:
            self.seen = handle.get_value_state("seen", "n long")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            for input_row in rows:
                self.seen.update((input_row.n,))
                yield (key[0], 1) if input_row.n else row

    op = operator(Wrong())
    op.open(EpochTime(1, 0))
    with pytest.raises(StepError) as caught:
        op.apply("rows", [batch(("ann", 1), ("ann", 0), ("ann", 2))])
    assert problem in caught.value.message
    assert (caught.value.key, caught.value.row) == ('["ann"]', '{"user": "ann", "n": 0}')
    assert "in handle_input_rows" in caught.value.hint
    aside = operator(Wrong(), "dead_letter")
    aside.open(EpochTime(1, 0))
    answer = aside.apply("rows", [batch(("ann", 1), ("ann", 0), ("ann", 2))])
    assert rows_of(answer) == [("ann", 1), ("ann", 1)]
    assert [letter.row for letter in answer.dead] == ['{"user": "ann", "n": 0}']


def test_wrong_values_for_state_are_reported() -> None:
    class Wrong(KeyedProcessor):
        output_schema = "n long"

        def init(self, handle: Any) -> None:
            self.seen = handle.get_value_state("seen", "n int")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
            for row in rows:
                self.seen.update((row.n,))

    op = operator(Wrong(), "dead_letter")
    op.open(EpochTime(1, 0))
    answer = op.apply("rows", [batch(("ann", 1), ("ann", 2**40), ("ann", 3))])
    assert [json.loads(letter.row)["n"] for letter in answer.dead] == [2**40]
    assert "the column 'n' takes int32" in answer.dead[0].error
    with op.inspect(("ann",)) as handle:
        assert handle.state("seen").get() == (3,)  # type: ignore[attr-defined]


def test_a_global_step_has_one_key() -> None:
    class All(KeyedProcessor):
        output_schema = "n long"

        def init(self, handle: Any) -> None:
            self.total = handle.get_value_state("total", "n long")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            assert key == ()
            (total,) = self.total.get() or (0,)
            self.total.update((total + sum(row.n for row in rows),))
            yield self.total.get()

    tester = ProcessorTester(All(), SCHEMA, [], slots=1)
    assert tester.feed([("a", 1), ("b", 2)]) == [(3,)]
    tester.restart()
    assert tester.feed([("c", 3)]) == [(6,)]
    assert tester.peek("total", ()) == (6,)


def test_a_plan_travels_and_its_processor_stays_as_it_was() -> None:
    plan = cloudpickle.loads(cloudpickle.dumps(ProcessPlan(SCHEMA, ["user"], Summed())))
    ops = [ProcessOperator(plan, SLOTS, "p") for _ in range(2)]
    for op in ops:
        op.open(EpochTime(1, 0))
        assert rows_of(op.apply("rows", [batch(("ann", 1))])) == [("ann", 1, 1, 1)]
    assert not hasattr(plan.processor, "total")
    assert cloudpickle.loads(cloudpickle.dumps(plan)).output == plan.output
    assert plan.has_timers
    ops[0].shutdown()


def test_plans_that_cannot_work_are_refused() -> None:
    class Neither(KeyedProcessor):
        output_schema = "n long"

    class Both(Summed):
        def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> None:
            pass

    class Untold(Summed):
        output_schema = None  # type: ignore[assignment]

    class Failing(Summed):
        def init(self, handle: Any) -> None:
            raise RuntimeError("no")

    for processor, problem in [
        (Neither(), "neither"), (Both(), "both"), (Untold(), "has no output schema"),
        (Summed, "not a KeyedProcessor"), (object(), "not a KeyedProcessor"),
    ]:  # fmt: skip
        with pytest.raises(FlowError, match=problem):
            ProcessPlan(SCHEMA, ["user"], processor)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="'x' of the key is not among the columns"):
        ProcessPlan(SCHEMA, ["x"], Summed())
    with pytest.raises(StepError, match=r"step process-1: .*Failing.init failed: RuntimeError: no"):
        operator(Failing())
    op = operator()
    op.open(EpochTime(1, 0))
    with pytest.raises(ProtocolError, match="does not accept input"):
        op.apply("partials", [])


def test_the_tester_undoes_a_failed_feed_and_sets_state() -> None:
    tester = ProcessorTester(Summed(), SCHEMA, "user", now_ms=500)
    tester.put("total", "ann", (40,))
    tester.put("last", ("ann",), [(1,), (2,)])
    tester.put("kinds", "ann", {(1,): (1, None)})
    with pytest.raises(StepError):
        tester.feed([("ann", 1), ("bob", 2), ("ann", -1)])
    assert (tester.peek("total", "ann"), tester.keys_held) == ((40,), 1)
    assert tester.feed([("ann", 2)]) == [Row(user="ann", total=42, last=2, kinds=2)]
    assert tester.peek("last", "ann") == [(1,), (2,), (2,)]
    assert tester.timers("ann") == [1500]
    assert tester.set_time(1500) == [("ann", -1, 1500, None)]
    assert tester.set_watermark(5) == tester.finish() == []
    with pytest.raises(TypeError, match="column 'n'"):
        tester.feed([("ann", "x")])


def test_a_lack_of_memory_makes_no_dead_letters() -> None:
    class Growing(Summed):
        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            yield from super().handle_input_rows(key, rows, timers)
            raise MemoryError("no room for 7 GB")

    op = operator(Growing(), "dead_letter")
    op.open(EpochTime(0, 0))
    with pytest.raises(MemoryError, match="no room"):
        op.apply("rows", [batch(("ann", 1), ("bob", 2))])
    assert len(op.table) == 0
    op = operator(Growing())
    op.open(EpochTime(0, 0))
    with pytest.raises(StepError, match="MemoryError: no room") as caught:
        op.apply("rows", [batch(("ann", 1))])
    assert "maxOffsetsPerTrigger" in caught.value.hint
