"""Texts such as "sine(30000, 10000, 600s)": a name, and numbers or durations."""

from __future__ import annotations

import re

from penstock.model import milliseconds

_CALL = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()]*)\)\s*)?", re.IGNORECASE)


def call(text: str) -> tuple[str, list[str]]:
    """The name and the arguments; no name if the text is not of this form.

    >>> call("sine(3, 2, 10s)"), call("uniform"), call("a b")
    (('sine', ['3', '2', '10s']), ('uniform', []), ('', []))
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return "", []
    given = match[2] or ""
    return match[1].lower(), [part.strip() for part in given.split(",")] if given.strip() else []


def value(text: str) -> float:
    """A number, or a duration in seconds.

    >>> value("2.5"), value("10min")
    (2.5, 600.0)
    """
    try:
        return float(text)
    except ValueError:
        return milliseconds(text) / 1000


def number_text(number: float) -> str:
    """The shortest text that `value` makes the same number of.

    >>> number_text(30_000.0), number_text(0.1)
    ('30000', '0.1')
    """
    return repr(float(number)).removesuffix(".0")
