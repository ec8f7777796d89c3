"""Compiled functions that kernels of user code call, by name."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.errors import TypingError
from numba.extending import overload

Expired = namedtuple("Expired", ["expiry_ms", "kind"])
"""What a compiled handler sees of an expired timer."""
KINDS = ("processing", "event")


@njit  # part of each kernel: numba cannot use a generator from its cache in another function
def feed(rows, start, end, read):  # type: ignore[no-untyped-def]
    """The rows of a call. `read` is told the number of the row after the last one that was read."""
    for at in range(start, end):
        read[0] = at + 1
        yield rows[at]


@njit(cache=True)
def doubled(array):  # type: ignore[no-untyped-def]
    """A copy of an array that is twice as long."""
    new = np.empty(2 * len(array), array.dtype)
    new[: len(array)] = array
    return new


def check_width(row: Any, width: Any) -> None:
    """Refuse to compile rows that are not tuples of so many values."""


@overload(check_width, prefer_literal=True, strict=False)
def _check_width(row: Any, width: Any) -> Any:
    if not isinstance(width, types.Literal):
        return None
    if not isinstance(row, types.BaseTuple):
        raise TypingError(f"a row has the type {row}: yield a tuple")
    if len(row) != width.literal_value:
        raise TypingError(f"a row has {len(row)} values for {width.literal_value} columns")
    return lambda row, width: None
