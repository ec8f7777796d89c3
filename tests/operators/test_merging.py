"""Processors that merge partial states: what they may do, and that parts make no difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import FlowError, StepError
from penstock.operators.operator import PARTIALS, ROWS, EpochTime
from penstock.operators.process import partials
from penstock.operators.process.step import ProcessPlan
from penstock.testing import ProcessorTester, assert_survives, source
from tests.operators.trials import MISHAPS, Epoch, Stages, bag, run
from tests.trials.own_aggregates import OWN
from tests.trials.own_processors import Histogram

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Visits(ps.KeyedProcessor):
    """All kinds of state, a TTL and timers; it fails on 13."""

    output_schema = "k string, n long, recent long, values array<long>"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.get_value_state("n", "n long")
        self.recent = handle.get_value_state("recent", "n long", ttl=15)
        self.values = handle.get_list_state("values", "v long")
        self.kinds = handle.get_map_state("kinds", "v long", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            for state in (self.n, self.recent):
                state.update(((state.get() or (0,))[0] + 1,))
            self.values.append_value((row.v,))
            self._saw(row.v, 1)
            self.handle.register_timer(timers.processing_time_ms + 10)
            if row.v == 13:
                raise ValueError("13 is unlucky")

    def merge(self, other: Visits) -> None:
        for mine, theirs in ((self.n, other.n), (self.recent, other.recent)):
            mine.update(((mine.get() or (0,))[0] + theirs.get()[0],))
        for value in other.values.get():
            self.values.append_value(value)
        for (v,), (n,) in other.kinds.iterator():
            self._saw(v, n)

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        values = sorted(row.v for row in self.values.get())
        assert sum(n for (n,) in self.kinds.values()) == len(values)
        yield key[0], self.n.get().n, (self.recent.get() or (0,))[0], values

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield key[0], None, expired.expiry_ms, None

    def _saw(self, v: int, n: int) -> None:
        self.kinds.update_value((v,), ((self.kinds.get_value((v,)) or (0,))[0] + n,))


PLAN = ProcessPlan(SCHEMA, ["k"], Visits())
rows = st.fixed_dictionaries({"k": st.sampled_from("abc"), "v": st.integers(0, 3)})


@st.composite
def epochs_of(draw: st.DrawFn) -> list[Epoch]:
    channels = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3)
    count = draw(st.integers(1, 4))
    return [
        Epoch(draw(channels), None, 7 * number, mishap=draw(st.sampled_from(MISHAPS)))
        for number in range(count)
    ]


@settings(max_examples=25)
@given(
    epochs_of(), st.sampled_from(["some", "all"]), st.integers(1, 5), st.sampled_from([2, 1 << 16])
)
def test_parts_make_no_difference(
    epochs: list[Epoch], stages: Stages, cut: int, enough: int
) -> None:
    """Neither two stages, nor partial states of few rows, nor mishaps."""
    usual = run(PLAN, epochs, cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partials, "_ENOUGH", enough)
        two = run(PLAN, epochs, cut, two_stage=stages)
    assert list(map(bag, map(_plain, two.rows))) == list(map(bag, map(_plain, usual.rows)))


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"values": str(row["values"])} for row in rows]


def batch(*pairs: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], SCHEMA)


def sent(plan: ProcessPlan, rows: pa.RecordBatch, two_stage: bool) -> tuple[str, pa.RecordBatch]:
    sender = plan.sender(EpochTime(0, 0), two_stage)
    outgoing = list(sender.add(0, rows))
    kind, rest = sender.finish()
    [made] = outgoing + list(rest)
    assert plan.sent_keys(made.batch).hashes.tolist() == made.hashes.tolist()
    return kind, made.batch


def test_a_hot_key_is_one_record() -> None:
    many = batch(*[("a", n % 4) for n in range(500)], ("b", 1))
    assert [sent(PLAN, many, two)[1].num_rows for two in (False, True)] == [501, 2]
    assert [sent(PLAN, many, two)[0] for two in (False, True)] == [ROWS, PARTIALS]


def test_rows_on_which_the_handler_fails_go_to_the_host() -> None:
    bad = batch(("a", 1), ("b", 13), ("b", 2), ("a", 3))
    kind, packed = sent(PLAN, bad, True)
    assert kind == PARTIALS
    for on_error in ("fail", "dead_letter"):
        operator = PLAN.operator(4, "visits", on_error)
        operator.open(EpochTime(0, 0))
        if on_error == "fail":
            with pytest.raises(
                StepError, match=r"Visits.handle_input_rows failed for key \[\"b\"\]"
            ):
                operator.apply(kind, [packed])
            continue
        answer = operator.apply(kind, [packed])
        assert [letter.row for letter in answer.dead] == ['{"k": "b", "v": 13}']
        made = operator.close().batches[0].to_pylist()
        assert {row["k"]: row["values"] for row in made} == {"a": [1, 3], "b": [2]}


def test_a_handler_that_emits_is_refused_where_it_runs() -> None:
    class Emits(Visits):
        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
            yield key[0], 1, 1, []

    class EmitsBatches(ps.KeyedProcessor):
        output_schema = "k string, v long"

        def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
            return batch

        def merge(self, other: EmitsBatches) -> None: ...

        def handle_merged(self, key: Any, timers: Any) -> None: ...

    for processor in (Emits(), EmitsBatches()):
        plan = ProcessPlan(SCHEMA, ["k"], processor)
        for stages in ("none", "all"):
            with pytest.raises(StepError, match="its handler emits rows"):
                run(plan, [Epoch([[{"k": "a", "v": 1}]])], two_stage=stages)


def test_an_error_in_merge_names_the_key() -> None:
    class Fails(Visits):
        def merge(self, other: Visits) -> None:
            raise ZeroDivisionError("oh")

    plan = ProcessPlan(SCHEMA, ["k"], Fails())
    with pytest.raises(
        StepError, match=r'Fails.merge failed for key \["a"\].*ZeroDivisionError: oh'
    ):
        run(plan, [Epoch([[{"k": "a", "v": 1}]])], two_stage="all")


def test_a_processor_that_can_never_emit_is_refused() -> None:
    class Silent(ps.KeyedProcessor):
        output_schema = "n long"

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None: ...

        def merge(self, other: Silent) -> None: ...

    class Odd(ps.KeyedProcessor):
        output_schema = "n long"

        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None: ...

        def handle_merged(self, key: Any, timers: Any) -> None: ...

    with pytest.raises(FlowError, match="neither handle_merged nor handle_expired_timer"):
        ProcessPlan(SCHEMA, ["k"], Silent())
    with pytest.raises(FlowError, match="but not merge"):
        ProcessPlan(SCHEMA, ["k"], Odd())


def test_a_crash_at_any_point_changes_no_row() -> None:
    clicks = ps.flow(source("k long, v long")).key_by("k", slots=8)
    epochs = [[(n % 3, n) for n in range(at, at + 7)] for at in (0, 5, 9)]
    for flow in (clicks.process(Histogram()), clicks.aggregate(emit="update", n=ps.count(), **OWN)):
        assert "host.applied" in assert_survives(flow, epochs)


def test_the_tester_feeds_rows_in_parts() -> None:
    tester = ProcessorTester(Visits(), SCHEMA, "k")
    assert tester.feed([("a", 1), ("a", 2)]) == [("a", 2, 2, [1, 2])]
    assert tester.feed([("a", 3), ("b", 4), ("a", 5)], parts=2) == [
        ("a", 4, 4, [1, 2, 3, 5]),
        ("b", 1, 1, [4]),
    ]
    assert tester.timers("a") == [10]
