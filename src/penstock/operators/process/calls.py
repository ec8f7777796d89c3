"""One call of a processor at a time, undone if it fails; what calls give, and what is told of an
exception in user code: step, key, row and the line that raised it."""

from __future__ import annotations

import gc
import inspect
import json
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FEWER_ROWS, StepError
from penstock.model import DeadLetter
from penstock.operators.operator import Answer
from penstock.operators.places import Places
from penstock.operators.process.processor import KeyedProcessor
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import StateHandle
from penstock.state.variables.values import RowForm, python_values
from penstock.state.variables.variable import Cells

_OTHERS = [Path(__file__).parents[2]]
_OTHERS += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


def json_text(value: Any) -> str:
    """A key (a tuple) or a row (a dict) as JSON text.

    >>> json_text(("ann", 3)), json_text({"user": "ann"})
    ('["ann", 3]', '{"user": "ann"}')
    """
    try:
        return json.dumps(value, default=str)
    except (TypeError, ValueError):  # a map with keys that JSON does not have
        texts = (
            {k: str(v) for k, v in value.items()} if isinstance(value, dict) else map(str, value)
        )
        return json.dumps(texts if isinstance(texts, dict) else list(texts))


def user_line(error: BaseException, method: Callable[..., Any]) -> str:
    """The innermost line of user code that the error went through, or else where `method` begins.

    An error that comes up in a library counts where the library was called.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(other in Path(frame.filename).parents for other in _OTHERS):
            where = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
            return f"{where}: {frame.line}" if frame.line else where
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None:
        return "the code of the processor"
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"


AT_ONCE = 4096
"""Rows, or timers, that are Python objects at a time; unless one key has more rows."""


@dataclass
class Results:
    """What calls gave: rows, and what was set aside."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)
    """The number of what caused each row; empty where nobody asks for order."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """The places of each batch's rows; none where nobody asks for order."""
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
    """Makes calls of a processor for single keys, on the cells of the handle; and the errors and dead
    letters of calls that fail."""

    step: str
    processor: KeyedProcessor
    handle: StateHandle
    output: RowForm
    sets_aside: bool
    """Bad rows become dead letters, and do not end the step."""

    @property
    def cells(self) -> Cells:
        return self.handle.cells

    def failure(
        self, method: Callable[..., Any], key: str, what: str, row: str | None, error: Exception
    ) -> StepError:
        """The error that ends the step: `method` of the processor raised `error`.

        `what` says what `row` is: a row, a timer. None if it had not come to one.
        """
        name = getattr(method, "__qualname__", str(method)).rpartition("<locals>.")[2]
        whose = f" for key {key}" if key else ""
        on = f" on {what} {row}" if row is not None else ""
        return StepError(
            f"step {self.step}: {name} failed{whose}{on}: {type(error).__name__}: {error}",
            hint=FEWER_ROWS
            if isinstance(error, MemoryError)
            else f"look at {user_line(error, method)}; or start the flow with "
            'on_error="dead_letter" to set such rows aside',
            step=self.step,
            key=key,
            row=row or "",
        )

    def letter(self, key: str, row: str, error: Exception) -> DeadLetter:
        """What is told of a row that is set aside, because a call failed with `error` on it."""
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
