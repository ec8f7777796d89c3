"""Puts the output of an ordered step's hosts back into input order. Pure: values in, values out.

Records that a courier sends to a step have serial numbers, and each output row names the record that caused
it. A row waits here until every host has applied all records up to that one: then no row can come that
belongs before it. Rows caused by event time wait until the watermarks of all hosts have reached that time.

A checkpoint ends the waiting. It passes when all hosts have echoed it, so all rows before it are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.live.junction import InputRows, Item, Junction, Lane, LaneMark, Reach
from penstock.operators.places import AT_THE_END, Places, in_order, split_places, taken_rows
from penstock.state.arrays import Array
from penstock.wire.live import Message

_NEVER_MS = -(1 << 63)


@dataclass(frozen=True)
class _Waiting:
    """Rows of one reply, with their places."""

    rows: pa.RecordBatch
    places: Places
    watermark_ms: int | None = None
    """Watermark in milliseconds that the host had fired up to, for rows caused by event time."""

    def cut(self, goes: Array) -> tuple[_Waiting | None, _Waiting | None]:
        """Split into the rows that leave and the rows that stay; None where there are no rows."""
        if goes.all():
            return self, None
        if not goes.any():
            return None, self
        return self._some(np.flatnonzero(goes)), self._some(np.flatnonzero(~goes))

    def _some(self, rows: Array) -> _Waiting:
        taken = taken_rows(self.rows, rows)
        return _Waiting(taken, self.places.take(rows), self.watermark_ms)


class ReorderBuffer:
    """Rows of one step that wait for their turn.

    >>> def answer(*serials):
    ...     rows = pa.RecordBatch.from_pydict({"n": serials})
    ...     return with_both(rows, Places.of_records(0, np.array(serials)))
    >>> from penstock.operators.places import with_both
    >>> buffer = ReorderBuffer()
    >>> buffer.put(answer(1, 4)), buffer.put(answer(0, 2))
    (None, None)
    >>> buffer.before = 3
    >>> [batch.column("n").to_pylist() for batch in buffer.ready()], buffer.flush()[0].num_rows
    ([[0, 1, 2]], 1)
    """

    def __init__(self) -> None:
        self.before = 0
        """Serial number below which all hosts have applied all records."""
        self._records: list[_Waiting] = []
        self._due: list[_Waiting] = []

    def put(self, answer: pa.RecordBatch, watermark_ms: int | None = None) -> None:
        """Add output rows of a host: all caused by records, or all by event time up to this watermark."""
        (rows,), (places,) = split_places([answer])
        if places.of_time[0]:
            self._due.append(_Waiting(rows, places, watermark_ms))
        else:
            self._records.append(_Waiting(rows, places))

    def ready(self) -> list[pa.RecordBatch]:
        """Remove and return rows caused by records, if no earlier row can come any more."""
        if not self._records:
            return []
        goes, self._records = _cut(self._records, lambda rows: rows.places.minor < self.before)
        return _sorted(goes)

    def ready_due(self, reach: Reach) -> list[pa.RecordBatch]:
        """Remove and return rows caused by event time that all hosts have reached."""
        if not self._due:
            return []
        passed_ms = _NEVER_MS if reach.watermark_ms is None else reach.watermark_ms

        def may_go(waiting: _Waiting) -> Array:
            fired_ms, due_ms = waiting.watermark_ms, waiting.places.due_ms
            if reach.final:
                return np.full(len(due_ms), True)
            if reach.idle or fired_ms is None or fired_ms <= passed_ms:
                return due_ms < AT_THE_END
            return due_ms <= passed_ms

        goes, self._due = _cut(self._due, may_go)
        return _sorted(goes)

    def flush(self) -> list[pa.RecordBatch]:
        """Remove and return all rows: no earlier row can come any more."""
        records, due = self._records, self._due
        self._records, self._due = [], []
        return [*_sorted(records), *_sorted(due)]


def _cut(
    waiting: list[_Waiting], goes: Callable[[_Waiting], Array]
) -> tuple[list[_Waiting], list[_Waiting]]:
    parts = [rows.cut(goes(rows)) for rows in waiting]
    return [rows for rows, _ in parts if rows is not None], [
        rows for _, rows in parts if rows is not None
    ]


def _sorted(waiting: list[_Waiting]) -> list[pa.RecordBatch]:
    return in_order([rows.rows for rows in waiting], [rows.places for rows in waiting])


class OrderedAnswers(Junction):
    """Merges the output of an ordered step's hosts, in order. To its readers, the step is one lane."""

    def __init__(
        self, step: str, lanes: Mapping[Lane, LaneMark], mark: LaneMark, epoch: int
    ) -> None:
        super().__init__(None, lanes)
        self.answers_of = step
        self.lane: Lane = ("", step)
        self.readers: list[Junction] = []
        """Junctions of the steps that read this one, or of the sink."""
        self.mark, self.epoch = mark, epoch
        """The lane's event-time mark, as the readers know it, and the epoch of its next rows."""
        self.buffer = ReorderBuffer()

    def in_order(self, items: Iterable[Item]) -> list[pa.RecordBatch | Message]:
        """Accept items that have passed the lanes. Returns rows that can leave, in order, and checkpoints."""
        passed: list[pa.RecordBatch | Message] = []
        for item in items:
            if isinstance(item, InputRows):
                self.buffer.put(*item.batch)
            else:
                passed += [*self.buffer.flush(), item]
        return [*passed, *self.buffer.ready(), *self.buffer.ready_due(self.reach)]
