"""A courier's own work in stateless steps that no keyed one is run together with: done, counted, timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa

from penstock.courier.trouble import Trouble
from penstock.plan.steps import MapStep


@dataclass(frozen=True)
class MapWork:
    """What one courier had to do in one segment without a keyed step, in one epoch.

    >>> MapWork.from_json(MapWork(90, 30, 12.5).to_json())
    MapWork(rows=90, done=30, useful_ms=12.5)
    """

    rows: int = 0
    """That came for its steps."""
    done: int = 0
    """Of them, those that the courier did itself; functions did the others."""
    useful_ms: float = 0.0
    """Time in which it did those."""

    def to_json(self) -> list[Any]:
        return list(astuple(self))

    @staticmethod
    def from_json(facts: Sequence[Any]) -> MapWork:
        return MapWork(*facts)


def told_of_maps(worked: Mapping[str, MapWork]) -> dict[str, Any]:
    """What the work in stateless steps adds to a courier's report; nothing if none is timed."""
    return {"maps": {name: one.to_json() for name, one in worked.items()}} if worked else {}


class MapSegment:
    """The stateless steps of one segment, as one task does them.

    >>> schema = pa.schema([("n", pa.int64())])
    >>> first = MapStep("first", lambda batch: batch.slice(0, 1), schema, schema)
    >>> segment = MapSegment([first], Trouble("fail"))
    >>> [batch.to_pylist() for batch in segment.through([pa.record_batch({"n": [1, 2]})])]
    [[{'n': 1}]]
    >>> segment.work.rows, segment.work.done, segment.work.useful_ms < 1_000
    (2, 2, True)
    """

    def __init__(self, steps: Sequence[MapStep], trouble: Trouble) -> None:
        self._steps, self._trouble = steps, trouble
        self._rows = self._done = 0
        self._useful_s = 0.0

    @property
    def work(self) -> MapWork:
        """So far."""
        return MapWork(self._rows, self._done, round(self._useful_s * 1000, 1))

    def came(self, rows: int) -> None:
        """So many rows are to be done, by whomever."""
        self._rows += rows

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows that come, done by the courier: each batch when it is asked for."""
        for batch in batches:
            self.came(batch.num_rows)
            yield from self.made_of([batch])

    def made_of(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """What the steps make of rows that have come."""
        given = list(batches)
        rows, began = sum(batch.num_rows for batch in given), time.perf_counter()
        made: Iterable[pa.RecordBatch] = given
        for step in self._steps:
            made = self._trouble.mapped(step, made)
        made = list(made)
        self._done += rows
        self._useful_s += time.perf_counter() - began
        return made
