"""The series of a recording as it grows, and what the page gets of it as JSON values."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.observe.dashboard.series import Point, columns, marks, moves, point_of, thinned
from penstock.observe.moment import Moment
from penstock.observe.recording import Recording
from penstock.observe.sentences import story

MOST_POINTS = 2_000
"""Points that a client can ask for at most."""
_KEPT = 86_400
"""Points kept: a day."""
_MOVES = 200
"""Moves kept: the newest."""
_ENTRIES = 500
"""Entries of the journal that a client gets at once: the newest."""
_RECENT_MS = 120_000
_SAMPLES = 240
"""Whole moments in a page that is one file."""


class Timeline:
    """The points of a recording so far. Each moment is read once, since a recorder unpacks it each time.

    Safe to use from any thread.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._points: deque[Point] = deque(maxlen=_KEPT)
        self._moves: deque[dict[str, Any]] = deque(maxlen=_MOVES)
        self._newest: Moment | None = None
        self._lock = threading.Lock()

    def whole(
        self, from_ms: float = 0.0, to_ms: float = float("inf"), points: int = 600
    ) -> dict[str, Any]:
        """All that the page shows of a span of time. A negative `from_ms` counts from the newest moment.

        `recent` are the last two minutes in full, and `totals` those of the whole recording.
        """
        with self._lock:
            self._catch_up()
            every, moved, newest = list(self._points), list(self._moves), self._newest
        ended_ms = every[-1].time_ms if every else 0.0
        if from_ms < 0:
            from_ms += ended_ms
        shown = [point for point in every if from_ms <= point.time_ms <= to_ms]
        entries = [entry for entry in self.recording.entries(from_ms) if entry.time_ms <= to_ms]
        return {
            "facts": codec.to_plain(self.recording.facts),
            "running": self.recording.running,
            "series": columns(thinned(shown, min(max(points, 2), MOST_POINTS))),
            "recent": columns([p for p in every if p.time_ms > ended_ms - _RECENT_MS]),
            "totals": {
                "windows": sum(point.windows for point in every),
                "kept": sum(point.kept for point in every),
                "rows": sum(point.rows for point in every),
                "moved": sum(point.moved for point in every),
                "fetched": sum(point.fetched for point in every),
            },
            "begun_ms": every[0].time_ms if every else None,
            "ended_ms": ended_ms if every else None,
            "moment": None if newest is None else codec.to_plain(newest),
            "marks": marks(entries),
            "moves": [move for move in moved if from_ms <= move["time_ms"] <= to_ms],
            "journal": journal(self.recording.entries()),
        }

    def _catch_up(self) -> None:
        for moment in self.recording.moments(self._points[-1].time_ms if self._points else 0.0):
            self._points.append(point_of(moment))
            self._moves.extend(moves(moment))
            self._newest = moment


def update(moments: Sequence[Moment], entries: Sequence[Entry], since_ms: float) -> dict[str, Any]:
    """What is new after `since_ms`: moments, oldest first, and marks. With any new entry, the journal again,
    since a treatment's sentence grows until its outcome is known."""
    new = [entry for entry in entries if entry.time_ms > since_ms]
    return {
        "series": columns([point_of(moment) for moment in moments]),
        "moment": codec.to_plain(moments[-1]) if moments else None,
        "moves": [move for moment in moments for move in moves(moment)],
        "marks": marks(new),
        "journal": journal(entries) if new else None,
    }


def nearest(recording: Recording, at_ms: float) -> Moment | None:
    """The moment in which a time falls, or the nearest one; None if nothing is recorded."""
    around = recording.moments(at_ms - 5_000) or recording.moments()[-1:]
    return min(around, key=lambda moment: abs(moment.time_ms - at_ms), default=None)


def page_data(recording: Recording, points: int = 1_200) -> dict[str, Any]:
    """The data of a page that is one file: all of a recording, with whole moments to look back at."""
    moments = recording.moments()
    every = max(1, -(-len(moments) // _SAMPLES))
    samples = [
        moment for at, moment in enumerate(moments) if at % every == 0 or moment.moves.handovers
    ]
    whole = Timeline(recording).whole(points=points)
    return whole | {"running": False, "moments": codec.to_plain(samples[-2 * _SAMPLES :])}


def journal(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The journal in plain sentences, oldest first: one for each treatment, from decision to outcome."""
    told: list[dict[str, Any]] = codec.to_plain(story(entries[-_ENTRIES:]))
    return told
