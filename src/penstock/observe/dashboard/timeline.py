"""The series of a recording as it grows, and what the page gets of it as JSON values."""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.observe.dashboard.series import (
    Point,
    bound_name,
    columns,
    marks,
    marks_by_hand,
    moves,
    point_of,
    thinned,
)
from penstock.observe.moment import Moment, bare
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
_LOOKS = 1_200
"""Whole moments kept to look back at."""
_FEED_S = 60.0
"""Seconds between two reads of a recording that cannot be watched, if nobody looks at it."""
_SUMS = ("windows", "kept", "rows", "moved", "fetched")


@runtime_checkable
class Watchable(Protocol):
    """A recording that tells of each new moment."""

    def watch(self, watcher: Callable[[Moment], None]) -> Callable[[], None]: ...


class Timeline:
    """The points of a recording so far. Each moment is read once, since a recorder unpacks it each time.

    Safe to use from any thread. Its methods may ask another process, so they are not for an event loop.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._points: deque[Point] = deque(maxlen=_KEPT)
        self._moves: deque[dict[str, Any]] = deque(maxlen=_MOVES)
        self._totals: dict[str, int] = dict.fromkeys(_SUMS, 0)
        self._bound_totals: dict[str, dict[str, int]] = {}
        self._begun_ms: float | None = None
        self._newest: Moment | None = None
        self._looks: Looks | None = None
        """Whole moments; None if the recording has them at hand."""
        self._watching = False
        self._lock = threading.Lock()

    def feed(self, closing: threading.Event) -> None:
        """Take in every moment from now on, whether anybody looks or not, until `closing` is set. A recorder
        keeps an hour only."""
        if isinstance(self.recording, Watchable):
            with self._lock:
                self._looks = Looks()
                self.recording.watch(self._watched)
                self._read()
                self._watching = True
        else:
            threading.Thread(
                target=self._feed, args=(closing,), name="dashboard feed", daemon=True
            ).start()

    def whole(
        self, from_ms: float = 0.0, to_ms: float = float("inf"), points: int = 600
    ) -> dict[str, Any]:
        """All that the page shows of a span of time. A negative `from_ms` counts from the newest moment.

        `recent` are the last two minutes in full, and `totals` those of the whole recording.
        """
        with self._lock:
            self._catch_up()
            every, moved, newest = list(self._points), list(self._moves), self._newest
            totals = {**self._totals, "bounds": codec.to_plain(self._bound_totals)}
        ended_ms = every[-1].time_ms if every else 0.0
        if from_ms < 0:
            from_ms += ended_ms
        shown = [point for point in every if from_ms <= point.time_ms <= to_ms]
        entries = self.recording.entries()
        moved = [move for move in moved if from_ms <= move["time_ms"] <= to_ms]
        within = [entry for entry in entries if from_ms < entry.time_ms <= to_ms]
        return {
            "facts": codec.to_plain(self.recording.facts),
            "running": self.recording.running,
            "series": columns(thinned(shown, min(max(points, 2), MOST_POINTS))),
            "recent": columns([p for p in every if p.time_ms > ended_ms - _RECENT_MS]),
            "totals": totals,
            "begun_ms": self._begun_ms,
            "ended_ms": ended_ms if every else None,
            "moment": None if newest is None else codec.to_plain(newest),
            "marks": self.marks(within, moved, entries),
            "moves": moved,
            "journal": journal(entries),
        }

    def after(self, since_ms: float) -> tuple[list[Point], list[dict[str, Any]], Moment | None]:
        """Points and moves after a time, oldest first, and the newest moment."""
        with self._lock:
            self._catch_up()
            points: list[Point] = []
            for point in reversed(self._points):
                if point.time_ms <= since_ms:
                    break
                points.append(point)
            moved = [move for move in self._moves if move["time_ms"] > since_ms]
            return points[::-1], moved, self._newest

    def nearest(self, at_ms: float) -> Moment | None:
        """The moment that ended nearest to a time; None if nothing is recorded."""
        with self._lock:
            if self._looks is not None:
                return self._looks.nearest(at_ms)
        moments = self.recording.moments()
        at = nearest_of([moment.time_ms for moment in moments], at_ms)
        return None if at is None else moments[at]

    def marks(
        self, entries: Sequence[Entry], moved: Sequence[dict[str, Any]], journal: Sequence[Entry]
    ) -> list[dict[str, Any]]:
        """Marks of these entries and moves, in order of time. `journal` has all entries."""
        by_hand = marks_by_hand(moved, journal, self.recording.facts.slots)
        return sorted([*marks(entries), *by_hand], key=lambda mark: float(mark["time_ms"]))

    def _feed(self, closing: threading.Event) -> None:
        while self.recording.running and not closing.wait(_FEED_S):
            with self._lock:
                self._catch_up()

    def _watched(self, moment: Moment) -> None:
        with self._lock:
            self._take(bare(moment))

    def _catch_up(self) -> None:
        if not self._watching:
            self._read()

    def _read(self) -> None:
        for moment in self.recording.moments(self._points[-1].time_ms if self._points else 0.0):
            self._take(moment)

    def _take(self, moment: Moment) -> None:
        if self._newest is not None and moment.time_ms <= self._newest.time_ms:
            return
        point = point_of(moment)
        self._points.append(point)
        self._moves.extend(moves(moment))
        self._newest = moment
        if self._begun_ms is None:
            self._begun_ms = moment.time_ms
        for name in _SUMS:
            self._totals[name] += getattr(point, name)
        for bound in point.bounds:
            counts = self._bound_totals.setdefault(bound_name(bound), {"windows": 0, "kept": 0})
            counts["windows"] += bound.windows
            counts["kept"] += bound.kept
        if self._looks is not None:
            self._looks.add(moment)


class Looks:
    """Whole moments to look back at: all of the last minutes, and ever fewer of the time before. They are
    packed, since a step may have thousands of slots."""

    def __init__(self, most: int = _LOOKS) -> None:
        self._most = most
        self._times: list[float] = []
        self._packed: list[bytes] = []

    def add(self, moment: Moment) -> None:
        self._times.append(moment.time_ms)
        self._packed.append(zlib.compress(codec.encode(moment), 1))
        if len(self._times) > self._most:
            older = len(self._times) // 2
            self._times[:older] = self._times[:older:2]
            self._packed[:older] = self._packed[:older:2]

    def nearest(self, at_ms: float) -> Moment | None:
        """The moment nearest to a time, which alone is unpacked; None without any."""
        at = nearest_of(self._times, at_ms)
        return None if at is None else codec.decode(zlib.decompress(self._packed[at]), Moment)


def nearest_of(times: Sequence[float], at: float) -> int | None:
    """Index of the nearest of these times, which are in order; None without any.

    >>> nearest_of([10.0, 20.0, 30.0], 24.0), nearest_of([10.0], 99.0), nearest_of([], 1.0)
    (1, 0, None)
    """
    right = bisect_left(times, at)
    around = [index for index in (right - 1, right) if 0 <= index < len(times)]
    return min(around, key=lambda index: abs(times[index] - at), default=None)


class Follower:
    """Tells one client what is new in a timeline. Used by one thread at a time."""

    def __init__(self, timeline: Timeline, since_ms: float) -> None:
        self._timeline = timeline
        self.since_ms = self._told_ms = since_ms
        self.ended = False
        """Whether nothing more will come."""
        self._ending = False

    def news(self) -> dict[str, Any] | None:
        """What is new since the last call; None if nothing is."""
        # A recorder takes its last moment after it has said that it no longer runs.
        running = self._timeline.recording.running
        self.ended, self._ending = self._ending, not running
        points, moved, newest = self._timeline.after(self.since_ms)
        if not points or newest is None:
            return None
        self.since_ms = points[-1].time_ms
        entries = self._timeline.recording.entries()
        new = [entry for entry in entries if entry.time_ms > self._told_ms]
        self._told_ms = max([self._told_ms, *(entry.time_ms for entry in new)])
        return {
            "series": columns(thinned(points, MOST_POINTS)),
            "moment": codec.to_plain(newest),
            "moves": moved,
            "marks": self._timeline.marks(new, moved, entries),
            # A treatment's sentence grows until its outcome is known.
            "journal": journal(entries) if new else None,
        }


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
