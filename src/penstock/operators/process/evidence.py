"""What to tell of an exception in user code: step, key, row and the line that raised it."""

from __future__ import annotations

import inspect
import json
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import StepError
from penstock.model import DeadLetter

_OTHERS = [Path(__file__).parents[2]]
_OTHERS += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


@dataclass(frozen=True)
class Evidence:
    """Makes the errors and dead letters of one step."""

    step: str

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
            hint=f"look at {user_line(error, method)}; or start the flow with "
            'on_error="dead_letter" to set such rows aside',
            step=self.step,
            key=key,
            row=row or "",
        )

    def letter(self, key: str, row: str, error: Exception) -> DeadLetter:
        return DeadLetter(self.step, key, row, f"{type(error).__name__}: {error}")


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
