"""Flows give the same results with burst workers as without: rows, state, late rows, errors."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import PenstockError
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import InWindow, JoinPlan
from penstock.operators.operator import OnError, StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from penstock.state.store.reader import StateReader
from penstock.testing.thread_hosts import open_store
from tests.offload.in_process import ANYHOW, WELL, Chances, helped
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.plain_rows import Row, plain

pytestmark = pytest.mark.timeout(120)

SLOTS = 8
DELAY_MS = 1_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us"))])
TOTALS = {"n": ps.count(), "total": ps.sum("v"), "high": ps.max("v")}
ENDS = {"first": ps.first("v"), "last": ps.last("v")}


def halved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drops some rows, and changes the key of others."""
    keys = pc.utf8_slice_codeunits(batch.column("k"), 0, 2)
    kept = batch.set_column(0, SCHEMA.field("k"), keys)
    return kept.filter(pc.not_equal(kept.column("v"), 3))


def twice(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch, shifted(batch)]


def shifted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Works row by row, so that its output has the order of its input, however that is cut."""
    return batch.set_column(1, SCHEMA.field("v"), pc.add(batch.column("v"), 100))


def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 13 in batch.column("v").to_pylist():
        raise ValueError("thirteen")
    return batch


def negative(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("total")
    field = batch.schema.field(place)
    return batch.set_column(place, field, pc.negate(batch.column(place)))


def mapped(function: Any, schema: pa.Schema = SCHEMA, *reads: int) -> MapStep:
    return MapStep(f"{function.__name__}-map", function, schema, schema, reads)


def keyed(id: str, plan: StepPlan, *reads: int) -> KeyedStep:
    return KeyedStep(id, SLOTS, plan, reads=reads)


def flow_of(*steps: Step, on_error: OnError = "fail", **options: Any) -> FlowPlan:
    return FlowPlan((SourcePlan(SCHEMA, "ts", DELAY_MS),), steps, on_error, **options)


def windows(window: Any, **options: Any) -> StepPlan:
    return WindowPlan(SCHEMA, ["k"], TOTALS, window, "ts", **options)


SUMS = AggregatePlan(SCHEMA, ["k"], TOTALS)
TUMBLING = windows(tumbling("2s"))
SELF = JoinPlan(SCHEMA, SCHEMA, (("k", "k"),), "inner", InWindow(tumbling("1s"), "ts", "ts"))
FLOWS: dict[str, FlowPlan] = {
    "maps before and behind": flow_of(
        mapped(halved), mapped(twice), keyed("sums", SUMS), mapped(negative, SUMS.output)
    ),
    "maps alone": flow_of(mapped(halved), mapped(shifted)),
    "maps in order": flow_of(mapped(halved), mapped(shifted), ordered=True),
    "windows behind a map": flow_of(mapped(halved), keyed("windows", windows(hopping("3s", "1s")))),
    "sessions": flow_of(keyed("sessions", windows(session_window("500ms")))),
    "two steps": flow_of(
        keyed("windows", TUMBLING),
        mapped(negative, TUMBLING.output),
        keyed("again", AggregatePlan(TUMBLING.output, ["n"], {"sum": ps.sum("total")})),
    ),
    "first and last": flow_of(mapped(twice), keyed("ends", AggregatePlan(SCHEMA, ["k"], ENDS))),
    "first of a window": flow_of(
        keyed("ends", WindowPlan(SCHEMA, ["k"], ENDS, tumbling("1s"), "ts"))
    ),
    "distinct": flow_of(mapped(halved), keyed("once", DistinctPlan(SCHEMA, ["k", "v"]))),
    "top": flow_of(keyed("top", TopPlan(SCHEMA, ["k"], 2, "v desc, ts"))),
    "of all": flow_of(keyed("all", AggregatePlan(SCHEMA, [], TOTALS))),
    "a map with two readers": flow_of(
        mapped(halved),
        keyed("join", SELF, 1, 1),
        keyed("sums", AggregatePlan(SELF.output, ["k"], {"n": ps.count()})),
    ),
    "bad rows": flow_of(mapped(picky), keyed("sums", SUMS), on_error="dead_letter"),
}
BY_ARRIVAL = ("first and last", "first of a window", "distinct")
"""Flows whose output depends on which of a key's rows came first, and so on which task did."""


def some_rows(pick: random.Random, count: int, now_ms: int, nulls: bool) -> list[Row]:
    return [
        {
            "k": None if nulls and pick.random() < 0.05 else f"k{pick.randrange(30)}",
            "v": pick.randrange(20),
            "ts": now_ms - pick.randrange(2 * DELAY_MS),
        }
        for _ in range(count)
    ]


def epochs_of(name: str) -> list[list[list[Row]]]:
    """The rows of each epoch, by partition."""
    pick = random.Random(name)
    partitions = 1 if name in BY_ARRIVAL else 3
    return [
        [some_rows(pick, 40, 10_000 + 900 * number, name == "bad rows") for _ in range(partitions)]
        for number in range(6)
    ]


def state(on: MiniCluster) -> dict[str, Counter[str]]:
    """Content of the store, independent of the order of entries and of list items."""
    held: dict[str, Counter[str]] = {}
    for step in on.flow.keyed:
        table = step.operator().table
        reader = StateReader(open_store(on.store), step.id, table.codec, table.schema, table.slots)
        reader.refresh(on.epoch - 1)
        counts: Counter[str] = Counter()
        for slot in range(table.slots):
            after: int | None = None
            while True:
                piece, after = reader.scan(slot, after, 1000)
                counts.update(_text(row) for row in piece.to_pylist())
                if after is None:
                    break
        held[step.id] = counts
    return held


def _text(row: Row) -> str:
    return str(
        [
            (name, sorted(map(str, value)) if isinstance(value, list) else value)
            for name, value in row.items()
        ]
    )


def letters(on: MiniCluster) -> Counter[str]:
    files = Path(on.store).glob("dead_letters/*")
    return Counter(line for file in files for line in file.read_text().splitlines())


def story(flow: FlowPlan, store: Path, epochs: list[list[list[Row]]], by: Any = None) -> list[Any]:
    """All visible results of a flow."""
    options = {} if by is None else {"helped": by}
    with cluster(flow, str(store), hosts=2, **options) as on:
        seen: list[Any] = []
        for parts in epochs:
            on.now_ms += 1_000
            on.run(parts)
        for closing in range(1, 1 + max(flow.depths.values(), default=0)):
            on.run([[], []], closing)
        for epoch in range(on.epoch):
            late = {where: plain(rows) for where, rows in on.late.get(epoch, {}).items()}
            rows = on.sink[epoch] if flow.ordered or not flow.keyed else on.output(epoch)
            seen.append((rows, late))
        return [*seen, state(on), letters(on)]


@pytest.mark.parametrize(
    "chances",
    [pytest.param(WELL, marks=pytest.mark.slow), ANYHOW],
    ids=["well", "anyhow"],
)
@pytest.mark.parametrize("name", FLOWS)
def test_with_burst_workers_and_without(tmp_path: Path, name: str, chances: Chances) -> None:
    flow, epochs = FLOWS[name], epochs_of(name)
    alone = story(flow, tmp_path / "alone", epochs)
    deadline_ms = 10_000 if chances is WELL else 150
    with helped(flow, chances, seed=len(name), deadline_ms=deadline_ms) as by:
        by.chance = 1.0
        together = story(flow, tmp_path / "helped", epochs, by)
    assert together == alone
    assert by.workers.did["answer"] >= 3


@pytest.mark.parametrize(
    ("name", "bad", "error"),
    [
        ("bad rows", {"k": "k1", "v": 13, "ts": 10_000}, "StepError"),
        ("maps before and behind", {"k": None, "v": 1, "ts": 10_000}, "NullKeyError"),
        ("sessions", {"k": "k1", "v": 1, "ts": None}, "NullKeyError"),
    ],
)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_errors_are_the_same(tmp_path: Path, name: str, bad: Row, error: str, seed: int) -> None:
    """The error does not depend on where the bad row went."""
    flow = FlowPlan(FLOWS[name].sources, FLOWS[name].steps)
    good = [row for row in some_rows(random.Random(seed), 30, 10_000, False) if row["v"] != 13]
    raised_errors: list[tuple[str, object]] = []
    with helped(flow, WELL, seed) as by:
        by.chance = 1.0
        for options in ({}, {"helped": by}):
            store = tmp_path / str(len(raised_errors))
            with cluster(flow, str(store), **options) as on, pytest.raises(Exception) as raised:  # noqa: PT011
                on.run([[*good, bad], good])
            assert isinstance(raised.value, PenstockError)
            raised_errors.append((type(raised.value).__name__, raised.value.facts()))
    assert raised_errors[0] == raised_errors[1]
    assert raised_errors[0][0] == error
