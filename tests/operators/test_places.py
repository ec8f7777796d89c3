"""Places: the order of output does not depend on the number of hosts, pieces, moves and mishaps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.operators import places as module
from penstock.operators.aggregate import aggregates
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.join import interval_join
from penstock.operators.operator import Answer, EpochTime, StepPlan
from penstock.operators.places import FirstPlaces, Places, in_order, split_serial, with_serial
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.tagged import INPUT
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window
from tests.operators.place_trials import Epoch, EpochRows, Setting, run
from tests.trials.event_ledger import CASES
from tests.trials.event_rows import CLICKS, click, offer
from tests.trials.ledger import CHAIN, OPS
from tests.trials.plain_rows import Row, of_schema

KEYS = 12
SETTINGS = {
    "hosts": Setting(3, moves=True, rolled_back=True),
    "pieces": Setting(chunk=1),
    "pieces on hosts": Setting(2, chunk=3, undone=True),
}
STEPS: dict[str, StepPlan] = {name: CASES[name].flow.keyed[0].plan for name in CASES}


def epochs_of(name: str, partitions: int = 2, epochs: int = 4, rows: int = 24) -> list[Epoch]:
    """Epochs with a watermark that follows the rows; the last one ends the input."""
    pick, made = random.Random(name), []
    case = CASES[name]
    for number in range(epochs):
        now_ms = 2_000 * number
        channels: list[list[Row]] = [[] for _ in range(partitions)]
        for row in case.rows(pick, rows, now_ms, (1_500, 4_000)):
            channels[pick.randrange(partitions)].append(row)
        final = number == epochs - 1
        made.append(Epoch(EpochTime(number, now_ms, now_ms - 3_000, final), channels))
    return made


@cache
def on_one_host(name: str) -> list[EpochRows]:
    return run(STEPS[name], epochs_of(name), Setting())


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_the_same_order(name: str, setting: Setting) -> None:
    expected = on_one_host(name)
    assert run(STEPS[name], epochs_of(name), setting) == expected
    assert sum(len(rows) for partitions in expected for rows in partitions) > 15


@pytest.mark.parametrize("emit", ["update", "changes"])
@pytest.mark.parametrize("kind", ["aggregate", "window", "session"])
def test_what_an_epoch_gives_is_ordered_by_the_first_rows_of_its_keys(kind: str, emit: Any) -> None:
    """That holds even if channels close in another order."""
    counts = {"n": aggregates.count()}
    plan: StepPlan = AggregatePlan(CLICKS, ["k"], counts, emit=emit)
    if kind != "aggregate":
        window = hopping("2s", "1s") if kind == "window" else session_window("1s")
        plan = WindowPlan(CLICKS, ["k"], counts, window, "ts", 60_000, emit)
    pick = random.Random(3)
    rows = [click(pick, pick.randrange(8_000)) for _ in range(90)]
    operators = [plan.operator(8, "step", "fail", True) for _ in range(2)]
    channels = []
    for partition in range(3):
        sender = plan.sender(EpochTime(0, 0))
        some = of_schema(rows[30 * partition : 30 * (partition + 1)], CLICKS)
        sent = list(sender.add(0, some))
        kind_of, rest = sender.finish()
        numbered, serial = [], 0
        for batch, _ in [*sent, *rest]:
            numbered.append(with_serial(batch, serial))
            serial += batch.num_rows
        channels.append((kind_of, *split_serial(numbered, partition)))
    outputs = []
    for operator, order in zip(operators, ((0, 1, 2), (2, 0, 1)), strict=True):
        operator.open(EpochTime(0, 0))
        for channel in order:
            operator.apply(*channels[channel])
        answer = operator.close()
        (merged,) = in_order(answer.batches, answer.places)
        outputs.append(merged.to_pylist())
    assert outputs[0] == outputs[1]
    keys = [row["k"] for row in rows]
    firsts = [keys.index(row["k"]) for row in outputs[0]]
    if kind == "aggregate":
        assert firsts == sorted(firsts)
        assert len(set(firsts)) > 5


def test_pairs_of_one_row_come_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is the same whether a join compares all rows of a key or sorts them."""
    pick = random.Random(9)
    makers = ((0, click), (1, offer)) * 40
    epochs = [
        Epoch(
            EpochTime(number, 0),
            [[make(pick, pick.randrange(4_000)) | {INPUT: input} for input, make in makers]],
        )
        for number in range(3)
    ]
    outputs = []
    for most in (0, 1 << 60):
        monkeypatch.setattr(interval_join, "_CANDIDATES", most)
        monkeypatch.setattr(interval_join, "_FEW_CANDIDATES", most)
        outputs.append(run(STEPS["interval"], epochs, Setting()))
    assert outputs[0] == outputs[1]


# -- processors


def orders(rows: int, seed: int = 5) -> list[Row]:
    pick = random.Random(seed)
    return [
        {"who": f"who-{pick.randrange(KEYS)}", "op": pick.choice(OPS), "v": pick.randrange(100)}
        for _ in range(rows)
    ]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_rows_of_a_processor_come_as_those_that_it_read(setting: Setting) -> None:
    plan = CHAIN.keyed[0].plan
    epochs = [
        Epoch(EpochTime(number, 1000 * number), [orders(50, number), orders(20, 50 + number)])
        for number in range(6)
    ]
    outputs = run(plan, epochs, setting)
    assert outputs == run(plan, epochs, Setting())
    alarms = 0
    for epoch, out in zip(epochs, outputs, strict=True):
        for partition, (came, went) in enumerate(zip(epoch.channels, out, strict=True)):
            fired = len(went) - len(came)
            times = [int(row[1].removeprefix("alarm ")) for row in went[:fired]]
            assert times == sorted(times)
            assert not times or partition == 0
            assert [row[:2] for row in went[fired:]] == [(r["who"], r["op"]) for r in came]
            alarms += fired
    assert alarms > 5


class Pairs(KeyedProcessor):
    """A processor that emits `v` rows per row, some after it has read on, and fails if `v` is negative."""

    output_schema = "who string, v long, i int"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            if row.v < 0:
                raise ValueError("negative")
            for i in range(row.v):
                yield (key[0], row.v, i)


class Listed(KeyedProcessor):
    """A processor that reads all rows, and then returns one row for each pair of them."""

    output_schema = "who string, v long, i int"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> list[Any]:
        return [(key[0], row.v, len(key[0])) for row in rows if row.v >= 0]


class Doubled(KeyedProcessor):
    """A processor that returns as many rows as it gets, or only the first odd row if there is one."""

    output_schema = "who string, v long, i int"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> Any:
        v = batch.column("v").to_numpy()
        columns = {"who": batch.column("who"), "v": batch.column("v"), "i": pa.array(v % 7)}
        doubled = pa.RecordBatch.from_pydict(columns)
        odd = np.flatnonzero(v % 2)
        return doubled if not len(odd) else doubled.take(pa.array(odd[:1]))


ORDERS = CHAIN.sources[0].schema


def applied(processor: KeyedProcessor, rows: list[Row], on_error: Any = "fail") -> Answer:
    operator = ProcessPlan(ORDERS, ["who"], processor).operator(8, "step", on_error, True)
    operator.open(EpochTime(0, 0))
    batch = pa.RecordBatch.from_pylist(rows, ORDERS)
    return operator.apply("rows", [batch], Places.of_records(4, 10 * np.arange(len(rows))))


def placed_rows(answer: Answer) -> list[tuple[int, tuple[Any, ...]]]:
    rows = [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()]
    where = Places.joined(answer.places)
    assert set(where.major.tolist()) <= {4}
    return sorted(zip(where.minor.tolist(), rows, strict=True), key=lambda placed: placed[0])


def some(*rows: tuple[str, int]) -> list[Row]:
    return [{"who": who, "op": "", "v": v} for who, v in rows]


def test_many_rows_of_one_stay_together() -> None:
    rows = some(("a", 2), ("b", 1), ("a", 0), ("b", 3), ("a", 1))
    placed = placed_rows(applied(Pairs(), rows))
    assert placed == [
        (10 * at, (row["who"], row["v"], i)) for at, row in enumerate(rows) for i in range(row["v"])
    ]


def test_a_list_belongs_to_the_last_row_read() -> None:
    rows = some(("a", 2), ("b", 1), ("a", 5), ("b", -1))
    placed = placed_rows(applied(Listed(), rows))
    assert placed == [(20, ("a", 2, 1)), (20, ("a", 5, 1)), (30, ("b", 1, 1))]


def test_rows_set_aside_leave_others_where_they_were() -> None:
    rows = some(("a", 1), ("b", 1), ("a", -1), ("a", 2), ("b", -3), ("a", -4), ("a", 1))
    answer = applied(Pairs(), rows, "dead_letter")
    assert placed_rows(answer) == [
        (0, ("a", 1, 0)), (10, ("b", 1, 0)), (30, ("a", 2, 0)), (30, ("a", 2, 1)), (60, ("a", 1, 0)),
    ]  # fmt: skip
    assert len(answer.dead) == 3


def test_a_batch_is_placed_row_by_row_or_at_its_last_row() -> None:
    even = some(*((f"who-{i % KEYS}", 2 * i) for i in range(40)))
    placed = placed_rows(applied(Doubled(), even))
    assert [row[1] for _, row in placed] == [2 * i for i in range(40)]
    assert [at for at, _ in placed] == [10 * i for i in range(40)]
    one_key = some(("a", 2), ("a", 3), ("a", 5))
    assert placed_rows(applied(Doubled(), one_key)) == [(20, ("a", 3, 3))]


# -- the functions behind it


def test_records_without_places_are_refused() -> None:
    operator = CHAIN.keyed[0].plan.operator(8, "step", "fail", True)
    operator.open(EpochTime(0, 0))
    batch = pa.RecordBatch.from_pylist(some(("a", 1)), ORDERS)
    with pytest.raises(ProtocolError, match="places"):
        operator.apply("rows", [batch])
    assert operator.apply("rows", []).batches == []


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=6), max_size=4),
    st.booleans(),
)
def test_rows_are_put_in_order(parts: list[list[tuple[int, int]]], large: bool) -> None:
    rows = [(place, number) for number, place in enumerate(p for part in parts for p in part)]
    numbers = iter(range(len(rows)))
    batches, places = [], []
    for part in parts:
        batches.append(pa.RecordBatch.from_pydict({"n": pa.array([next(numbers) for _ in part])}))
        pairs = np.array(part, np.int64).reshape(-1, 2)
        places.append(Places(pairs[:, 0].copy(), pairs[:, 1].copy()))
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(module, "_ONE_BATCH", 0)
            patch.setattr(module, "_PIECE", 3)
        merged = in_order(batches, places)
    assert [n for b in merged for n in b.column("n").to_pylist()] == [n for _, n in sorted(rows)]
    assert large or len(merged) <= 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 9))))
def test_the_first_place_of_an_entry(notes: list[tuple[int, int, int]]) -> None:
    first, least = FirstPlaces(), dict[int, tuple[int, int]]()
    first.note(np.arange(6), np.full(6, 7, np.uint64), Places.of_records(-1, np.zeros(6, np.int64)))
    first.clear()
    other = Places.of_records(-1, np.zeros(3, np.int64))
    first.note(np.arange(3), np.full(3, 8, np.uint64), other)
    for entry, partition, serial in notes:
        place = Places.of_records(partition, np.array([serial]))
        first.note(np.array([entry]), np.array([entry + 20], np.uint64), place)
        least[entry] = min(least.get(entry, (99, 99)), (partition, serial))
    places = first.of(np.array(sorted(least), np.int64))
    pairs = list(zip(places.major.tolist(), places.minor.tolist(), strict=True))
    assert pairs == [least[entry] for entry in sorted(least)]


def test_serial_numbers_go_with_rows_that_have_no_columns() -> None:
    bare = pa.RecordBatch.from_pydict({"n": [1, 2, 3]}).select([])
    (back,), where = split_serial([with_serial(bare, 7)], 2)
    assert (back.num_rows, back.num_columns) == (3, 0)
    assert repr(where) == "Places([(2, 7), (2, 8), (2, 9)])"
    assert split_serial([bare], 2) == ([bare], None)
