"""Rows that are set aside: dead letters, and rows behind the watermark of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import InputError
from penstock.model import DeadLetter, LateRows


@dataclass
class Aside:
    """The rows that one channel, or one task, has set aside. Several threads may add to it.

    A host's answer to a channel carries one. A courier adds those of its hosts to its own and sends that to
    the driver.
    """

    dead: list[DeadLetter] = field(default_factory=list)
    late: list[LateRows] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.dead or self.late)

    def add(self, other: Aside) -> None:
        """Add all rows of another one."""
        self.dead.extend(other.dead)
        self.late.extend(other.late)

    def add_late(self, step: str, rows: Iterable[tuple[int, pa.RecordBatch]], keep: bool) -> None:
        """Add late rows as (input, rows) pairs. Without `keep` they are only counted."""
        for input, batch in rows:
            if batch.num_rows:
                stream = _stream(batch) if keep else b""
                self.late.append(LateRows(step, input, batch.num_rows, stream))

    def late_counts(self) -> dict[str, int]:
        """The number of late rows of each step, by step."""
        counts: Counter[str] = Counter()
        for rows in self.late:
            counts[rows.step] += rows.count
        return dict(counts)


def late_tables(asides: Iterable[Aside]) -> dict[tuple[str, int], pa.Table]:
    """All late rows that were kept, as (step, input) -> rows.

    >>> aside, rows = Aside(), pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> aside.add_late("sum", [(0, rows)], keep=True)
    >>> late_tables([aside, aside])["sum", 0].column("n").to_pylist()
    [1, 2, 1, 2]
    >>> aside.late_counts()
    {'sum': 2}
    """
    parts: dict[tuple[str, int], list[pa.Table]] = {}
    for rows in (rows for aside in asides for rows in aside.late if rows.stream):
        table = pa.ipc.open_stream(rows.stream).read_all()
        parts.setdefault((rows.step, rows.input), []).append(table)
    return {where: pa.concat_tables(tables) for where, tables in parts.items()}


def bad_input(bad: Iterable[DeadLetter]) -> InputError:
    """The error that fails a flow which does not set unreadable input aside."""
    first = next(iter(bad))
    return InputError(
        f"{first.step}: cannot read the record at {first.key}: {first.error}; "
        f"it begins {first.row[:80]}",
        hint='fix its producer, or start the flow with on_error="dead_letter" to set it aside',
    )


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
