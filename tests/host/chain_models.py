"""What steps do, row by row, with plain dicts: models of those in `tests.host.chain_steps`."""

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
    """What a step does, row by row."""

    def open(self, now_ms: int) -> list[Values]: ...
    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]: ...
    def close(self) -> list[Values]: ...


@dataclass
class Mapped:
    """`map_batches`: each row as often as its number and the salt say."""

    salt: int

    def open(self, now_ms: int) -> list[Values]:
        return []

    def take(self, row: Values, place: tuple[int, int], now_ms: int) -> list[Values]:
        a, b, n = row
        return [(a, (b + copy) % 6, n) for copy in range(mapped_copies(n, self.salt))]

    def close(self) -> list[Values]:
        return []


def mapped_copies(n: int, salt: int) -> int:
    """None, one or two; of every eighth salt always just one."""
    return (n + salt) % 3 if salt % 8 else 1


@dataclass
class Processed:
    """A processor with a value for each key."""

    key: tuple[str, ...]
    salt: int
    timers: bool = False
    always_one: bool = False
    held: dict[tuple[int, ...], int] = field(default_factory=dict)
    due: set[tuple[int, int, tuple[int, ...]]] = field(default_factory=set)
    """(when, the key's hash, the key)."""

    def open(self, now_ms: int) -> list[Values]:
        given = []
        for at, hash, key in sorted(due for due in self.due if due[0] <= now_ms):
            self.due.remove((at, hash, key))
            given.append(fired(key, at, self.held.get(key, 0)))
        return given

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
    """As places have it."""
    schema = pa.schema([(f"key{n}", pa.int64()) for n in range(len(key))])
    arrays = [pa.array([part], pa.int64()) for part in key]
    hashes = KeyCodec(schema).encode(pa.RecordBatch.from_arrays(arrays, schema=schema)).hashes
    return int(hashes.view(np.int64)[0])


@dataclass
class First:
    """`distinct`."""

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
    """An aggregate: how many rows, and the sum of n, of keys that an epoch has touched."""

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
        given = [(key, *self.held[key]) for key in keys]
        return given if self.key == "a" else [(rows, key, total) for key, rows, total in given]


def key_of(row: Values, key: Sequence[str]) -> tuple[int, ...]:
    return tuple(row["abn".index(name)] for name in key)
