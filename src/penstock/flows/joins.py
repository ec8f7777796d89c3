"""What a join of two flows goes by: pairs of key columns, and a bound on which rows meet."""

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
    """(column here, column there) of the keys, which both sides have."""
    if isinstance(on, str):
        on = (on,)
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)
    if not pairs:
        raise FlowError("a join needs a column to join on", hint='for example on={"id": "auction"}')
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
    """What else must hold of two rows that meet, and how long they are kept."""
    if window is not None and between is not None:
        raise FlowError("a join got both a window and between", hint="use one of them")
    if window is None and between is None:
        return Regular(None if ttl is None else milliseconds(ttl))
    if ttl is not None:
        raise FlowError(
            "a join that is bounded by event time needs no ttl",
            hint="leave ttl out: rows go when the watermark has passed them",
        )
    mine, its = left.time_column(left_time), right.time_column(right_time)
    if window is not None:
        return InWindow(window, mine, its)
    if not isinstance(between, Sequence) or isinstance(between, str) or len(between) != 2:
        raise FlowError(
            f"between={between!r} is no pair of times", hint='write for example ("0s", "10s")'
        )
    low, high = between
    if isinstance(high, str) and high in left.schema.names:
        return Interval(mine, its, _signed_ms(low), high)
    return Interval(mine, its, _signed_ms(low), _signed_ms(high))


def _signed_ms(bound: str | float) -> int:
    if isinstance(bound, str) and bound.startswith("-"):
        return -milliseconds(bound[1:])
    if isinstance(bound, int | float) and bound < 0:
        return -milliseconds(-bound)
    return milliseconds(bound)
