"""Chains of synthetic operators with a set cost, selectivity and keys, for `penstock bench ordered`.

The runtime treats them as any other operators. Their items are chunks of records that share a key. A
chunk carries the number of the input item that it came from, so that its latency can be measured at
the exit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.runtime.operators import Kind

LEAST_S = 200e-6
"""Seconds of the shortest sleep. Shorter ones are added up, since a sleep takes 60 to 130 µs too long."""
CREDIT_S = 250e-6
"""Most seconds by which a sleep that took too long shortens the next one. This covers a late timer, but
not a wait for a lock."""

SIDE = 32
"""Rows and columns of a matrix: small enough that the BLAS library starts no threads for it."""


class Cost(Protocol):
    """The work that an operator does for records."""

    def spend(self, records: int, values: Any) -> Any:
        """Do the work for `records` records; return the values to pass on."""
        ...


class _Debt(threading.local):
    seconds = 0.0


class Asleep:
    """A cost of some microseconds per record, spent asleep. Values do not change.

    Each thread carries over time that is too short to sleep, and time that a sleep took too long.

    >>> slept = []
    >>> cost = Asleep(150, clock=lambda: sum(slept), sleep=slept.append)
    >>> [cost.spend(1, None) for _ in range(4)]
    [None, None, None, None]
    >>> [round(seconds * 1e6) for seconds in slept]
    [300, 300]
    """

    def __init__(
        self,
        us: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = us * 1e-6
        self._clock, self._sleep = clock, sleep
        self._debt = _Debt()

    def spend(self, records: int, values: Any) -> Any:
        owed = self._debt.seconds + self._seconds * records
        if owed >= LEAST_S:
            began = self._clock()
            self._sleep(owed)
            owed = max(-CREDIT_S, owed - (self._clock() - began))
        self._debt.seconds = owed
        return values


class Matrices:
    """A cost that computes: every record is a small matrix, multiplied `times` times by another one.

    >>> turned = Matrices(times=2, seed=1).spend(3, matrices(3, seed=2))
    >>> turned.shape
    (3, 32, 32)
    """

    def __init__(self, times: int, seed: int = 0) -> None:
        # A rotation: multiplying by it, however often, keeps values in range.
        self._turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((SIDE, SIDE)))
        self._times = times

    def spend(self, records: int, values: Any) -> Any:
        # Two buffers in turn: allocating memory for each product would be most of the work.
        product, spare = np.matmul(values, self._turn), np.empty_like(values)
        for _ in range(self._times - 1):
            product, spare = np.matmul(product, self._turn, out=spare), product
        return product


def matrices(records: int, seed: int = 0) -> Any:
    """Random records for `Matrices`."""
    return np.random.default_rng(seed).standard_normal((records, SIDE, SIDE))


KEYS = 1 << 20
"""Number of keys: they are integers from 0 to KEYS - 1."""
BLOCK = 4096
"""Number of keys that are drawn at once."""


@dataclass(frozen=True, slots=True)
class TrialChunk:
    """Records of one key."""

    number: int
    """Number of the input item that the chunk came from."""
    key: int
    records: int
    values: Any = None


@dataclass(frozen=True)
class Op:
    """One operator of a chain, as data."""

    kind: Kind
    us: float
    """Microseconds of work per record."""
    selectivity: float = 1.0
    """Output records per input record."""
    parts: int | None = None
    """Most parts of a keyed operator, if it has only that many keys; None if there is no limit."""
    outputs: int = 1
    """Output chunks per input chunk, each with its own key."""


class Shaped:
    """An operator of the runtime that behaves as an `Op` says.

    >>> double = Shaped("0", Op("stateless", 0.0, selectivity=2.0), Asleep(0.0))
    >>> double.split(TrialChunk(7, 5, 10))
    [(0, TrialChunk(number=7, key=5, records=10, values=None))]
    >>> double.join(None, [double.work(0, TrialChunk(7, 5, 10))])
    [TrialChunk(number=7, key=5, records=20, values=None)]
    """

    def __init__(
        self,
        name: str,
        shape: Op,
        cost: Cost,
        *,
        parts: int = 1,
        part_of: Callable[[int], int] = lambda key: 0,
        begin: Callable[[int], None] | None = None,
    ) -> None:
        self.name, self.kind, self.parts = name, shape.kind, parts
        self._shape, self._cost, self._part_of, self._begin = shape, cost, part_of, begin

    def split(self, item: TrialChunk) -> Sequence[tuple[int, TrialChunk]]:
        return [(self._part_of(item.key), item)]

    def work(self, part: int, piece: TrialChunk) -> list[TrialChunk]:
        if self._begin is not None:
            self._begin(piece.number)
        values = self._cost.spend(piece.records, piece.values)
        # Rounded by the item's number, so that fractions add up over the following items.
        share = piece.records * self._shape.selectivity
        records = int((piece.number + 1) * share) - int(piece.number * share)
        outputs = self._shape.outputs
        if outputs == 1:
            return [TrialChunk(piece.number, piece.key, records, values)]
        each = max(1, records // outputs)
        return [
            TrialChunk(piece.number, mixed(piece.key + at, 1) % KEYS, each, values)
            for at in range(outputs)
        ]

    def join(self, item: TrialChunk, results: list[list[TrialChunk]]) -> Sequence[TrialChunk]:
        return results[0]

    def size(self, item: TrialChunk) -> int:
        return item.records

    def mark(self, mark: Any) -> Sequence[TrialChunk]:
        return ()


@dataclass(frozen=True)
class TrialChain:
    """A linear chain of operators and its input."""

    shapes: tuple[Op, ...]
    records: int = 1
    """Records per input chunk."""
    delivery_us: float = 0.0
    """Microseconds to deliver a record at the exit; one worker at a time delivers."""
    sigma: float | None = None
    """Sigma of the Gaussian of keys; parts are then ranges of keys. None draws keys uniformly."""
    seed: int = 17
    cost: Callable[[Op], Cost] = field(default=lambda shape: Asleep(shape.us))
    values: Callable[[int], Any] = field(default=lambda records: None)

    def operators(self, parts: int, begin: Callable[[int], None]) -> list[Shaped]:
        """The operators, keyed ones in `parts` parts; the first one calls `begin` with each item's number."""
        operators = []
        for at, shape in enumerate(self.shapes):
            few = 1 if shape.kind != "keyed" else min(parts, shape.parts or parts)
            operators.append(
                Shaped(
                    f"{at}-{shape.kind}",
                    shape,
                    self.cost(shape),
                    parts=few,
                    part_of=self._part_of(at, few),
                    begin=None if at else begin,
                )
            )
        return operators

    def load(self) -> tuple[float, int]:
        """Seconds of work for an item, and the number of chunks that operators process for it.

        >>> TrialChain((Op("stateless", 10, 2.0, outputs=2), Op("keyed", 5)), records=100).load()
        (0.002, 3)
        """
        us, records, chunks, taken = 0.0, float(self.records), 1, 0
        for shape in self.shapes:
            us += records * shape.us
            taken += chunks
            records *= shape.selectivity
            chunks *= shape.outputs
        return us * 1e-6, taken

    def chunks(self) -> Iterator[TrialChunk]:
        """The endless input; the same on each call."""
        chance = np.random.default_rng(self.seed)
        values = self.values(self.records)
        number = 0
        while True:
            for key in keys(chance, BLOCK, self.sigma).tolist():
                yield TrialChunk(number, key, self.records, values)
                number += 1

    def _part_of(self, at: int, parts: int) -> Callable[[int], int]:
        if parts == 1:
            return lambda key: 0
        if self.sigma is not None:
            return lambda key: key * parts // KEYS
        # Each keyed operator has its own key.
        return lambda key: mixed(key, at) % parts


def keys(chance: np.random.Generator, n: int, sigma: float | None) -> Any:
    """`n` keys: uniform, or from a Gaussian around the middle that is cut to [-1, 1].

    >>> chance = np.random.default_rng(0)
    >>> middle = lambda drawn: float(np.mean(np.abs(drawn - KEYS / 2) < KEYS / 8))
    >>> [round(middle(keys(chance, 10_000, sigma)), 1) for sigma in (None, 2.0, 0.1)]
    [0.2, 0.3, 1.0]
    """
    if sigma is None:
        return chance.integers(0, KEYS, n)
    kept = np.empty(0)
    while len(kept) < n:
        drawn = chance.normal(0.0, sigma, 2 * n)
        kept = np.concatenate([kept, drawn[np.abs(drawn) < 1.0]])
    return ((kept[:n] + 1.0) / 2.0 * KEYS).astype(np.int64)


def mixed(key: int, salt: int) -> int:
    """A hash of a key: unrelated to the key, but always the same for it.

    >>> mixed(1, 1) == mixed(1, 1), mixed(1, 1) == mixed(1, 2)
    (True, False)
    """
    word = (key * 0x9E3779B1 + salt * 0x85EBCA77 + 1) & 0xFFFFFFFF
    word = ((word ^ (word >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return word ^ (word >> 13)
