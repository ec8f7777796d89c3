"""Models of window steps and of whole flows, written with plain lists.

A model takes an epoch's rows, as dicts, and returns the step's expected output. Times are milliseconds.
Models are kept simple: a window or a session holds its rows themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.operators.operator import CHANGE
from penstock.operators.tagged import INPUT
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.trials.cluster import NEVER
from tests.trials.plain_rows import Row, net, plain

Rows = list[Row]
Key = tuple[Any, ...]
Fold = Callable[[Rows], Row]
"""Function from rows to their aggregates."""


@dataclass(frozen=True)
class Now:
    """The times of an epoch for a step."""

    now_ms: int
    watermark_ms: int | None
    final: bool

    def passed(self, time_ms: int) -> bool:
        """Whether the watermark has reached a time."""
        return self.watermark_ms is not None and self.watermark_ms >= time_ms


class StepTwin(Protocol):
    late: list[tuple[int, Row]]
    """Pairs (input, row) of rows that were late in this epoch."""

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows: ...

    def held(self) -> int | None:
        """Number of keys that must have state; None if any number is right."""
        ...


class FlowTwin:
    """The model of a flow, made of those of its steps. It computes watermarks itself."""

    def __init__(self, flow: FlowPlan, steps: dict[str, StepTwin]) -> None:
        self.flow, self.steps = flow, steps
        self.watermarks: dict[str, int | None] = dict.fromkeys(steps)
        self.dead = 0
        """Number of rows without a time that the epoch set aside."""
        self.started_ms = 0
        """Start time of the driver that ran the last epoch: a source is not idle from before it."""
        self._newest: dict[tuple[int, str], tuple[int, int]] = {}
        """(source, partition) -> its newest event time, and the time of its last row."""

    def epoch(self, rows: Rows, now_ms: int, closing: int = 0) -> list[tuple[Any, ...]]:
        """Expected output of an epoch, in the order of `MiniCluster.output`."""
        sources = range(len(self.flow.sources))
        self.dead = 0
        if self.flow.on_error == "dead_letter":
            self.dead = sum(row["ts"] is None for row in rows)
            rows = [row for row in rows if row["ts"] is not None]
        streams = [[row for row in rows if row.get(INPUT, 0) == source] for source in sources]
        for number, step in enumerate(self.flow.steps):
            assert isinstance(step, KeyedStep)
            final = self.flow.depths[step.id] <= closing
            now = Now(now_ms, self.watermarks[step.id], final)
            twin = self.steps[step.id]
            twin.late = []
            output = twin.epoch([streams[stream] for stream in self.flow.reads(number)], now)
            streams.append([{name: row[name] for name in step.output.names} for row in output])
        self._advance(streams, now_ms)
        return net(streams[-1]) if CHANGE in self.flow.output.names else plain(streams[-1])

    def late(self) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
        """(step, input) -> the epoch's rows that were late for it."""
        found: dict[tuple[str, int], Rows] = defaultdict(list)
        for step in self.flow.keyed:
            for input, row in self.steps[step.id].late:
                names = step.plan.inputs[input].names
                found[step.id, input].append({name: row[name] for name in names})
        return {where: plain(rows) for where, rows in found.items()}

    def _advance(self, streams: list[Rows], now_ms: int) -> None:
        bounds: dict[int | str, int | None] = {}
        bounds.update(self.watermarks.items())
        for number, source in enumerate(self.flow.sources):
            if source.event_time is None:
                continue
            for row in streams[number]:
                place = (number, row[source.partition] if source.partition else "")
                newest, _ = self._newest.get(place, (row[source.event_time], now_ms))
                self._newest[place] = (max(newest, row[source.event_time]), now_ms)
            self._bound(number, source, now_ms, bounds)
        for step, reads in self.flow.graph:
            of = [bounds[read] for read in reads if read in bounds]
            if of and None not in of:
                before = self.watermarks[step]
                ahead = min(time for time in of if time is not None)
                self.watermarks[step] = ahead if before is None else max(before, ahead)

    def _bound(
        self, number: int, source: SourcePlan, now_ms: int, bounds: dict[int | str, int | None]
    ) -> None:
        """Set the bound that a source gives to watermarks, unless it is idle."""
        quiet_ms = NEVER if source.idle_ms is None else source.idle_ms
        parts = [of for (of_source, _), of in self._newest.items() if of_source == number]
        busy = [newest for newest, seen in parts if now_ms - max(seen, self.started_ms) < quiet_ms]
        if busy:
            bounds[number] = min(busy) - source.delay_ms
        elif not parts and now_ms - self.started_ms < quiet_ms:
            bounds[number] = None


def windows_of(time: int, size: int, every: int) -> list[int]:
    """Start times of the windows that contain a time."""
    last = time // every * every
    return [start for start in range(last, last - size, -every) if start <= time < start + size]


def changes(before: Counter[Key], after: Counter[Key], names: Sequence[str]) -> Rows:
    """The changes from `before` to `after`, as rows with `_change`."""
    rows = []
    for times, sign in (((before - after), -1), ((after - before), 1)):
        rows += [dict(zip(names, row, strict=True)) | {CHANGE: sign} for row in times.elements()]
    return rows


@dataclass
class WindowTwin:
    """Model of tumbling and hopping windows."""

    size: int
    every: int
    fold: Fold
    lateness: int = 0
    emit: str = "close"
    key: str = "k"
    late: list[tuple[int, Row]] = field(default_factory=list)
    windows: dict[tuple[Any, int], Rows] = field(default_factory=dict)
    given: set[tuple[Any, int]] = field(default_factory=set)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        out: Rows = []
        if not now.final:
            for window in [w for w in self.windows if now.passed(w[1] + self.size)]:
                if self.emit == "close" and window not in self.given:
                    out.append(self._row(window))
                    self.given.add(window)
                if now.passed(window[1] + self.size + self.lateness):
                    self._forget(window)
        before = {window: list(rows) for window, rows in self.windows.items()}
        again = set()
        for row in inputs[0]:
            starts = [
                start
                for start in windows_of(row["ts"], self.size, self.every)
                if not now.passed(start + self.size + self.lateness)
            ]
            if not starts:
                self.late.append((0, row))
            for start in starts:
                window = (row[self.key], start)
                self.windows.setdefault(window, []).append(row)
                again.add(window)
        if self.emit == "changes":
            for window in again:
                old = [] if window not in before else [self._row(window, before[window])]
                out += [row | {CHANGE: -1} for row in old] + [self._row(window) | {CHANGE: 1}]
        elif not now.final:
            for window in again:
                if window in self.given or now.passed(window[1] + self.size):
                    out.append(self._row(window))
                    self.given.add(window)
        if now.final:
            if self.emit == "close":
                out += [self._row(w) for w in self.windows if w not in self.given or w in again]
            self.windows.clear()
            self.given.clear()
        return out

    def held(self) -> int | None:
        return len(self.windows)

    def _forget(self, window: tuple[Any, int]) -> None:
        del self.windows[window]
        self.given.discard(window)

    def _row(self, window: tuple[Any, int], rows: Rows | None = None) -> Row:
        bounds = {"window_start": window[1], "window_end": window[1] + self.size}
        return {self.key: window[0], **bounds, **self.fold(rows or self.windows[window])}


@dataclass
class ClockTwin(WindowTwin):
    """Model of processing-time windows."""

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        rows = [row | {"ts": now.now_ms} for row in inputs[0]]
        return super().epoch([rows], Now(now.now_ms, now.now_ms, now.final))


@dataclass
class _Session:
    start: int
    end: int
    rows: Rows
    given: bool = False


@dataclass
class SessionTwin:
    """Model of sessions, which are emitted when they close."""

    gap: int
    fold: Fold
    lateness: int = 0
    late: list[tuple[int, Row]] = field(default_factory=list)
    sessions: dict[Any, list[_Session]] = field(default_factory=dict)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        out: Rows = []
        if not now.final:
            out += self._close(now.passed)
        for row in inputs[0]:
            if now.passed(row["ts"] + self.gap + self.lateness):
                self.late.append((0, row))
            else:
                self._add(row)
        if now.final:
            out += self._close(lambda _: True)
        else:
            out += self._give(now.passed)
        return out

    def held(self) -> int | None:
        return len(self.sessions)

    def _add(self, row: Row) -> None:
        new = _Session(row["ts"], row["ts"] + self.gap, [row])
        apart = []
        for old in self.sessions.get(row["k"], []):
            if old.start < new.end and new.start < old.end:
                bounds = min(old.start, new.start), max(old.end, new.end)
                new = _Session(*bounds, old.rows + new.rows)
            else:
                apart.append(old)
        self.sessions[row["k"]] = [*apart, new]

    def _give(self, passed: Callable[[int], bool]) -> Rows:
        out: Rows = []
        for key, sessions in self.sessions.items():
            for one in sessions:
                if passed(one.end) and not one.given:
                    one.given = True
                    bounds = {"window_start": one.start, "window_end": one.end}
                    out.append({"k": key, **bounds, **self.fold(one.rows)})
        return out

    def _close(self, passed: Callable[[int], bool]) -> Rows:
        out = self._give(passed)
        for key, sessions in list(self.sessions.items()):
            self.sessions[key] = [one for one in sessions if not passed(one.end + self.lateness)]
            if not self.sessions[key]:
                del self.sessions[key]
        return out
