"""Ordered flows: the same rows in the same order, on any hosts and whatever fails."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from penstock.faults import armed
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from tests.trials.cluster import SETTINGS, MiniCluster, Partitions, cluster
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import IN_TIME, EventTrial
from tests.trials.ledger import SLOTS, SUMS
from tests.trials.plain_rows import Row, values
from tests.trials.stories import random_turn
from tests.trials.trial import Mishap

EPOCHS = 4
GAP_MS = 2_000
SHOPS = pa.schema(
    [("p", pa.int64()), ("n", pa.int64()), ("who", pa.string()), ("item", pa.int64())]
)


class Numbered(KeyedProcessor):
    """Emits each row as often as its item says, with the number of rows of its key so far."""

    output_schema = "p long, n long, who string, item long, copy int, seen long"

    def init(self, handle: Any) -> None:
        self.seen = handle.get_value_state("seen", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (seen,) = self.seen.get() or (0,)
        for row in rows:
            seen += 1
            for copy in range(row.item % 3):
                yield (row.p, row.n, row.who, row.item, copy, seen)
        self.seen.update((seen,))


class Again(Numbered):
    """Emits each row of another `Numbered` once, with the number of rows of its key so far."""

    output_schema = "p long, n long, copy int, seen long, again long"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (seen,) = self.seen.get() or (0,)
        for row in rows:
            seen += 1
            yield (row.p, row.n, row.copy, row.seen, seen)
        self.seen.update((seen,))


def without_elevens(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([item != 11 for item in batch.column("item").to_pylist()]))


_FIRST = ProcessPlan(SHOPS, ["who"], Numbered())
_SECOND = ProcessPlan(_FIRST.output, ["item"], Again())
TWO_KEYS = FlowPlan(
    (SourcePlan(SHOPS),),
    (
        KeyedStep("first", SLOTS, _FIRST),
        MapStep("map", without_elevens, _FIRST.output, _FIRST.output),
        KeyedStep("second", SLOTS, _SECOND),
    ),
    ordered=True,
)


def shop_rows(epoch: int, partitions: int) -> list[list[Row]]:
    """Rows of keys that occur in all partitions, in both steps."""
    pick = random.Random(epoch)
    return [
        [
            {
                "p": p,
                "n": 1000 * epoch + n,
                "who": f"{pick.randrange(7)}",
                "item": pick.randrange(9 * partitions),
            }
            for n in range(40)
        ]
        for p in range(partitions)
    ]


TIMED = SHOPS.append(pa.field("at", pa.timestamp("us")))
_TIMED = ProcessPlan(TIMED, ["who"], Numbered())
BY_ARRIVAL = FlowPlan(
    (SourcePlan(TIMED, arrival="at"),),
    (
        KeyedStep("first", SLOTS, _TIMED, kind="process"),
        MapStep("map", without_elevens, _TIMED.output, _TIMED.output),
        KeyedStep("second", SLOTS, _SECOND),
    ),
    ordered=True,
    by_arrival=True,
)


def in_arrival_order(epochs: Sequence[Partitions]) -> list[list[tuple[Any, ...]]]:
    """The expected output of TWO_KEYS: row by row, in one thread."""
    seen: dict[Any, int] = {}
    out = []
    for parts in epochs:
        output = []
        for row in (row for part in parts for row in part):
            first = seen[row["who"]] = seen.get(row["who"], 0) + 1
            for copy in range(row["item"] % 3):
                if row["item"] != 11:
                    again = seen[row["item"]] = seen.get(row["item"], 0) + 1
                    output.append((row["p"], row["n"], copy, first, again))
        out.append(output)
    return out


@dataclass(frozen=True)
class World:
    """Conditions that must make no difference."""

    hosts: int = 1
    moves: bool = False
    mishaps: tuple[Mishap, ...] = ()
    reads: int = 1
    cores: int = 1


WORLDS = {
    "hosts": World(3),
    "moves on many cores": World(2, moves=True, cores=3),
    "faults": World(
        2, True, (Mishap("courier.sent", "die"), Mishap("host.applied", "die", 2)), reads=2
    ),
}


def ran(
    flow: FlowPlan, store: str, epochs: Sequence[Partitions], world: World, closings: int = 0
) -> list[list[tuple[Any, ...]]]:
    """The rows of each epoch in order, then those of the epochs after the end of input."""
    out = []
    many = replace(SETTINGS, host_cores=world.cores, chunk_rows=5)
    with cluster(flow, store, hosts=world.hosts, settings=many) as on:
        on.reads = world.reads
        for number, parts in enumerate([*epochs, *([[[]]] * closings)]):
            on.now_ms += GAP_MS
            if world.moves and number:
                _move(on, number)
            closing = max(0, number + 1 - len(epochs))
            with armed(*(mishap.fault(on) for mishap in world.mishaps)) as faults:
                on.run_through(parts, lambda: len(faults.fired), closing=closing)
            assert bool(faults.fired) == bool(world.mishaps)
            out.append([values(row) for row in on.sink[on.epoch - 1]])
    return out


def _move(on: MiniCluster, number: int) -> None:
    for step in on.flow.keyed:
        hosts = on.relocation.hosts(step.id)
        slots = {(3 * number + i) % SLOTS for i in range(SLOTS // 2)}
        on.relocation.move(step.id, slots, hosts[number % len(hosts)])


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_rows_of_all_partitions_are_processed_by_arrival(tmp_path: Path, world: World) -> None:
    epochs = [shop_rows(number, 3) for number in range(EPOCHS)]
    pick = random.Random(7)
    for parts in epochs:
        for part in parts:
            for row in part:
                row["at"] = datetime(2026, 1, 1) + timedelta(milliseconds=pick.randrange(60))
    by_time = [
        [sorted((row for part in parts for row in part), key=lambda row: (row["at"], row["p"]))]
        for parts in epochs
    ]
    assert ran(BY_ARRIVAL, str(tmp_path), epochs, world) == in_arrival_order(by_time)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_leave_in_the_order_of_arrival(tmp_path: Path, world: World, partitions: int) -> None:
    """Rows pass two steps with different keys and a map between them."""
    epochs = [shop_rows(number, partitions) for number in range(EPOCHS)]
    output = ran(TWO_KEYS, str(tmp_path), epochs, world)
    assert output == in_arrival_order(epochs)


def test_without_order_rows_come_host_by_host(tmp_path: Path) -> None:
    """A control: the same flow without `ordered` is not in order."""
    epochs = [shop_rows(number, 1) for number in range(EPOCHS)]
    output = ran(replace(TWO_KEYS, ordered=False), str(tmp_path), epochs, World(3))
    expected = in_arrival_order(epochs)
    assert output != expected
    assert [sorted(row[:3] for row in rows) for rows in output] == [
        sorted(row[:3] for row in rows) for rows in expected
    ]


def event_epochs(name: str) -> list[Partitions]:
    pick = random.Random(name)
    return [[CASES[name].rows(pick, 24, GAP_MS * number, (1_500,))] for number in range(EPOCHS)]


@cache
def on_one_host(name: str) -> list[list[tuple[Any, ...]]]:
    with TemporaryDirectory() as store:
        return _events(name, store, World())


def _events(name: str, store: str, world: World) -> list[list[tuple[Any, ...]]]:
    case = CASES[name]
    closings = max(case.flow.depths.values()) if case.closes else 0
    flow = replace(case.flow, ordered=True)
    return ran(flow, store, event_epochs(name), world, closings)


SOME = ("tumbling", "late-session", "interval", "enriched", "groups", "distinct", "hot", "auctions")


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_flow_gives_the_same_order(tmp_path: Path, name: str, world: World) -> None:
    expected = on_one_host(name)
    assert _events(name, str(tmp_path), world) == expected
    assert sum(map(len, expected)) > 2


EVENTFUL = [name for name in CASES if not CASES[name].by_clock]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", EVENTFUL)
def test_whatever_happens_the_order_is_the_same(tmp_path: Path, name: str, seed: int) -> None:
    """Random moves, scaling, deaths and restarts; each epoch is also compared with its model."""
    pick = random.Random(f"{name} {seed}")
    turns = [replace(random_turn(pick, 2, 2), partitions=1) for _ in range(5)]
    calm = [replace(turn, requests=(), mishaps=(), reads=1) for turn in turns]
    sinks = []
    for hosts, taken in ((1, calm), (2, turns)):
        flow, store = replace(CASES[name].flow, ordered=True), str(tmp_path / str(hosts))
        with cluster(flow, store, hosts=hosts) as on:
            trial = EventTrial(name, on, IN_TIME)
            for turn in taken:
                trial.take(turn)
            sinks.append([[values(row) for row in on.sink[epoch]] for epoch in sorted(on.sink)])
    assert sinks[1] == sinks[0]


def test_an_aggregate_gives_keys_as_they_first_came(tmp_path: Path) -> None:
    pick = random.Random(1)
    rows = [{"k": pick.randrange(30), "v": 1} for _ in range(80)]
    (output,) = ran(replace(SUMS, ordered=True), str(tmp_path), [[rows]], World(3))
    assert [row[0] for row in output] == list(dict.fromkeys(row["k"] for row in rows))
