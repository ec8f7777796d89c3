"""Processors that merge partial states, or are compiled, and the model of one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.operators.process.compiled import compiled
from penstock.operators.process.processor import KeyedProcessor
from tests.trials.event_twins import Now, Rows
from tests.trials.plain_rows import Row


class Histogram(KeyedProcessor):
    """Keeps all of a key's values, their sum and how often each occurred. It merges."""

    output_schema = "k long, n long, total long, often string"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long, total long")
        self.often = handle.get_map_state("often", "v long", "n long")
        self.all = handle.get_list_state("all", "v long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            self._add(1, row.v)
            self._count(row.v, 1)
            self.all.append_value((row.v,))

    def merge(self, other: Histogram) -> None:
        self._add(*other.total.get())
        for (v,), (n,) in other.often.iterator():
            self._count(v, n)
        for value in other.all.get():
            self.all.append_value(value)

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        n, total = self.total.get()
        often = {v: times for (v,), (times,) in self.often.iterator()}
        assert often == Counter(row.v for row in self.all.get())
        yield key[0], n, total, str(sorted(often.items()))

    def _add(self, n: int, total: int) -> None:
        before, sum_before = self.total.get() or (0, 0)
        self.total.update((before + n, sum_before + total))

    def _count(self, v: int, n: int) -> None:
        (before,) = self.often.get_value((v,)) or (0,)
        self.often.update_value((v,), (before + n,))


class BatchSums(KeyedProcessor):
    """Keeps the number and the sum of a key's values, with `handle_batch`. It merges."""

    output_schema = "k long, n long, total long"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long, total long")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> None:
        sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
        known = self.total.get_many(batch).to_pylist()
        keys = batch.column("k").to_pylist()
        for key, before in zip(keys, known, strict=True):
            sums[key] = [before["n"], before["total"]] if before else [0, 0]
        for key, v in zip(keys, batch.column("v").to_pylist(), strict=True):
            sums[key][0] += 1
            sums[key][1] += v
        columns = {
            name: pa.array([sums[key][at] for key in keys], pa.int64())
            for at, name in enumerate(("n", "total"))
        }
        self.total.update_many(batch, pa.record_batch(columns))

    def merge(self, other: BatchSums) -> None:
        n, total = self.total.get() or (0, 0)
        more, more_total = other.total.get()
        self.total.update((n + more, total + more_total))

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        yield key[0], *self.total.get()


class CompiledSums(KeyedProcessor):
    """Keeps the number and the sum of a key's values, with a compiled handler. It merges."""

    output_schema = "k long, n long, total long"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "n long, total long")

    @compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        n, total = self.total.get((0, 0))
        for row in rows:
            n += 1
            total += row.v
        self.total.update((n, total))

    def merge(self, other: CompiledSums) -> None:
        n, total = self.total.get((0, 0))
        more, more_total = other.total.get()
        self.total.update((n + more, total + more_total))

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        yield key[0], *self.total.get()


class Bells(KeyedProcessor):
    """Emits a row when two seconds of event time in which a key had rows have passed. All of it is compiled;
    a key with rows of two such times has two timers, and is handled in Python."""

    output_schema = "k long, until long"
    every_ms = 2_000

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.get_value_state("count", "n long")

    @compiled
    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        (n,) = self.count.get((0,))
        for row in rows:
            n += 1
            until = row.ts // 1000 // self.every_ms * self.every_ms + self.every_ms
            self.handle.register_timer(until, time="event")
        self.count.update((n,))

    @compiled
    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        if self.count.get().n > 0:
            yield key[0], expired.expiry_ms


@dataclass
class HistogramTwin:
    """Model of `Histogram`: in each epoch, the keys that had rows."""

    late: list[tuple[int, Row]] = field(default_factory=list)
    values: dict[Any, list[int]] = field(default_factory=dict)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        for row in inputs[0]:
            self.values.setdefault(row["k"], []).append(row["v"])
        return [self.row(key) for key in {row["k"] for row in inputs[0]}]

    def row(self, key: Any) -> Row:
        """The row that is emitted for a key."""
        values = self.values[key]
        often = str(sorted(Counter(values).items()))
        return {"k": key, "n": len(values), "total": sum(values), "often": often}

    def held(self) -> int | None:
        return len(self.values)


@dataclass
class BatchSumsTwin(HistogramTwin):
    """Model of `BatchSums`."""

    def row(self, key: Any) -> Row:
        return {name: value for name, value in super().row(key).items() if name != "often"}
