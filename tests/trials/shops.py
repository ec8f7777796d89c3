"""Rows of several partitions through steps with different keys, whose output shows its order.

Each partition has its own keys in both steps, so that partitions do not race: the output of a partition's
rows is that of one thread that processes them one after the other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from tests.trials.ledger import SLOTS
from tests.trials.plain_rows import Row

SHOPS = pa.schema(
    [("p", pa.string()), ("n", pa.int64()), ("who", pa.string()), ("item", pa.int64())]
)
_NUMBERS = count()


class Numbered(KeyedProcessor):
    """Emits each row as often as its item says, with the number of rows of its key so far."""

    output_schema = "p string, n long, who string, item long, copy int, seen long"

    def init(self, handle: Any) -> None:
        self.seen = handle.get_value_state("seen", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (seen,) = self.seen.get() or (0,)
        for row in rows:
            seen += 1
            for copy in range(row.item // 3 % 3):
                yield (row.p, row.n, row.who, row.item, copy, seen)
        self.seen.update((seen,))


class Again(Numbered):
    """Emits each row of another `Numbered` once, with the number of rows of its key so far."""

    output_schema = "p string, n long, copy int, seen long, again long"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (seen,) = self.seen.get() or (0,)
        for row in rows:
            seen += 1
            yield (row.p, row.n, row.copy, row.seen, seen)
        self.seen.update((seen,))


class Chained(KeyedProcessor):
    """A global step: numbers all rows, each with a hash of all rows up to it."""

    output_schema = "p string, n long, copy int, seen long, again long, place long, hash long"

    def init(self, handle: Any) -> None:
        self.state = handle.get_value_state("state", "place long, hash long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        place, hash = self.state.get() or (0, 0)
        for row in rows:
            hash = hashed(hash, row.n, row.copy)
            yield (row.p, row.n, row.copy, row.seen, row.again, place, hash)
            place += 1
        self.state.update((place, hash))


def hashed(hash: int, n: int, copy: int) -> int:
    return (hash * 31 + 3 * n + copy) % 1_000_003


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
)

THREE_KEYS = FlowPlan(
    TWO_KEYS.sources,
    (*TWO_KEYS.steps, KeyedStep("chained", 1, ProcessPlan(_SECOND.output, [], Chained()))),
)


def shop_rows(pick: random.Random, rows: int, now_ms: int) -> list[Row]:
    """Rows of three partitions, numbered in order of arrival."""
    made = []
    for _ in range(3 * rows):
        p = pick.randrange(3)
        who, item = f"{p} {pick.randrange(7)}", p + 3 * pick.randrange(9)
        made.append({"p": f"p{p}", "n": next(_NUMBERS), "who": who, "item": item})
    return made


def in_arrival_order(rows: list[Row]) -> dict[str, list[tuple[Any, ...]]]:
    """The expected output by partition, row by row in one thread."""
    seen: dict[Any, int] = defaultdict(int)
    out: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        seen[row["who"]] += 1
        for copy in range(row["item"] // 3 % 3):
            if row["item"] != 11:
                seen[row["item"]] += 1
                out[row["p"]].append(
                    (row["p"], row["n"], copy, seen[row["who"]], seen[row["item"]])
                )
    return out


def by_partition(output: list[Row]) -> dict[str, list[tuple[Any, ...]]]:
    """The output rows of each partition, in order of delivery."""
    out: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in output:
        out[row["p"]].append(tuple(row.values()))
    return out


def unchained(output: list[Row]) -> list[Row]:
    """The output of `THREE_KEYS` in the order of its last step, with the columns of its second step."""
    output = sorted(output, key=lambda row: int(row["place"]))
    assert [row["place"] for row in output] == list(range(len(output)))
    hash, rows = 0, []
    for row in output:
        hash = hashed(hash, row["n"], row["copy"])
        assert row["hash"] == hash, row
        rows.append({name: row[name] for name in _SECOND.output.names})
    return rows
