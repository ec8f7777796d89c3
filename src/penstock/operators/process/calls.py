"""One call of a processor at a time, undone if it fails; what calls give, and what they cost."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model import DeadLetter
from penstock.operators.operator import Answer
from penstock.operators.places import Places
from penstock.operators.process.evidence import Evidence
from penstock.operators.process.processor import KeyedProcessor
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import StateHandle
from penstock.state.variables.values import RowForm, python_values
from penstock.state.variables.variable import Cells

AT_ONCE = 4096
"""Rows, or timers, that are Python objects at a time; unless one key has more rows."""


@dataclass
class Results:
    """What calls gave: rows, and what was set aside."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)
    """Of each of the rows, the number of what caused it; empty where nobody asks for order."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """Of the rows of each batch; none where nobody asks for order."""
    dead: list[DeadLetter] = field(default_factory=list)

    def flush(self, form: RowForm, places: Places | None) -> None:
        """Turn the rows into a batch; `places` are those of what caused them, by number."""
        if self.rows:
            self.batches.append(form.batch(self.rows))
            self.rows.clear()
            if places is not None:
                self.places.append(places.take(np.array(self.causes)))
                self.causes.clear()

    def answer(self) -> Answer:
        if len(self.batches) < 2:
            return Answer(self.batches, self.dead, self.places)
        places = [Places.joined(self.places)] if self.places else []
        return Answer([pa.concat_batches(self.batches)], self.dead, places)


@dataclass(frozen=True)
class Caller:
    """Makes calls of a processor for single keys, on the cells of the handle."""

    processor: KeyedProcessor
    handle: StateHandle
    output: RowForm
    evidence: Evidence
    sets_aside: bool
    """Bad rows become dead letters, and do not end the step."""

    @property
    def cells(self) -> Cells:
        return self.handle.cells

    def attempt(
        self,
        at: int,
        call: Callable[[], Iterable[Any] | None],
        keep: bool = True,
        note: Callable[[], None] | None = None,
    ) -> list[tuple[Any, ...]]:
        """One call for key number `at`; undone if it fails, or is not to be kept. `note` is called
        for each row as it is given."""
        mark = self.cells.begin(at)
        answer: Iterable[Any] | None = None
        rows = []
        try:
            answer = call()
            for row in () if answer is None else answer:
                rows.append(self.output.write(row))
                if note is not None:
                    note()
        except BaseException:
            give_up(answer)
            self.cells.undo(mark)
            raise
        if not keep:
            self.cells.undo(mark)
        return rows

    def names(self, keys: Keys) -> list[tuple[Any, ...]]:
        """Keys as user code gets them."""
        columns = [python_values(column) for column in self.cells.codec.decode(keys)]
        return list(zip(*columns, strict=True)) if columns else [()] * len(keys)


def give_up(answer: Any) -> None:
    """End a generator of user code now, so that what it does at its end is undone with the rest."""
    # the error that made us give up is the one to tell, not what comes now
    with suppress(Exception):
        if hasattr(answer, "close"):
            answer.close()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector away from objects that are about to die by reference count.

    Otherwise it goes through the rows of many calls again and again and promotes them, which costs
    as much as the calls themselves.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
