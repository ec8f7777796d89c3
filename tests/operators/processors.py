"""A processor with all kinds of state, and helpers to inspect its operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.operator import Answer, Operator
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessOperator, ProcessPlan
from penstock.state.variables.values import Row

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
SLOTS = 8


class Summed(KeyedProcessor):
    """A processor with every kind of state, which fails on negative numbers."""

    output_schema = "user string, total long, last long, kinds int"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.get_value_state("total", "n long")
        self.last = handle.get_list_state("last", "n long")
        self.kinds = handle.get_map_state("kinds", "n long", "seen int, note string")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            (total,) = self.total.get() or (0,)
            self.total.update((total + row.n,))
            self.last.append_value((row.n,))
            seen = self.kinds.get_value((row.n,)) or Row(seen=0, note=None)
            self.kinds.update_value((row.n,), (seen.seen + 1, "again" if seen.seen else None))
            self.handle.register_timer(timers.processing_time_ms + 1000)
            if row.n < 0:
                raise ValueError(f"{row.n} is negative")
            yield (key[0], self.total.get().n, row["n"], len(list(self.kinds.keys())))

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        assert expired.kind == "processing"
        yield {"user": key[0], "total": -1, "last": expired.expiry_ms, "kinds": None}
        self.last.clear()


def batch(*rows: tuple[Any, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, r, strict=True)) for r in rows], SCHEMA
    )


def operator(processor: KeyedProcessor | None = None, on_error: Any = "fail") -> ProcessOperator:
    plan = ProcessPlan(SCHEMA, ["user"], processor or Summed())
    made = ProcessOperator(plan, SLOTS, "process-1", on_error)
    _: Operator = made
    return made


def rows_of(answer: Answer) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for b in answer.batches for row in b.to_pylist()]


def export(op: ProcessOperator) -> pa.Table:
    return op.table.export(op.table.entries_in(np.arange(SLOTS)))


def as_dict(op: ProcessOperator) -> dict[bytes, dict[str, Any]]:
    return {row["__key"]: row for row in export(op).to_pylist()}
