"""Shapes: the rate of a load over time, in records per second.

    steady(20000)                      a constant rate
    sine(30000, 10000, 600s)           base, amplitude and period; starts at the base and rises
    burst(4000, 5, 30s, 20s)           a base, and 5 times the base from 30 s on for 20 s; with a fifth value,
                                       such as 120s, the burst repeats every 120 s
    swell(4000, 5, 30s, 60s)           a base, and a wave up to 5 times the base, from 30 s on for 60 s
    gradual(4000, 5, 30s, 60s)         the same in straight lines: up, level, and down
    ramp(1000, 9000, 60s)              from one rate to another, which then stays
    steps(1000 for 10s, 5000 for 5s)   one rate after the other, repeated

A shape is a sequence of pieces of constant rate. It counts records exactly, in integers, so that every
process computes the same. Times count from the start of the load.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from penstock.call_text import made_of, number_text, value
from penstock.sim.pieces import Floats, Numbers, Piece, Pieces

_SINE_PIECES = 600
_RAMP_PIECES = 200
_SLOPE_PIECES = 100


@dataclass(frozen=True)
class Shape(ABC):
    """A rate over time. Records are numbered from 0 in the order of their arrival.

    >>> shape = BurstShape(base=100, factor=5, at_s=10, for_s=2)
    >>> shape.rate_at(np.array([0.0, 10.0, 12.0])).tolist()
    [100.0, 500.0, 100.0]
    >>> shape.cumulative(np.array([10_000, 12_000])).tolist()
    [1000, 2000]
    >>> shape.arrival_us(np.array([0, 1000])).tolist()
    [10000, 10002000]
    """

    repeats: ClassVar[bool] = False
    """Whether the pieces repeat at their end. If not, the last one goes on forever."""

    _pieces: Pieces = field(init=False, repr=False, compare=False)

    @abstractmethod
    def pieces(self) -> Sequence[Piece]:
        """The pieces of constant rate, from the start on."""

    def __post_init__(self) -> None:
        counted = Pieces.of(self.pieces(), self.repeats, what=str(self))
        object.__setattr__(self, "_pieces", counted)

    def rate_at(self, t_s: npt.ArrayLike) -> Floats:
        """Records per second at these times, in seconds."""
        return self._pieces.rate(_micros(t_s, 1e6))

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        """Number of records that have arrived by these times, in milliseconds, with or without fractions.

        Record i has arrived by time t exactly if `arrival_us(i)` is at most t.
        """
        return self._pieces.count(_micros(t_ms, 1e3))

    def arrival_us(self, number: Numbers) -> Numbers:
        """Arrival times of the records with these numbers, in microseconds from the start."""
        return self._pieces.arrival_us(number)

    @classmethod
    def name(cls) -> str:
        """Name of this kind of shape in texts."""
        return cls.__name__.removesuffix("Shape").lower()

    def __str__(self) -> str:
        values = [(getattr(self, f.name), f.default) for f in fields(self) if f.init]
        arguments = ", ".join(number_text(value) for value, default in values if value != default)
        return f"{self.name()}({arguments})"


def _micros(times: npt.ArrayLike, each: float) -> Numbers:
    return np.floor(np.asarray(times, np.float64) * each).astype(np.int64)


@dataclass(frozen=True)
class Steady(Shape):
    """A constant rate.

    >>> Steady(20_000).cumulative(1500).tolist()
    30000
    """

    rate: float

    def pieces(self) -> Sequence[Piece]:
        return [Piece(0, self.rate)]


@dataclass(frozen=True)
class Sine(Shape):
    """A rate of `base + amplitude * sin(2 π t / period)`, in 600 pieces per period, and never below 0.

    >>> sine = Sine(base=30_000, amplitude=10_000, period_s=600)
    >>> sine.rate_at([0, 150, 450]).round(-2).tolist(), sine.cumulative(600_000).tolist()
    ([30100.0, 40000.0, 20000.0], 18000000)
    """

    base: float
    amplitude: float
    period_s: float
    repeats: ClassVar[bool] = True

    def pieces(self) -> Sequence[Piece]:
        angles = [2 * math.pi * i / _SINE_PIECES for i in range(_SINE_PIECES + 1)]
        # the mean over a piece, so that the total of all pieces is exact
        means = [(math.cos(a) - math.cos(b)) / (b - a) for a, b in pairwise(angles)]
        each_s = self.period_s / _SINE_PIECES
        return [Piece(each_s, max(0.0, self.base + self.amplitude * mean)) for mean in means]


@dataclass(frozen=True)
class _Rise(Shape):
    """A rise above a base rate, up to `factor` times the base, from `at_s` on for `for_s` seconds."""

    base: float
    factor: float
    at_s: float
    for_s: float

    def _risen(self, parts: Sequence[float]) -> list[Piece]:
        """Pieces for the base, these fractions of the rise for equal times, and the base again."""
        each_s = self.for_s / len(parts)
        rates = [self.base * (1 + (self.factor - 1) * part) for part in parts]
        rise = (Piece(each_s, rate) for rate in rates)
        return [Piece(self.at_s, self.base), *rise, Piece(0, self.base)]


@dataclass(frozen=True)
class BurstShape(_Rise):
    """A rate of `factor` times the base from `at_s` on for `for_s`, repeated every `every_s` if not 0.

    >>> BurstShape(1000, 5, at_s=2, for_s=1, every_s=10).cumulative([10_000, 20_000]).tolist()
    [14000, 28000]
    """

    every_s: float = 0

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        return self.every_s > 0

    def pieces(self) -> Sequence[Piece]:
        rest_s = self.every_s - self.at_s - self.for_s if self.repeats else 0
        return [
            Piece(self.at_s, self.base),
            Piece(self.for_s, self.base * self.factor),
            Piece(rest_s, self.base),
        ]


@dataclass(frozen=True)
class Swell(_Rise):
    """A wave from the base up to `factor` times the base and back, from `at_s` on for `for_s`.

    >>> swell = Swell(1000, 5, at_s=10, for_s=60)
    >>> swell.rate_at([0, 40, 90]).round(-1).tolist(), swell.cumulative(70_000).tolist()
    ([1000.0, 5000.0, 1000.0], 190000)
    """

    def pieces(self) -> Sequence[Piece]:
        angles = [2 * math.pi * i / _RAMP_PIECES for i in range(_RAMP_PIECES + 1)]
        # (1 - cos) / 2 goes from 0 to 1 and back; the mean over each piece, as for a sine
        means = [(1 - (math.sin(b) - math.sin(a)) / (b - a)) / 2 for a, b in pairwise(angles)]
        return self._risen(means)


@dataclass(frozen=True)
class Gradual(_Rise):
    """A linear rise to `factor` times the base, a level, and a linear fall, from `at_s` on.

    Each of the three takes a third of `for_s`.

    >>> gradual = Gradual(1000, 5, at_s=10, for_s=60)
    >>> gradual.rate_at([0, 20, 40, 60]).round(-2).tolist(), gradual.cumulative(70_000).tolist()
    ([1000.0, 3000.0, 5000.0, 3000.0], 230000)
    """

    def pieces(self) -> Sequence[Piece]:
        up = [(i + 0.5) / _SLOPE_PIECES for i in range(_SLOPE_PIECES)]
        return self._risen([*up, *([1.0] * _SLOPE_PIECES), *reversed(up)])


@dataclass(frozen=True)
class Ramp(Shape):
    """A rate that changes linearly from `first` to `last` in 200 pieces, and then stays.

    >>> Ramp(0, 1000, over_s=10).cumulative([5_000, 10_000, 11_000]).tolist()
    [1250, 5000, 6000]
    """

    first: float
    last: float
    over_s: float

    def pieces(self) -> Sequence[Piece]:
        done = [(i + 0.5) / _RAMP_PIECES for i in range(_RAMP_PIECES)]
        rates = [self.first + (self.last - self.first) * part for part in done]
        return [*(Piece(self.over_s / _RAMP_PIECES, r) for r in rates), Piece(0, self.last)]


@dataclass(frozen=True)
class Steps(Shape):
    """One rate after the other, repeated.

    >>> steps = Steps((Piece(10, 1000), Piece(5, 5000)))
    >>> str(steps), steps.cumulative(30_000).tolist()
    ('steps(1000 for 10, 5000 for 5)', 70000)
    """

    of: tuple[Piece, ...]
    repeats: ClassVar[bool] = True

    def pieces(self) -> Sequence[Piece]:
        return self.of

    def __str__(self) -> str:
        each = [f"{number_text(p.rate)} for {number_text(p.seconds)}" for p in self.of]
        return f"steps({', '.join(each)})"


def _steps(*pairs: str) -> Steps:
    cut = [pair.partition(" for ") for pair in pairs]
    return Steps(tuple(Piece(value(time), value(rate)) for rate, _, time in cut))


def _of(kind: Callable[..., Shape]) -> Callable[..., Shape]:
    return lambda *arguments: kind(*map(value, arguments))


_MAKERS: dict[str, Callable[..., Shape]] = {
    kind.name(): _of(kind) for kind in (Steady, Sine, BurstShape, Swell, Gradual, Ramp)
} | {"steps": _steps}
_HINT = (
    "use steady(rate), sine(base, amplitude, period), burst(base, factor, at, for), "
    "swell or gradual(base, factor, at, for), ramp(first, last, over) or "
    "steps(rate for time, ...), such as sine(30000, 10000, 600s)"
)


def shape(text: str | Shape) -> Shape:
    """Parse the text of a shape. A `Shape` is returned as it is. `str` of a shape gives its text.

    >>> shape("sine(30000, 10000, 10min)")
    Sine(base=30000.0, amplitude=10000.0, period_s=600.0)
    >>> shape("steps(1000 for 10s, 5000 for 5s)").rate_at(12.0).tolist()
    5000.0
    >>> shape("saw(5)")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: unknown load 'saw(5)'. What to do: use steady(rate), ...
    """
    return text if isinstance(text, Shape) else made_of(text, "load", _MAKERS, _HINT)
