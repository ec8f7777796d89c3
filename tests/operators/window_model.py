"""A model of steps with windows, in a few lines of Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.operators.window.windows import Window
from tests.operators.trials import Epoch, Row

Place = tuple[Any, ...]
"""Key values, then start and end in microseconds."""


@dataclass
class Held:
    """An open window."""

    rows: list[Row] = field(default_factory=list)
    emitted: bool = False
    changed: bool = False


@dataclass
class Emitted:
    """An output row: its window, and the input rows in that window."""

    place: Place
    rows: list[Row]


def places_of(window: Window, key: Place, time: int) -> list[Place]:
    """The windows of a time (microseconds), by their definition."""
    first = (time - window.size_us - window.offset_us) // window.every_us
    last = (time - window.offset_us) // window.every_us
    starts = [window.offset_us + k * window.every_us for k in range(first, last + 2)]
    size = window.size_us
    return [(*key, s, s + size) for s in starts if s <= time < s + size]


class Model:
    """The model. `run` returns the output of an epoch, and its late rows."""

    def __init__(
        self,
        window: Window,
        keys: list[str],
        time_of: Callable[[Row, Epoch], int],
        lateness_ms: int,
        emit: str,
    ) -> None:
        self.window, self.keys, self.time_of = window, keys, time_of
        self.lateness_us, self.emit = lateness_ms * 1000, emit
        self.held: dict[Place, Held] = {}

    def run(self, epoch: Epoch) -> tuple[list[Emitted], list[Row]]:
        now = epoch.watermark_ms if self.window.clock == "event" else epoch.now_ms
        now_us = None if now is None else now * 1000
        out = [] if epoch.final else self._closed(now_us)
        rows = [row for channel in epoch.channels for row in channel]
        late = [row for row in rows if not self._take(row, epoch, now_us)]
        for place, held in self.held.items():
            ended = now_us is not None and place[-1] <= now_us
            emits = held.changed if self.emit != "close" else held.changed and ended
            if emits and not (epoch.final and self.emit == "close"):
                out.append(Emitted(place, list(held.rows)))
                held.emitted, held.changed = True, False
        if epoch.final:
            out += self._closed(1 << 62)
        for held in self.held.values():
            held.changed = False
        return out, late

    def _take(self, row: Row, epoch: Epoch, now_us: int | None) -> bool:
        time = self.time_of(row, epoch)
        places = self._places(tuple(row[key] for key in self.keys), time)
        if now_us is not None and self.window.clock == "event":
            places = [place for place in places if place[-1] + self.lateness_us > now_us]
        for place in places:
            held = self._held(place)
            held.rows.append(row)
            held.changed = True
        return bool(places)

    def _places(self, key: Place, time: int) -> list[Place]:
        return places_of(self.window, key, time)

    def _held(self, place: Place) -> Held:
        return self.held.setdefault(place, Held())

    def _closed(self, now_us: int | None) -> list[Emitted]:
        out = []
        for place, held in list(self.held.items()):
            if now_us is None or place[-1] > now_us:
                continue
            if self.emit == "close" and (not held.emitted or held.changed):
                out.append(Emitted(place, list(held.rows)))
                held.emitted, held.changed = True, False
            if place[-1] + self.lateness_us <= now_us:
                del self.held[place]
        return out


class SessionModel(Model):
    """The model of sessions: a row's own window, merged with the windows that it overlaps."""

    def _places(self, key: Place, time: int) -> list[Place]:
        return [(*key, time, time + self.window.size_us)]

    def _held(self, place: Place) -> Held:
        near = [other for other in self.held if overlap(place, other)]
        rows = [row for other in near for row in self.held.pop(other).rows]
        start = min(other[-2] for other in [place, *near])
        end = max(other[-1] for other in [place, *near])
        held = self.held[(*place[:-2], start, end)] = Held(rows)
        return held


def overlap(one: Place, other: Place) -> bool:
    """Whether two windows have the same key and overlap."""
    return one[:-2] == other[:-2] and one[-2] < other[-1] and other[-2] < one[-1]
