"""How much is tried, values that are not what is wanted, and a bound on memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError

TIMES = int(os.environ.get("PENSTOCK_FUZZ", "1"))
"""How many times as many examples are tried as in a run of all tests."""

ABSURD = (-(2**63) - 1, -(2**63), -(10**15), -1, 0, 1, 7, 2**31, 10**9, 10**15, 2**63, 10**30)

numbers = st.sampled_from(ABSURD) | st.integers()
scalars = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=8)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["slots", "epoch"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
"""Any JSON value."""


def fuzz(examples: int) -> settings:
    """Settings for a test of this many examples."""
    return settings(
        max_examples=examples * TIMES,
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def bounded(megabytes: int = 64) -> Iterator[None]:
    """Nothing inside holds more memory than this at any time, as far as Python and numpy tell."""
    # Not stopped here: Python may crash if that happens while a server's threads allocate (see conftest).
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    most = tracemalloc.get_traced_memory()[1] - before
    assert most < megabytes << 20, f"{most >> 20} MB were held"


def must_be_clear(error: PenstockError) -> None:
    """An error that says what is wrong with what was sent, and not that something broke over it."""
    assert "failed with" not in error.message, error.message
    assert error.message


def mutated(value: Any, change: Any, path: int) -> Any:
    """A JSON value in which one part, chosen by a number, is another."""
    places = list(_places(value))
    where = places[path % len(places)]
    return _replaced(value, where, change)


def _places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, part in inner:
        yield from _places(part, (*here, name))


def _replaced(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    if not where:
        return change
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[where[0]] = _replaced(copy[where[0]], where[1:], change)
    return copy
