"""Errors of user code: they name the row, and the line that raised the exception."""

from __future__ import annotations

import inspect
import json
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OTHERS = [Path(__file__).parents[1]]
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
    """The innermost line of user code in the error's traceback, or else the first line of `method`.

    For an error raised in a library, that is the line that called the library.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(other in Path(frame.filename).parents for other in _OTHERS):
            where = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
            return f"{where}: {frame.line}" if frame.line else where
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None:
        return "the code of the step"
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"
