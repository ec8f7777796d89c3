"""Models of joins, written with plain lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.operators.operator import CHANGE
from tests.trials.event_twins import Key, Now, Rows, changes, windows_of
from tests.trials.plain_rows import Row


@dataclass
class IntervalTwin:
    """Model of a left or inner join of rows whose times are within bounds; it keeps all rows."""

    first: Callable[[Row], int]
    last: Callable[[Row], int]
    pair: Callable[[Row, Row | None], Row]
    outer: bool
    late: list[tuple[int, Row]] = field(default_factory=list)
    lefts: Rows = field(default_factory=list)
    rights: Rows = field(default_factory=list)
    waiting: Rows = field(default_factory=list)
    """Left rows without a match so far."""
    ended: bool = False

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        out = self._expire(lambda row: now.passed(self.last(row) + 1))
        fresh: list[Rows] = [[], []]
        for input, rows in enumerate(inputs):
            for row in rows:
                if now.passed(row["ts"] + 1):
                    self.late.append((input, row))
                else:
                    fresh[input].append(row)
        self.waiting += fresh[0]
        for left in self.lefts + fresh[0]:
            old = any(left is row for row in self.lefts)
            for right in fresh[1] if old else self.rights + fresh[1]:
                if self._match(left, right):
                    out.append(self.pair(left, right))
                    self.waiting = [row for row in self.waiting if row is not left]
        self.lefts += fresh[0]
        self.rights += fresh[1]
        if now.final:
            out += self._expire(lambda _: True)
            self.lefts, self.rights, self.ended = [], [], True
        return out

    def held(self) -> int | None:
        return 0 if self.ended and not self.lefts and not self.rights else None

    def _match(self, left: Row, right: Row) -> bool:
        same = left["k"] is not None and left["k"] == right["k"]
        return same and self.first(left) <= right["ts"] <= self.last(left)

    def _expire(self, over: Callable[[Row], bool]) -> Rows:
        gone = [row for row in self.waiting if over(row)]
        self.waiting = [row for row in self.waiting if not over(row)]
        return [self.pair(row, None) for row in gone] if self.outer else []


@dataclass
class WindowJoinTwin:
    """Model of a left join of rows of the same key and window."""

    size: int
    every: int
    pair: Callable[[Row, Row | None], Row]
    late: list[tuple[int, Row]] = field(default_factory=list)
    windows: dict[tuple[Any, int], tuple[Rows, Rows]] = field(default_factory=dict)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        out = [] if now.final else self._close(now.passed)
        for input, rows in enumerate(inputs):
            for row in rows:
                starts = windows_of(row["ts"], self.size, self.every)
                starts = [start for start in starts if not now.passed(start + self.size)]
                if not starts:
                    self.late.append((input, row))
                for start in starts:
                    sides = self.windows.setdefault((row["k"], start), ([], []))
                    for other in sides[1 - input]:
                        pair = self.pair(*((row, other) if input == 0 else (other, row)))
                        out.append(pair | self._bounds(start))
                    sides[input].append(row)
        return out + (self._close(lambda _: True) if now.final else [])

    def held(self) -> int | None:
        return len(self.windows)

    def _close(self, passed: Callable[[int], bool]) -> Rows:
        out: Rows = []
        for key, start in [w for w in self.windows if passed(w[1] + self.size)]:
            lefts, rights = self.windows.pop((key, start))
            if not rights:
                out += [self.pair(row, None) | self._bounds(start) for row in lefts]
        return out

    def _bounds(self, start: int) -> Row:
        return {"window_start": start, "window_end": start + self.size}


@dataclass
class _Recent:
    came: int
    row: Row
    alone: bool
    """Whether this is a left row that was emitted without a match."""


@dataclass
class RecentTwin:
    """Model of a join of rows that arrive within a TTL of each other. Old rows expire silently."""

    ttl: int
    pair: Callable[[Row, Row | None], Row]
    outer: bool = False
    late: list[tuple[int, Row]] = field(default_factory=list)
    rows: tuple[list[_Recent], list[_Recent]] = field(default_factory=lambda: ([], []))

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        for side in self.rows:
            side[:] = [one for one in side if one.came + self.ttl > now.now_ms]
        out: Rows = []
        for input, rows in enumerate(inputs):
            for row in rows:
                matches = [one for one in self.rows[1 - input] if one.row["k"] == row["k"]]
                for one in matches:
                    if one.alone:
                        out.append(self.pair(one.row, None) | {CHANGE: -1})
                        one.alone = False
                    pair = (row, one.row) if input == 0 else (one.row, row)
                    out.append(self.pair(*pair) | {CHANGE: 1})
                alone = self.outer and input == 0 and not matches
                if alone:
                    out.append(self.pair(row, None) | {CHANGE: 1})
                self.rows[input].append(_Recent(now.now_ms, row, alone))
        return out

    def held(self) -> int | None:
        return None


@dataclass
class ChangingJoinTwin:
    """Model of a left join of changes with rows, without bounds: the join of all current rows."""

    names: list[str]
    pair: Callable[[Row, Row | None], Row]
    late: list[tuple[int, Row]] = field(default_factory=list)
    lefts: Counter[Key] = field(default_factory=Counter)
    rights: Rows = field(default_factory=list)
    left_names: list[str] = field(default_factory=list)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        before = self._joined()
        for row in inputs[0]:
            self.left_names = [name for name in row if name != CHANGE]
            self.lefts[tuple(row[name] for name in self.left_names)] += row[CHANGE]
        self.rights += inputs[1]
        return changes(before, self._joined(), self.names)

    def held(self) -> int | None:
        keys = {row["k"] for row in self.rights}
        keys |= {dict(zip(self.left_names, left, strict=True))["k"] for left in +self.lefts}
        return len(keys)

    def _joined(self) -> Counter[Key]:
        joined: Counter[Key] = Counter()
        for values in (+self.lefts).elements():
            left = dict(zip(self.left_names, values, strict=True))
            matches = [right for right in self.rights if right["k"] == left["k"]]
            for right in matches or (None,):
                row = self.pair(left, right)
                joined[tuple(row[name] for name in self.names)] += 1
        return joined
