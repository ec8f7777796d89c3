"""Keys and bounds of a join of two flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import FlowError
from penstock.model import milliseconds
from penstock.operators.join.plan import Interval, InWindow, Regular
from penstock.operators.window.windows import Window

if TYPE_CHECKING:
    from penstock.flows.flow import Flow

On = str | Sequence[str] | Mapping[str, str]
Span = tuple[str | float, str | float]


def key_pairs(left: Flow, right: Flow, on: On) -> tuple[tuple[str, str], ...]:
    """The key columns as pairs (column of the left flow, column of the right flow)."""
    if isinstance(on, str):
        on = (on,)
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)
    if not pairs:
        raise FlowError("join has no key column", hint='name one: on="id", or on={"id": "auction"}')
    for here, there in pairs:
        left.must_have(here, "to join on")
        right.must_have(there, "to join on, on the other side")
    return pairs


def join_bound(
    left: Flow,
    right: Flow,
    window: Window | None,
    between: Span | None,
    ttl: str | float | None,
    left_time: str | None,
    right_time: str | None,
) -> Regular | InWindow | Interval:
    """The bound on which rows match, and how long they are kept."""
    if window is not None and between is not None:
        raise FlowError("join got both window and between", hint="use one of them")
    if window is None and between is None:
        return Regular(None if ttl is None else milliseconds(ttl))
    if ttl is not None:
        raise FlowError(
            "a join with window or between needs no ttl",
            hint="leave ttl out: rows are dropped when the watermark has passed them",
        )
    times = left.time_column(left_time), right.time_column(right_time)
    if window is not None:
        return InWindow(window, *times)
    if not isinstance(between, Sequence) or isinstance(between, str) or len(between) != 2:
        raise FlowError(
            f"between is {between!r}, not a pair of durations", hint='use for example ("0s", "10s")'
        )
    low, high = between
    if isinstance(high, str) and high in left.schema.names:
        return Interval(*times, _signed_ms(low), high)
    return Interval(*times, _signed_ms(low), _signed_ms(high))


def _signed_ms(bound: str | float) -> int:
    if isinstance(bound, str) and bound.startswith("-"):
        return -milliseconds(bound[1:])
    if isinstance(bound, int | float) and bound < 0:
        return -milliseconds(-bound)
    return milliseconds(bound)
