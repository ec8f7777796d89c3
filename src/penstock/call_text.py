"""Parsing of texts such as "sine(30000, 10000, 600s)": a name and its arguments in parentheses.

Users write policies, migrations, shapes and skews in this form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from penstock.errors import PenstockError, SettingError
from penstock.model import milliseconds

T = TypeVar("T")
_CALL = re.compile(r"\s*([a-z0-9_-]+)\s*(?:\(([^()]*)\)\s*)?", re.IGNORECASE)


def call(text: str) -> tuple[str, list[str]]:
    """Split a text into its name and arguments. The name is empty if the text does not have this form.

    >>> call("Sine (3, 2, 10s)"), call("all-at-once"), call("a b")
    (('sine', ['3', '2', '10s']), ('all_at_once', []), ('', []))
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return "", []
    arguments = (match[2] or "").strip()
    name = match[1].lower().replace("-", "_")
    return name, [part.strip() for part in arguments.split(",")] if arguments else []


def made_of(text: str, what: str, makers: Mapping[str, Callable[..., T]], hint: str) -> T:
    """Call the maker that the text names with the text's arguments, as strings. `what` is the kind of thing
    made, for the error message.

    >>> made_of("lazy(2)", "migration", {"lazy": float}, hint="use lazy(rate)")
    2.0
    >>> made_of("eager", "migration", {"lazy": float}, hint="use lazy(rate)")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: unknown migration 'eager'. What to do: use lazy(rate)
    """
    name, arguments = call(text)
    cause: Exception | None = None
    if name in makers:
        try:
            return makers[name](*arguments)
        except (TypeError, ValueError, PenstockError) as error:
            cause = error
    why = f": {cause.message}" if isinstance(cause, PenstockError) else ""
    raise SettingError(f"unknown {what} {text!r}{why}", hint=hint) from cause


def value(text: str) -> float:
    """Parse a number, or a duration such as "10min" into seconds.

    >>> value("2.5"), value("10min")
    (2.5, 600.0)
    """
    try:
        return float(text)
    except ValueError:
        return milliseconds(text) / 1000


def number_text(number: float) -> str:
    """The shortest text that `value` parses to the same number.

    >>> number_text(30_000.0), number_text(0.1)
    ('30000', '0.1')
    """
    return repr(float(number)).removesuffix(".0")
