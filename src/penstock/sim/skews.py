"""Skews: how unevenly a load is distributed over slots or keys.

uniform                    all slots get the same
zipf(0.8)                  the r-th most frequent gets a share in proportion to r ** -0.8
hotspot(0.5, 3)            half of the records go to a third of the slots, which are next to each other, as
                           the first slots of one of three hosts are
hotspot(0.8, 5, 2, 30s)    80 % of the records go to two fifths of the slots, and the hot part moves on by a
                           fifth every 30 s
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from penstock.call_text import made_of, number_text, value
from penstock.errors import SettingError
from penstock.sim.pieces import Floats, Numbers

_APART = 2_654_435_761
"""A prime. It puts neighbours in rank far apart in number, like keys that are spread by a hash."""


class Skew(ABC):
    """Shares of a load for n slots or keys. They may change over time."""

    of_slots: ClassVar[bool] = True
    """Whether the load is uneven over slots. If not, it is uneven over keys."""

    @abstractmethod
    def weights(self, n: int, t_s: float = 0.0) -> Floats:
        """Share of each of n slots or keys at time `t_s`, in seconds. They add up to 1."""

    def phase(self, t_s: Floats) -> Numbers:
        """A number for each time. It is equal at times with the same shares."""
        return np.zeros(len(t_s), np.int64)

    def chosen(self, n: int, unit: Floats, t_s: Floats) -> Numbers:
        """One of n slots or keys for each record, by its random number from 0 to 1 and its time."""
        phases = self.phase(t_s)
        chosen = np.empty(len(unit), np.int64)
        for phase in np.unique(phases):
            at = np.flatnonzero(phases == phase)
            reached = np.cumsum(self.weights(n, float(t_s[at[0]])))
            index = np.searchsorted(reached, unit[at] * reached[-1], side="right")
            chosen[at] = np.minimum(index, n - 1)
        return chosen


@dataclass(frozen=True)
class Uniform(Skew):
    """The same share for all.

    >>> Uniform().weights(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def weights(self, n: int, t_s: float = 0.0) -> Floats:
        return np.full(n, 1.0 / n)

    def __str__(self) -> str:
        return "uniform"


@dataclass(frozen=True)
class Zipf(Skew):
    """Shares in proportion to r ** -exponent for the r-th most frequent. Ranks are in a mixed order.

    >>> Zipf(1.0).weights(4).round(2).tolist()
    [0.48, 0.24, 0.16, 0.12]
    """

    exponent: float
    of_slots: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.exponent <= 10:
            raise SettingError(f"the exponent of zipf is {self.exponent:g}", hint="use 0 to 10")

    def weights(self, n: int, t_s: float = 0.0) -> Floats:
        ranked = _ranked(n, self.exponent)
        weights = np.empty(n)
        weights[np.arange(n) * _APART % n] = ranked / ranked.sum()
        return weights

    def __str__(self) -> str:
        return f"zipf({number_text(self.exponent)})"

    def ranks(self, n: int, unit: Floats) -> Numbers:
        """Ranks from 0 (the most frequent) to n - 1, for random numbers from 0 to 1.

        >>> Zipf(1.0).ranks(3, np.array([0.0, 0.54, 0.56, 0.81, 0.82, 1.0])).tolist()
        [0, 0, 1, 1, 2, 2]
        """
        ranks = np.searchsorted(_reached(n, self.exponent), unit, side="right")
        return np.minimum(ranks, n - 1).astype(np.int64)


def _ranked(n: int, exponent: float) -> Floats:
    return np.asarray(np.arange(1, n + 1, dtype=np.float64) ** -exponent, np.float64)


@lru_cache(maxsize=16)
def _reached(n: int, exponent: float) -> Floats:
    """Cumulative share of each rank. Cached, because it takes long for many ranks."""
    reached = np.cumsum(_ranked(n, exponent))
    return np.asarray(reached / reached[-1], np.float64)


@dataclass(frozen=True)
class Hotspot(Skew):
    """A share of `share` of the records goes to `hot` of `of` equal parts of neighbouring slots.

    Every `every_s` seconds (0: never) the next part becomes hot and the first hot part cools down.

    >>> Hotspot(0.5, of=3).weights(6).round(3).tolist()
    [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    >>> Hotspot(0.5, of=3, every_s=10).weights(6, t_s=25).round(3).tolist()
    [0.125, 0.125, 0.125, 0.125, 0.25, 0.25]
    """

    share: float
    of: int
    hot: int = 1
    every_s: float = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 1 <= self.hot < self.of and self.every_s >= 0):
            raise SettingError(
                f"{self} is not a valid hotspot",
                hint="use a share from 0 to 1, and fewer hot parts than parts: hotspot(0.8, 5, 2)",
            )

    def weights(self, n: int, t_s: float = 0.0) -> Floats:
        if n < self.of:
            raise SettingError(
                f"{n} slots cannot be divided into {self.of} parts", hint="use more slots"
            )
        share, more = divmod(n, self.of)
        part = np.repeat(np.arange(self.of), share + (np.arange(self.of) < more))
        first = int(self.phase(np.array([t_s]))[0])
        hot = (part - first) % self.of < self.hot
        weights = np.where(hot, self.share / hot.sum(), (1 - self.share) / (~hot).sum())
        return np.asarray(weights, np.float64)

    def phase(self, t_s: Floats) -> Numbers:
        if not self.every_s:
            return super().phase(t_s)
        return np.floor(t_s / self.every_s).astype(np.int64) % self.of

    def __str__(self) -> str:
        share, every = number_text(self.share), number_text(self.every_s)
        return f"hotspot({share}, {self.of}, {self.hot}, {every})"


_MAKERS: dict[str, Callable[..., Skew]] = {
    "uniform": Uniform,
    "zipf": lambda exponent: Zipf(value(exponent)),
    "hotspot": lambda share, of, hot="1", every="0": Hotspot(
        value(share), int(of), int(hot), value(every)
    ),
}


def skew(text: str | Skew) -> Skew:
    """Parse the text of a skew. A `Skew` is returned as it is. `str` of a skew gives its text.

    >>> skew("hotspot(0.8, 5, 2, 30s)")
    Hotspot(share=0.8, of=5, hot=2, every_s=30.0)
    >>> skew("pareto(1)")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: unknown skew 'pareto(1)'. What to do: use uniform, ...
    """
    hint = "use uniform, zipf(exponent) or hotspot(share, of, hot, every), such as "
    return (
        text
        if isinstance(text, Skew)
        else made_of(text, "skew", _MAKERS, hint + "hotspot(0.8, 5, 2, 30s)")
    )
