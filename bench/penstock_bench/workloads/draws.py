"""Random numbers that depend only on a seed and an event's number.

So an event is the same in any chunk and on any machine. Only integer arithmetic and the four IEEE
operations are used: no library's random stream and no power function.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def mixed(words: Words) -> Words:
    """Hash each word (the finisher of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class Draws:
    """Random draws for events of these numbers. Each `what` names an independent sequence.

    >>> some, other = Draws(7, np.arange(3)), Draws(7, np.arange(1, 3))
    >>> some.below(100, "price")[1:].tolist() == other.below(100, "price").tolist()
    True
    """

    def __init__(self, seed: int, numbers: Numbers) -> None:
        seeds = np.array([seed & (2**64 - 1)], np.uint64)
        self._words = mixed(numbers.astype(np.uint64) * _STRIDE + mixed(seeds + _STRIDE))

    def words(self, what: str) -> Words:
        """64 random bits for each event."""
        return mixed(self._words + np.uint64(_named(what)))

    def unit(self, what: str) -> Floats:
        """Floats from 0 (inclusive) to 1 (exclusive)."""
        unit: Floats = (self.words(what) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return unit

    def below(self, bounds: Numbers | int, what: str) -> Numbers:
        """Integers from 0 (inclusive) to the bounds (exclusive), which are 1 or more."""
        drawn: Numbers = (self.unit(what) * bounds).astype(np.int64)
        return np.minimum(drawn, np.subtract(bounds, 1))

    def price(self, what: str) -> Numbers:
        """Prices from 100 to 100,000,000, uniform on a logarithmic scale: round(10 ** (6 u) * 100)."""
        words = self.words(what)
        price = np.full(len(words), 100.0)
        for table, shift in zip(_powers(), (56, 48, 40, 32), strict=True):
            price *= table[((words >> np.uint64(shift)) & np.uint64(255)).astype(np.int64)]
        return np.floor(price + 0.5).astype(np.int64)


@cache
def _named(what: str) -> int:
    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest(), "little")


@cache
def _powers() -> tuple[Floats, ...]:
    """Tables of 10 ** (6 i / 256), 10 ** (6 i / 256²), ...: products are 10 ** (6 u) on any machine."""
    with localcontext() as context:
        context.prec = 25
        tables = [
            [float(Decimal(10) ** (Decimal(6 * i) / 256**digit)) for i in range(256)]
            for digit in (1, 2, 3, 4)
        ]
    return tuple(np.array(table) for table in tables)
