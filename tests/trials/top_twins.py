"""Models of tops, distinct rows and aggregates without a window, written with plain lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.operators.operator import CHANGE
from penstock.operators.tagged import INPUT
from tests.trials.event_twins import Fold, Key, Now, Rows, changes
from tests.trials.plain_rows import Row

Order = Callable[[Row], Any]


def ranked(rows: Iterable[Row], order: Order, n: int, ties: bool) -> list[tuple[int, Row]]:
    """Pairs (rank, row) of the first rows; all values break ties."""
    ordered = sorted(rows, key=lambda row: (order(row), tuple(row.values())))
    if not ties:
        return list(enumerate(ordered[:n], 1))
    ranks = [1 + sum(order(other) < order(row) for other in ordered) for row in ordered]
    return [(rank, row) for rank, row in zip(ranks, ordered, strict=True) if rank <= n]


@dataclass
class TopTwin:
    """Model of a top: the first n rows of each key, as changes."""

    n: int
    order: Order
    rank: str | None = None
    key: str = "k"
    late: list[tuple[int, Row]] = field(default_factory=list)
    rows: dict[Any, Rows] = field(default_factory=lambda: defaultdict(list))
    names: list[str] = field(default_factory=list)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        before = self._now()
        for row in inputs[0]:
            row = {name: value for name, value in row.items() if name != INPUT}
            self.names = [*row, self.rank] if self.rank else list(row)
            self.rows[row[self.key]].append(row)
        return changes(before, self._now(), self.names)

    def held(self) -> int | None:
        return len(self.rows)

    def _now(self) -> Counter[Key]:
        return Counter(
            (*row.values(), rank) if self.rank else tuple(row.values())
            for rows in self.rows.values()
            for rank, row in ranked(rows, self.order, self.n, ties=False)
        )


@dataclass
class TopUntilTwin:
    """Model of a top with `until`: the first n rows of each key, once the watermark passes it."""

    n: int
    order: Order
    keys: tuple[str, ...]
    until: str
    ties: bool = False
    late: list[tuple[int, Row]] = field(default_factory=list)
    rows: dict[Any, Rows] = field(default_factory=lambda: defaultdict(list))

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        out = [] if now.final else self._close(now.passed)
        for row in inputs[0]:
            if now.passed(row[self.until] + 1):
                self.late.append((0, row))
            else:
                self.rows[tuple(row[name] for name in self.keys)].append(row)
        return out + (self._close(lambda _: True) if now.final else [])

    def held(self) -> int | None:
        return len(self.rows)

    def _close(self, passed: Callable[[int], bool]) -> Rows:
        over = [
            key
            for key, rows in self.rows.items()
            if passed(max(row[self.until] for row in rows) + 1)
        ]
        kept = [ranked(self.rows.pop(key), self.order, self.n, self.ties) for key in over]
        return [row for rows in kept for _, row in rows]


@dataclass
class DistinctTwin:
    """Model of distinct: the first row of each key within a TTL; a row has only its key."""

    ttl: int
    late: list[tuple[int, Row]] = field(default_factory=list)
    came: dict[Key, int] = field(default_factory=dict)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        self.came = {key: at for key, at in self.came.items() if at + self.ttl > now.now_ms}
        out = []
        for row in inputs[0]:
            key = tuple(row.values())
            if key not in self.came:
                self.came[key] = now.now_ms
                out.append(row)
        return out

    def held(self) -> int | None:
        return len(self.came)


@dataclass
class GroupTwin:
    """Model of aggregates by key, as changes; input rows may be changes too."""

    key: str
    fold: Fold
    late: list[tuple[int, Row]] = field(default_factory=list)
    rows: Counter[Key] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)

    def epoch(self, inputs: Sequence[Rows], now: Now) -> Rows:
        before = self._now()
        for row in inputs[0]:
            self.names = [name for name in row if name not in (CHANGE, INPUT)]
            self.rows[tuple(row[name] for name in self.names)] += row.get(CHANGE, 1)
        assert not -self.rows, "more rows were retracted than inserted"
        after = self._now()
        names = [self.key, *self.fold([dict.fromkeys(self.names, 0)])] if self.names else []
        return changes(before, after, names)

    def held(self) -> int | None:
        return len(self._groups())

    def _groups(self) -> dict[Any, Rows]:
        groups: dict[Any, Rows] = defaultdict(list)
        for values in (+self.rows).elements():
            row = dict(zip(self.names, values, strict=True))
            groups[row[self.key]].append(row)
        return groups

    def _now(self) -> Counter[Key]:
        groups = self._groups()
        return Counter((key, *self.fold(rows).values()) for key, rows in groups.items())
