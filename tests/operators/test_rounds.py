"""Epochs of many rounds, for all kinds of steps.

State and deltas are those of one round, a round emits no more than it changed, and a rollback goes back
through several cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.host.parted import PartedOperator
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.join.bounds import Interval, InWindow, Regular
from penstock.operators.join.plan import JoinPlan
from penstock.operators.operator import CHANGE, Answer, EpochTime, Operator, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.state.store.merging import newest, whole
from penstock.state.table import bags, patches, table
from penstock.state.variables import collection_cells
from tests.operators.join_trials import OneStream
from tests.operators.trials import Row, bag, net
from tests.operators.window_trials import AGGREGATES, SCHEMA, when
from tests.trials.event_rows import CLICKS
from tests.trials.own_aggregates import OWN
from tests.trials.own_processors import Histogram

EPOCHS = 4
SLOTS = 8
SIGNED = pa.schema([*SCHEMA, (CHANGE, pa.int8())])
OBJECTS = {
    "first": ps.first("s", by="at"),
    "last": ps.last("v", by="at"),
    "about": ps.approx_distinct("s", precision=4),
    "some": ps.count_distinct("v"),
}


class Everything(KeyedProcessor):
    """A processor with all kinds of state, with and without a TTL, and timers of both kinds."""

    output_schema = "k string, n long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.get_value_state("total", "n long, s string")
        self.short = handle.get_value_state("short", "n long", 30)
        self.list = handle.get_list_state("list", "n long")
        self.short_list = handle.get_list_state("short_list", "n long", 30)
        self.map = handle.get_map_state("map", "n long", "seen long")
        self.short_map = handle.get_map_state("short_map", "n long", "seen long", 30)

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
        for row in rows:
            n = row.v or 0
            total = (self.total.get() or (0, ""))[0]
            self.total.update((total + n, row.s))
            self.short.update((n,))
            self.list.append_value((n,))
            self.short_list.append_value((n,))
            for pairs in (self.map, self.short_map):
                seen = pairs.get_value((n,)) or (0,)
                pairs.update_value((n,), (seen[0] + 1,))
            if n == 3:
                self.map.remove_key((1,))
            self.handle.register_timer(timers.processing_time_ms + 15)
            self.handle.register_timer(int(row.at.timestamp() * 1000) + 10, "event")
            yield (key[0], total + len(list(self.list.get())))

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Any:
        if expired.kind == "event" and expired.expiry_ms % 5 == 0:
            self.list.clear()
            self.map.clear()
        yield (key[0], -expired.expiry_ms)


class InBatches(KeyedProcessor):
    """A processor that keeps a sum per key, with `handle_batch`."""

    output_schema = "k string, n long"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long", 30)

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        known = [row["n"] if row else 0 for row in self.total.get_many(batch).to_pylist()]
        sums = [n + (v or 0) for n, v in zip(known, batch["v"].to_pylist(), strict=True)]
        self.total.update_many(batch, pa.record_batch({"n": pa.array(sums, pa.int64())}))
        return pa.record_batch({"k": batch["k"], "n": pa.array(sums, pa.int64())})


def row_of(rng: np.random.Generator, epoch: int) -> Row:
    return {
        "k": f"k{rng.integers(6)}",
        "j": int(rng.integers(2)),
        "at": when(10 * epoch + int(rng.integers(-4, 12))),
        "v": None if rng.random() < 0.1 else int(rng.integers(0, 5)),
        "s": str(rng.choice(["", "x", "yy"])),
    }


def signed(rows: list[list[Row]]) -> list[list[Row]]:
    """Each row put in, and most of them taken back, some in the next epoch."""
    epochs = []
    for at, some in enumerate(rows):
        back = [{**row, CHANGE: -1} for row in (rows[at - 1][3:] if at else [])]
        epochs.append([{**row, CHANGE: 1} for row in some] + back)
    return epochs


@dataclass(frozen=True)
class Case:
    plan: StepPlan
    rows: Callable[[list[list[Row]]], list[list[Row]]] = lambda rows: rows
    once: tuple[str, ...] = ()
    """Columns by which only the last row of an epoch's rounds counts; empty if all rows count."""


def joined(how: Any, bound: Any, **options: Any) -> Case:
    sides = [pa.schema([(n, SCHEMA.field(n).type) for n in names.split()])
             for names in ("k at v", "k at s")]  # fmt: skip
    stream = OneStream(JoinPlan(sides[0], sides[1], (("k", "k"),), how, bound, **options))

    def rows(epochs: list[list[Row]]) -> list[list[Row]]:
        return [[stream.row((at % 2, row)) for at, row in enumerate(some)] for some in epochs]

    return Case(stream, rows)


def windowed(window: Any, emit: Any, lateness_ms: int = 0, on: str | None = "at") -> Case:
    aggregates = dict(AGGREGATES)
    if window.kind == "session":
        del aggregates["values"]  # its order in a combined state depends on what else is combined
    plan = WindowPlan(SCHEMA, ["k"], aggregates, window, on, lateness_ms, emit)
    return Case(plan, once=("k", "window_start") if emit == "update" else ())


CASES = {
    "aggregate": Case(AggregatePlan(SCHEMA, ["k", "j"], AGGREGATES | OBJECTS), once=("k", "j")),
    "aggregate changes": Case(AggregatePlan(SCHEMA, ["k"], AGGREGATES | OBJECTS, emit="changes")),
    "signed": Case(
        AggregatePlan(
            SIGNED, ["k", "v"], {"n": ps.count(), "t": ps.sum("j")}, emit="changes", nulls=True
        ),
        signed,
    ),
    "own aggregates": Case(AggregatePlan(SCHEMA, ["k"], OWN), once=("k",)),
    "own aggregates' changes": Case(
        WindowPlan(SCHEMA, ["k"], OWN, hopping("20ms", "10ms"), "at", 5, "changes")
    ),
    "tumbling": windowed(tumbling("10ms"), "close"),
    "tumbling late": windowed(tumbling("10ms"), "close", 12),
    "tumbling by day": windowed(tumbling("10ms", clock="processing"), "close", on=None),
    "hopping update": windowed(hopping("20ms", "10ms"), "update", 5),
    "hopping changes": windowed(hopping("20ms", "10ms"), "changes", 5),
    "session": windowed(session_window("5ms"), "close"),
    "session late": windowed(session_window("5ms"), "close", 12),
    "session changes": windowed(session_window("5ms"), "changes", 12),
    "top": Case(TopPlan(SCHEMA, ["k"], 2, ["v desc", "at"], rank="place")),
    "top of windows": Case(TopPlan(SCHEMA, ["k"], 2, "v", window=tumbling("10ms"), on="at")),
    "top until": Case(TopPlan(SCHEMA, ["j"], 3, "v desc", until="at", emit="changes")),
    "distinct": Case(DistinctPlan(SCHEMA, ["k", "v"], nulls=True)),
    "distinct ttl": Case(DistinctPlan(SCHEMA, ["k"], ttl_ms=15)),
    "distinct in windows": Case(DistinctPlan(SCHEMA, ["k"], window=tumbling("10ms"), on="at")),
    "join": joined("inner", Regular()),
    "left join ttl": joined("left", Regular(25)),
    "interval join": joined("left", Interval("at", "at", -3, 6)),
    "window join": joined("left", InWindow(tumbling("10ms"), "at", "at"), distinct=True),
    "merging processor": Case(
        ProcessPlan(CLICKS, ["k"], Histogram()),
        lambda epochs: [
            [{"k": int(row["k"][1:]), "g": 0, "v": row["v"] or 0, "ts": row["at"]} for row in some]
            for some in epochs
        ],
        once=("k",),
    ),
    "processor": Case(ProcessPlan(SCHEMA, ["k"], Everything())),
    "batches": Case(ProcessPlan(SCHEMA, ["k"], InBatches())),
}


class Run:
    """A run of a step through the same epochs, in one round per epoch or in many."""

    def __init__(self, case: Case, rounds: bool, parts: int = 1) -> None:
        self.case, self.rounds = case, rounds
        rng = np.random.default_rng(5)
        drawn = [[row_of(rng, epoch) for _ in range(25)] for epoch in range(EPOCHS)]
        self.rows = case.rows(drawn)
        make: Callable[[], Operator] = lambda: case.plan.operator(SLOTS, "step", "fail")  # noqa: E731
        self.operator: Operator = make()
        if parts > 1:
            self.operator = PartedOperator(make, parts, workers=1, chunk_rows=1 << 10)
        self.table = self.operator.table

    def epoch(self, epoch: int) -> tuple[list[Row], pa.Table]:
        """The output rows of an epoch, and its delta; the table is cut."""
        operator, rows = self.operator, list[Row]()

        def took(*answers: Answer) -> None:
            rows.extend(r for a in answers for b in a.batches for r in b.to_pylist())

        time = EpochTime(epoch, 10 * epoch, 10 * epoch - 3 if epoch else None)
        if not self.rounds:
            took(operator.open(time))
        for kind, batches in self._sent(epoch, time):
            if self.rounds:
                operator.begin(time)
                took(operator.fire())
            took(operator.apply(kind, batches))
            if self.rounds:
                took(operator.close())
                self.table.step()
                assert not len(self.table.touched())
        if not self.rounds:
            took(operator.close())
        delta = self.table.delta()
        self.table.cut()
        return rows, delta

    def contents(self) -> list[Row]:
        whole = self.table.export(self.table.entries_in(np.arange(SLOTS)))
        return sorted(whole.to_pylist(), key=lambda row: str(row["__key"]))

    def _sent(self, epoch: int, time: EpochTime) -> list[tuple[str, list[pa.RecordBatch]]]:
        plan, rows = self.case.plan, self.rows[epoch]
        sent = []
        for start in range(0, len(rows), 4):
            sender = plan.sender(time)
            batch = pa.RecordBatch.from_pylist(rows[start : start + 4], plan.inputs[0])
            batches = [out.batch for out in sender.add(0, batch)]
            kind, rest = sender.finish()
            sent.append((kind, batches + [out.batch for out in rest]))
        return sent


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make patches of small collections too, and tidy up whenever possible."""
    for module in (bags, patches, collection_cells):
        monkeypatch.setattr(module, "SMALL", 2)
    for module in (bags, table):
        monkeypatch.setattr(module, "_FEW", 4)


def sums(case: Case, rows: list[Row]) -> Counter[Any]:
    """The net result of rows."""
    if case.plan.output.names[-1] == CHANGE:
        return net(rows)
    if case.once:
        return bag(list({tuple(row[name] for name in case.once): row for row in rows}.values()))
    return bag(rows)


def rows_by_key(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: str(row["__key"]))


@pytest.mark.parametrize("name", CASES)
def test_many_rounds_leave_what_one_does(name: str) -> None:
    case = CASES[name]
    one, many, parted = Run(case, False), Run(case, True), Run(case, True, parts=3)
    outputs: list[list[Row]] = [[], [], []]
    deltas = []
    for epoch in range(EPOCHS):
        for at, run in enumerate((one, many, parted)):
            rows, delta = run.epoch(epoch)
            outputs[at] += rows
            if run is one:
                expected = delta
            elif run is many:
                assert delta.to_pylist() == expected.to_pylist()
            else:
                assert rows_by_key(delta) == rows_by_key(expected)
            assert run.contents() == one.contents()
            if epoch % 2:
                run.table.settle()
        deltas.append(expected)
        assert sums(case, outputs[1]) == sums(case, outputs[0]) == sums(case, outputs[2])
    stored = whole(newest(deltas[::-1], one.table.schema, one.table.codec))
    assert rows_by_key(stored) == one.contents()
    assert sum(map(len, outputs)), "there must be output"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_rollback_goes_back_through_several_cuts(name: str, parts: int) -> None:
    run = Run(CASES[name], True, parts)
    run.epoch(0)
    run.table.settle()
    before = run.contents()
    first = [run.epoch(epoch) for epoch in (1, 2)]
    after = run.contents()
    for epochs in ((3,), (), (1,)):
        for epoch in epochs:
            run.epoch(epoch)
        run.operator.rollback()
        assert run.table.sealed
        assert run.contents() == before
    again = [run.epoch(epoch) for epoch in (1, 2)]
    assert run.contents() == after
    for (rows, delta), (rows_again, delta_again) in zip(first, again, strict=True):
        assert bag(rows) == bag(rows_again)
        assert rows_by_key(delta) == rows_by_key(delta_again)


@pytest.mark.parametrize("name", CASES)
def test_due_columns_are_those_that_fire_looks_at(name: str) -> None:
    run = Run(CASES[name], True)
    run.epoch(0)
    operator = run.operator
    assert set(operator.due(EpochTime(1, 5))) <= set(operator.due_columns)
    for column in operator.due_columns:
        limit = operator.due(EpochTime(1, 10**6, 10**6))[column]
        least = run.table.least(column)
        values = run.table.values(column, run.table.entries_in(np.arange(SLOTS)))
        assert least == min(values[values > 0], default=None)
        assert least is None or least <= limit


def test_what_has_expired_is_looked_for_now_and_then() -> None:
    operator = ProcessPlan(SCHEMA, ["k"], Everything()).operator(SLOTS, "step", "fail")
    rows = [{"k": "a", "j": 0, "at": when(10**6), "v": 1, "s": ""}]
    operator.open(EpochTime(0, 0))
    operator.apply("rows", [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    operator.table.step()
    looked = []
    for now_ms in (29, 31, 99, 100, 131, 199, 200):
        operator.begin(EpochTime(0, now_ms))
        looked.append(bool(len(operator.table.touched())))
        operator.table.step()
    assert looked == [False, False, False, True, False, False, False]
