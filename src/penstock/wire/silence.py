"""Silence, judged by somebody who may be stopped now and then: pure, the times are handed in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class _Heard(NamedTuple):
    mark: object
    """What was last heard: it is another thing each time."""
    silent_ms: float


class Silences(Generic[K]):
    """How long each of several others has not been heard, as a watch counts it that ticks.

    A tick that comes late counts as two at most. So whoever was stopped itself, or collected garbage
    for long, does not take that for the silence of others: they get time to be heard again.

    >>> hosts = Silences[str](tick_ms=500)
    >>> hosts.tick(0, {"sum/0": 1}), hosts.tick(500, {"sum/0": 1}), hosts.tick(900, {"sum/0": 2})
    ({'sum/0': 0.0}, {'sum/0': 500.0}, {'sum/0': 0.0})
    >>> hosts.tick(20_900, {"sum/0": 2})
    {'sum/0': 1000.0}
    """

    def __init__(self, tick_ms: float) -> None:
        self._tick_ms = tick_ms
        self._last_ms: float | None = None
        self._heard: dict[K, _Heard] = {}

    def tick(self, now_ms: float, marks: Mapping[K, object]) -> dict[K, float]:
        """Milliseconds of silence of each, from what was last heard of them (any mark that changes)."""
        elapsed = 0.0 if self._last_ms is None else now_ms - self._last_ms
        counted = min(elapsed, 2 * self._tick_ms)
        self._last_ms = now_ms
        heard = {}
        for one, mark in marks.items():
            before = self._heard.get(one)
            silent = before is not None and before.mark == mark
            heard[one] = _Heard(mark, before.silent_ms + counted if before and silent else 0.0)
        self._heard = heard
        return {one: found.silent_ms for one, found in heard.items()}
