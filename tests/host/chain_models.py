"""Models of the steps in `tests.host.chain_steps`: they work row by row, with plain dicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.state.keys.codec import KeyCodec

PRIME = 10_007
Values = tuple[int, int, int]
"""(a, b, n) of a row."""


class Model(Protocol):
    """A model of a step, which works row by row."""

    def open(self, now_ms: int) -> list[Values]: ...
    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]: ...
    def close(self) -> list[Values]: ...


@dataclass
class Mapped:
    """A model of `map_batches`: it repeats each row as often as `mapped_copies` says."""

    salt: int

    def open(self, now_ms: int) -> list[Values]:
        return []

    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]:
        a, b, n = row
        return [(a, (b + copy) % 6, n) for copy in range(mapped_copies(n, self.salt))]

    def close(self) -> list[Values]:
        return []


def mapped_copies(n: int, salt: int) -> int:
    """Return the number of copies of a row: 0, 1 or 2; always 1 for every eighth salt."""
    return (n + salt) % 3 if salt % 8 else 1


@dataclass
class Processed:
    """A model of a processor with one value for each key."""

    key: tuple[str, ...]
    salt: int
    timers: bool = False
    always_one: bool = False
    held: dict[tuple[int, ...], int] = field(default_factory=dict)
    due: set[tuple[int, int, tuple[int, ...]]] = field(default_factory=set)
    """Timers: (due time, hash of the key, key)."""

    def open(self, now_ms: int) -> list[Values]:
        output = []
        for at, hash, key in sorted(due for due in self.due if due[0] <= now_ms):
            self.due.remove((at, hash, key))
            output.append(fired(key, at, self.held.get(key, 0)))
        return output

    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]:
        key = key_of(row, self.key)
        before = self.held.get(key, 0)
        self.held[key] = after = mixed(before, row, self.salt)
        if self.timers and after % 3 == 0:
            self.due.add((now_ms + 1 + after % 2000, hash_of(key), key))
        return processed(row, after, self.always_one)

    def close(self) -> list[Values]:
        return []


def mixed(before: int, row: Values, salt: int) -> int:
    return (before * 31 + row[2] + 7 * row[1] + salt) % PRIME


def processed(row: Values, after: int, always_one: bool) -> list[Values]:
    copies = 1 if always_one else after % 3
    return [((row[0] + after) % 5, (row[1] + copy) % 6, after + copy) for copy in range(copies)]


def fired(key: tuple[int, ...], at: int, held: int) -> Values:
    return (at % 5, len(key), held)


def hash_of(key: tuple[int, ...]) -> int:
    """Return the hash of a key as it is in places."""
    schema = pa.schema([(f"key{n}", pa.int64()) for n in range(len(key))])
    arrays = [pa.array([part], pa.int64()) for part in key]
    hashes = KeyCodec(schema).encode(pa.RecordBatch.from_arrays(arrays, schema=schema)).hashes
    return int(hashes.view(np.int64)[0])


@dataclass
class First:
    """A model of `distinct`."""

    key: tuple[str, ...]
    seen: set[tuple[int, ...]] = field(default_factory=set)

    def open(self, now_ms: int) -> list[Values]:
        return []

    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]:
        key = key_of(row, self.key)
        if key in self.seen:
            return []
        self.seen.add(key)
        return [row]

    def close(self) -> list[Values]:
        return []


@dataclass
class Sums:
    """A model of an aggregate: row count and sum of n, for the keys that an epoch has touched."""

    key: str
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    first: dict[int, tuple[int, int]] = field(default_factory=dict)

    def open(self, now_ms: int) -> list[Values]:
        self.first = {}
        return []

    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]:
        (key,) = key_of(row, (self.key,))
        rows, total = self.held.get(key, (0, 0))
        self.held[key] = (rows + 1, total + row[2])
        self.first[key] = min(place, self.first.get(key, place))
        return []

    def close(self) -> list[Values]:
        keys = sorted(self.first, key=lambda key: self.first[key])
        sums = [(key, *self.held[key]) for key in keys]
        return sums if self.key == "a" else [(rows, key, total) for key, rows, total in sums]


def key_of(row: Values, key: Sequence[str]) -> tuple[int, ...]:
    return tuple(row["abn".index(name)] for name in key)
