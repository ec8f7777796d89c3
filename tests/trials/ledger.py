"""Flows with all kinds of state, and their models, written with plain dicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.operators.aggregate import aggregates
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan

Row = dict[str, Any]
SLOTS = 8
TTL_MS = 4_000

NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ORDERS = pa.schema([("who", pa.string()), ("op", pa.string()), ("v", pa.int64())])
OPS = ("add", "add", "put", "cut", "push", "alarm", "note", "clear", "read")


class Twin(Protocol):
    """The model of a flow."""

    def epoch(self, rows: Iterable[Row], now_ms: int) -> list[tuple[Any, ...]]:
        """Expected rows of an epoch, in the order of `MiniCluster.output`."""
        ...

    def keys(self) -> dict[str, set[Any]]:
        """Step -> keys with state."""
        ...


def aggregated(schema: pa.Schema, key: str, value: str) -> AggregatePlan:
    return AggregatePlan(
        schema,
        [key],
        {
            "total": aggregates.sum(value),
            "n": aggregates.count(),
            "low": aggregates.min(value),
            "high": aggregates.max(value),
        },
    )


SUMS = FlowPlan((SourcePlan(NUMBERS),), (KeyedStep("sums", SLOTS, aggregated(NUMBERS, "k", "v")),))


@dataclass
class SumsTwin:
    """The model of SUMS."""

    key: str = "k"
    value: str = "v"
    step: str = "sums"
    seen: dict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))

    def epoch(self, rows: Iterable[Row], now_ms: int) -> list[tuple[Any, ...]]:
        touched = set()
        for row in rows:
            self.seen[row[self.key]].append(row[self.value])
            touched.add(row[self.key])
        output = []
        for key in touched:
            values = self.seen[key]
            output.append((key, sum(values), len(values), min(values), max(values)))
        return sorted(output, key=repr)

    def keys(self) -> dict[str, set[Any]]:
        return {self.step: set(self.seen)}


def put_by(v: int) -> list[int]:
    """Keys of the pairs that a "put" writes: maps grow large enough to be written in part."""
    return [(v + 7 * i) % 40 for i in range(v % 13)]


class Ledger(KeyedProcessor):
    """A processor with every kind of state, and an operation that clears it."""

    output_schema = "who string, op string, total long, held string"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.get_value_state("total", "n long")
        self.pairs = handle.get_map_state("pairs", "n long", "v long")
        self.pushed = handle.get_list_state("pushed", "v long")
        self.note = handle.get_value_state("note", "v long", ttl=TTL_MS)

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            self._take(row.op, row.v, timers.processing_time_ms)
            yield (key[0], row.op, self._total(), self._held())

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield (key[0], f"alarm {expired.expiry_ms}", self._total(), self._held())
        self.pushed.clear()

    def _take(self, op: str, v: int, now_ms: int) -> None:
        if op == "add":
            self.total.update((self._total() + v,))
        elif op == "put":
            for n in put_by(v):
                self.pairs.update_value((n,), (v,))
        elif op == "cut":
            self.pairs.remove_key((v % 40,))
        elif op == "push":
            self.pushed.append_list([(v,)] * (v % 9))
        elif op == "alarm":
            self.handle.register_timer(now_ms + 1000 * (1 + v % 4))
        elif op == "note":
            self.note.update((v,))
        elif op == "clear":
            for state in (self.total, self.pairs, self.pushed, self.note):
                state.clear()
            for timer in list(self.handle.list_timers()):
                self.handle.delete_timer(timer)

    def _total(self) -> int:
        value = self.total.get()
        return 0 if value is None else value.n

    def _held(self) -> str:
        pairs = sorted((k.n, v.v) for k, v in self.pairs.iterator())
        note = self.note.get()
        return f"{pairs} {[r.v for r in self.pushed.get()]} {None if note is None else note.v}"


@dataclass
class _Account:
    total: int | None = None
    pairs: dict[int, int] = field(default_factory=dict)
    pushed: list[int] = field(default_factory=list)
    note: tuple[int, int] | None = None
    """Value and time of writing."""
    timers: set[int] = field(default_factory=set)

    def held(self) -> tuple[int, str]:
        note = None if self.note is None else self.note[0]
        return self.total or 0, f"{sorted(self.pairs.items())} {self.pushed} {note}"

    def take(self, op: str, v: int, now_ms: int) -> None:
        if op == "add":
            self.total = (self.total or 0) + v
        elif op == "put":
            self.pairs.update(dict.fromkeys(put_by(v), v))
        elif op == "cut":
            self.pairs.pop(v % 40, None)
        elif op == "push":
            self.pushed += [v] * (v % 9)
        elif op == "alarm":
            self.timers.add(now_ms + 1000 * (1 + v % 4))
        elif op == "note":
            self.note = (v, now_ms)
        elif op == "clear":
            self.__init__()  # type: ignore[misc]


LEDGER_STEP = KeyedStep("ledger", SLOTS, ProcessPlan(ORDERS, ["who"], Ledger()))
LEDGER = FlowPlan((SourcePlan(ORDERS),), (LEDGER_STEP,))


@dataclass
class LedgerTwin:
    """The model of LEDGER."""

    accounts: dict[str, _Account] = field(default_factory=lambda: defaultdict(_Account))

    def epoch(self, rows: Iterable[Row], now_ms: int) -> list[tuple[Any, ...]]:
        output = []
        for who, account in self.accounts.items():
            if account.note is not None and account.note[1] + TTL_MS <= now_ms:
                account.note = None
            for due in sorted(t for t in account.timers if t <= now_ms):
                account.timers.remove(due)
                output.append((who, f"alarm {due}", *account.held()))
                account.pushed = []
        for row in rows:
            account = self.accounts[row["who"]]
            account.take(row["op"], row["v"], now_ms)
            output.append((row["who"], row["op"], *account.held()))
        return sorted(output, key=repr)

    def keys(self) -> dict[str, set[Any]]:
        return {"ledger": {who for who, account in self.accounts.items() if account != _Account()}}


_BY_OP = aggregated(LEDGER_STEP.output, "op", "total")
CHAIN = FlowPlan((SourcePlan(ORDERS),), (LEDGER_STEP, KeyedStep("by-op", SLOTS, _BY_OP)))


@dataclass
class ChainTwin:
    """The model of CHAIN: the ledger's output, aggregated by operation."""

    ledger: LedgerTwin = field(default_factory=LedgerTwin)
    sums: SumsTwin = field(default_factory=lambda: SumsTwin("op", "total", "by-op"))

    def epoch(self, rows: Iterable[Row], now_ms: int) -> list[tuple[Any, ...]]:
        output = self.ledger.epoch(rows, now_ms)
        return self.sums.epoch([{"op": op, "total": total} for _, op, total, _ in output], now_ms)

    def keys(self) -> dict[str, set[Any]]:
        return self.ledger.keys() | self.sums.keys()
