"""Single calls of a processor, undone if they fail, and their results.

Errors of user code name the step, the key, the row and the line that raised the exception.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FEWER_ROWS, FlowError, StepError
from penstock.model import DeadLetter
from penstock.operators.operator import Answer
from penstock.operators.places import Places
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.user_errors import user_line
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import StateHandle
from penstock.state.variables.values import RowForm, python_values
from penstock.state.variables.variable import Cells

AT_ONCE = 4096
"""Rows, or timers, that are turned into Python objects at once. A key with more rows exceeds it."""


@dataclass
class Results:
    """The output of calls: rows and dead letters."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Output rows that are not in a batch yet."""
    causes: list[int] = field(default_factory=list)
    """For each of `rows`, the number of the input row or timer that caused it; empty in unordered flows."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """The places of each batch's rows; empty in unordered flows."""
    dead: list[DeadLetter] = field(default_factory=list)

    def flush(self, form: RowForm, places: Places | None) -> None:
        """Turn `rows` into a batch. `places` are those of the input rows or timers, indexed by number."""
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


class NoRows(RowForm):
    """The output of a handler that must not emit rows."""

    def __init__(self, schema: pa.Schema, processor: KeyedProcessor) -> None:
        super().__init__(schema)
        self._name = type(processor).__name__
        self.write = self._refuse

    def _refuse(self, row: Any) -> tuple[Any, ...]:
        raise FlowError(
            f"{self._name} has merge, but its handler emits rows: a part of a key's rows knows only a part "
            "of its state",
            hint="emit in handle_merged, which gets the whole state; or rename merge",
        )


@dataclass(frozen=True)
class Caller:
    """Calls a processor for single keys, and creates the errors and dead letters of failed calls."""

    step: str
    processor: KeyedProcessor
    handle: StateHandle
    output: RowForm
    sets_aside: bool
    """Whether bad rows become dead letters. If not, they fail the step."""
    seen: Callable[[pa.Array], pa.Array] = lambda column: column
    """Converts the columns of a key to what user code sees."""

    @property
    def cells(self) -> Cells:
        return self.handle.cells

    def failure(
        self, method: Callable[..., Any], key: str, what: str, row: str | None, error: Exception
    ) -> StepError:
        """The error that fails the step because `method` of the processor raised `error`.

        `what` names the kind of `row`, such as "row" or "timer". `row` is None if the call had read none.
        """
        name = getattr(method, "__qualname__", str(method)).rpartition("<locals>.")[2]
        whose = f" for key {key}" if key else ""
        on = f" on {what} {row}" if row is not None else ""
        return StepError(
            f"step {self.step}: {name} failed{whose}{on}: {type(error).__name__}: {error}",
            hint=FEWER_ROWS
            if isinstance(error, MemoryError)
            else f"look at {user_line(error, method)}; or start the flow with "
            'on_error="dead_letter" to turn such rows into dead letters',
            step=self.step,
            key=key,
            row=row or "",
        )

    def letter(self, key: str, row: str, error: Exception) -> DeadLetter:
        """The dead letter of a row on which a call failed with `error`."""
        if isinstance(error, MemoryError):
            raise error  # no row is to blame
        return DeadLetter(self.step, key, row, f"{type(error).__name__}: {error}")

    def attempt(
        self,
        at: int,
        call: Callable[[], Iterable[Any] | None],
        keep: bool = True,
        note: Callable[[], None] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Make one call for key number `at` and return its rows. State changes are undone if it fails, or
        if `keep` is False. `note` is called after each output row."""
        number = self.cells.begin(at)
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
            self.cells.undo(number)
            raise
        if not keep:
            self.cells.undo(number)
        return rows

    def names(self, keys: Keys) -> list[tuple[Any, ...]]:
        """Keys as tuples of Python values, for user code."""
        columns = [python_values(self.seen(c)) for c in self.cells.codec.decode(keys)]
        return list(zip(*columns, strict=True)) if columns else [()] * len(keys)


def give_up(answer: Any) -> None:
    """Close a generator of user code now, so that state changes of its clean-up are undone with the rest."""
    # errors of the clean-up are ignored: the error that led here is the one to report
    with suppress(Exception):
        if hasattr(answer, "close"):
            answer.close()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while many short-lived objects exist.

    Otherwise it scans the rows of many calls again and again and promotes them, which costs as much as
    the calls themselves. Reference counting frees the rows anyway.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
