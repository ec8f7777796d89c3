"""Timers and TTLs of processors, on the operator that hosts run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import StepError
from penstock.operators.operator import Answer, EpochTime
from penstock.operators.process.processor import KeyedProcessor
from penstock.testing import ProcessorTester
from tests.operators.processors import SCHEMA, batch, export, operator, rows_of


class Ticking(KeyedProcessor):
    """A processor that registers the timers that rows ask for, and fails on the timer at 13."""

    output_schema = "user string, n long, kind string"

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            self.handle.register_timer(abs(row.n), time="processing" if row.n > 0 else "event")

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        if expired.expiry_ms == 13:
            raise ValueError("unlucky")
        if key[0].startswith("again") and expired.expiry_ms < 40:
            self.handle.register_timer(expired.expiry_ms + 10, time=expired.kind)
        if key[0] == "circle":
            self.handle.register_timer(expired.expiry_ms)
        if key[0] == "gone":
            for other in self.handle.list_timers():
                self.handle.delete_timer(other)
        yield (key[0], expired.get_expiry_time_in_ms(), expired.kind)


def test_timers_fire_in_order_of_expiry_and_key_before_rows() -> None:
    op = operator(Ticking())
    assert op.open(EpochTime(1, 0, 0)) == Answer()
    op.apply(
        "rows",
        [batch(("b", 20), ("a", 20), ("c", 10), ("a", 30), ("a", -20), ("gone", 5), ("gone", 6))],
    )
    op.table.seal()
    assert rows_of(op.open(EpochTime(2, 4, 19))) == []
    op.table.seal()
    assert rows_of(op.open(EpochTime(3, 25, 19))) == [
        ("gone", 5, "processing"), ("c", 10, "processing"),
        ("a", 20, "processing"), ("b", 20, "processing"),
    ]  # fmt: skip
    assert len(op.table) == 1
    op.table.seal()
    assert rows_of(op.open(EpochTime(4, 25, 20))) == [("a", 20, "event")]
    op.table.seal()
    assert rows_of(op.open(EpochTime(5, 30, None))) == [("a", 30, "processing")]
    assert len(op.table) == 0


def test_the_end_of_a_bounded_input_fires_event_timers_only() -> None:
    op = operator(Ticking())
    op.open(EpochTime(1, 0, None))
    op.apply("rows", [batch(("a", 20), ("b", -(10**9)), ("again", -5), ("a", -7))])
    op.table.seal()
    assert rows_of(op.open(EpochTime(2, 0, None))) == []
    assert rows_of(op.open(EpochTime(2, 0, 20, final=True))) == [
        ("again", 5, "event"), ("a", 7, "event"), ("again", 15, "event"), ("b", 10**9, "event"),
    ]  # fmt: skip


def test_a_handler_can_catch_up_but_not_loop_for_ever() -> None:
    op = operator(Ticking())
    op.open(EpochTime(1, 0))
    op.apply("rows", [batch(("again", 5), ("circle", 12), ("zed", 21))])
    op.table.seal()
    assert rows_of(op.open(EpochTime(2, 30))) == [
        ("again", 5, "processing"), ("circle", 12, "processing"), ("again", 15, "processing"),
        ("zed", 21, "processing"), ("again", 25, "processing"),
    ]  # fmt: skip
    op.table.seal()
    assert rows_of(op.open(EpochTime(3, 30))) == [("circle", 12, "processing")]
    op.table.seal()
    assert ("again", 35, "processing") in rows_of(op.open(EpochTime(4, 1000)))


def test_timers_survive_delta_and_load_and_rollback() -> None:
    op = operator(Ticking())
    op.open(EpochTime(1, 0))
    op.apply("rows", [batch(*((f"u{i:02}", i + 1) for i in range(12)), ("u03", -7))])
    delta = op.table.delta()
    op.table.seal()
    fresh = operator(Ticking())
    fresh.table.load(delta)
    for step in (op, fresh):
        for _ in range(2):
            assert len(rows_of(step.open(EpochTime(2, 5, 7)))) == 6
            step.rollback()
        step.open(EpochTime(2, 5, 7))
        step.table.seal()
        assert rows_of(step.open(EpochTime(3, 7, 7))) == [
            ("u05", 6, "processing"),
            ("u06", 7, "processing"),
        ]


def test_a_failing_timer() -> None:
    for on_error in ("fail", "dead_letter"):
        op = operator(Ticking(), on_error)
        op.open(EpochTime(1, 0))
        op.apply("rows", [batch(("a", 12), ("b", 13), ("c", 14))])
        op.table.seal()
        before = export(op)
        if on_error == "fail":
            with pytest.raises(StepError, match=r'key \["b"\] on timer.*unlucky') as caught:
                op.open(EpochTime(2, 20))
            assert json.loads(caught.value.row) == {"expiry_ms": 13, "time": "processing"}
            assert export(op).equals(before)
            continue
        answer = op.open(EpochTime(2, 20))
        assert [row[0] for row in rows_of(answer)] == ["a", "c"]
        assert [json.loads(letter.row)["expiry_ms"] for letter in answer.dead] == [13]
        assert len(op.table) == 0


def test_expired_state_is_purged_when_an_epoch_opens() -> None:
    class Fading(KeyedProcessor):
        output_schema = "n long"

        def init(self, handle: Any) -> None:
            self.value = handle.get_value_state("value", "n long", ttl="1s")
            self.items = handle.get_list_state("items", "n long", ttl=500)
            self.kept = handle.get_value_state("kept", "n long")

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
            for row in rows:
                self.value.update((row.n,))
                self.items.append_value((row.n,))
                if row.n == 7:
                    self.kept.update((7,))

    tester = ProcessorTester(Fading(), SCHEMA, "user")
    tester.feed([("ann", 1), ("bob", 7)])
    tester.set_time(499)
    tester.feed([("ann", 2)])
    tester.set_time(500)
    assert tester.peek("items", "ann") == [(2,)]
    assert tester.peek("items", "bob") == []
    tester.restart()
    tester.set_time(1000)
    assert tester.peek("value", "ann") == (2,)
    assert tester.peek("value", "bob") is None
    assert tester.keys_held == 2
    tester.set_time(1499)
    assert tester.keys_held == 1
    assert tester.peek("kept", "bob") == (7,)
