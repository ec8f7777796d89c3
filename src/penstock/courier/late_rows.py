"""Rows that came behind the watermark: counted always, kept where somebody wants them."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from penstock.plan.steps import KeyedStep


class LateRows:
    """What one courier's rows were too late for, by step."""

    def __init__(self, keep: bool) -> None:
        self._keep = keep
        self.counts: Counter[str] = Counter()
        """step -> how many."""
        self.kept: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        """(step, input) -> the rows."""

    def add(self, step: KeyedStep, rows: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        for input, batch in rows:
            if batch.num_rows:
                self.counts[step.id] += batch.num_rows
                if self._keep:
                    self.kept.setdefault((step.id, input), []).append(batch)

    def to_json(self) -> list[list[object]]:
        """[step, input, Arrow stream as text] of all that was kept."""
        return [[step, input, _text(rows)] for (step, input), rows in self.kept.items()]


def late_tables(told: Iterable[list[list[object]]]) -> dict[tuple[str, int], pa.Table]:
    """What couriers told, put together: (step, input) -> rows.

    >>> one = LateRows(keep=True)
    >>> one.kept["sum", 0] = [pa.RecordBatch.from_pydict({"n": [1, 2]})]
    >>> late_tables([one.to_json(), one.to_json()])["sum", 0].column("n").to_pylist()
    [1, 2, 1, 2]
    """
    parts: dict[tuple[str, int], list[pa.Table]] = {}
    for courier in told:
        for step, input, text in courier:
            assert isinstance(step, str) and isinstance(input, int)
            rows = pa.ipc.open_stream(base64.b64decode(str(text))).read_all()
            parts.setdefault((step, input), []).append(rows)
    return {where: pa.concat_tables(tables) for where, tables in parts.items()}


def _text(rows: list[pa.RecordBatch]) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows[0].schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()
