"""Measuring how long others have been silent, in a process that may itself be paused. Times are passed in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class _Heard(NamedTuple):
    mark: object
    """Last mark, which changes with each sign of life."""
    silent_ms: float
    """Milliseconds since the mark changed."""


class Silences(Generic[K]):
    """Silence of each of several peers, measured in ticks.

    A tick that comes late counts as two at most. So a process that was paused, or collected garbage for
    long, does not mistake that for the silence of others: they get time to be heard again.

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
        """Return each peer's milliseconds of silence. A peer's mark must change with each sign of life."""
        elapsed = 0.0 if self._last_ms is None else now_ms - self._last_ms
        counted = min(elapsed, 2 * self._tick_ms)
        self._last_ms = now_ms
        heard = {}
        for peer, mark in marks.items():
            before = self._heard.get(peer)
            silent = before is not None and before.mark == mark
            heard[peer] = _Heard(mark, before.silent_ms + counted if before and silent else 0.0)
        self._heard = heard
        return {peer: last.silent_ms for peer, last in heard.items()}
