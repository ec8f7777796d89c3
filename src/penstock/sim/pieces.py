"""Exact counts of records over pieces of constant rate, in integers.

The unit of time is the microsecond, and the unit of records a billionth. The arrivals in a microsecond are
then an integer for any rate with up to three decimals, and every process computes the same counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import SettingError

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

MOST_RATE = 10_000_000
MOST_RECORDS = 9_000_000_000
"""Maximum number of records that 64-bit integers can count in billionths."""

_RECORD = 1_000_000_000
_NEVER = 2**63 - 1


class Piece(NamedTuple):
    """A period of constant rate, in records per second."""

    seconds: float
    rate: float


@dataclass(frozen=True, eq=False)
class Pieces:
    """A sequence of pieces. At its end it repeats, or the last piece goes on forever.

    >>> pieces = Pieces.of([Piece(1, 2.0), Piece(1, 4.0)], repeats=True)
    >>> t_us = np.array([499_999, 500_000, 1_000_000, 1_250_000, 3_500_000])
    >>> pieces.count(t_us).tolist()
    [0, 1, 2, 3, 10]
    >>> pieces.arrival_us(np.array([0, 1, 2, 9])).tolist()
    [500000, 1000000, 1250000, 3500000]
    """

    starts_us: Numbers
    """Start of each piece in microseconds."""
    starts: Numbers
    """Billionths of a record that have arrived when each piece begins."""
    pace: Numbers
    """Billionths of a record that arrive per microsecond in each piece."""
    period_us: int
    """Microseconds after which the pieces repeat."""
    per_period: int
    """Billionths of a record that arrive in one period."""

    @staticmethod
    def of(pieces: Sequence[Piece], repeats: bool, what: str = "the load") -> Pieces:
        """Create the sequence. Raises an error, which names `what`, if it has no or too many records."""
        if not all(piece.seconds >= 0 and 0 <= piece.rate <= MOST_RATE for piece in pieces):
            raise SettingError(
                f"{what} has a negative time, or a rate out of bounds",
                hint=f"use times of 0 s or more, and rates from 0 to {MOST_RATE:,} per second",
            )
        if not sum(piece.seconds * max(piece.rate, 1) for piece in pieces) <= MOST_RECORDS:
            raise SettingError(
                f"{what} has more than {MOST_RECORDS:,} records", hint="use shorter times"
            )
        ends_us = [round(1e6 * s) for s in np.cumsum([piece.seconds for piece in pieces])]
        starts_us, starts = [0, *ends_us[:-1]], [0]
        pace = [round(1000 * piece.rate) for piece in pieces]
        for start, end, each in zip(starts_us, ends_us, pace, strict=True):
            starts.append(starts[-1] + (end - start) * each)
        if not (starts[-1] if repeats else max(starts[-1], pace[-1])):
            raise SettingError(f"{what} has no records", hint="use a rate above 0")
        return Pieces(
            np.array(starts_us, np.int64),
            np.array(starts[:-1], np.int64),
            np.array(pace, np.int64),
            ends_us[-1] if repeats else _NEVER,
            starts[-1] if repeats else _NEVER,
        )

    def rate(self, t_us: Numbers) -> Floats:
        """Records per second at these times."""
        return np.asarray(self.pace[self._piece(t_us % self.period_us)] / 1000.0, np.float64)

    def count(self, t_us: Numbers) -> Numbers:
        """Number of records that have arrived at or before these times."""
        periods, rest = np.divmod(np.maximum(t_us, 0), self.period_us)
        piece = self._piece(rest)
        within, pace = rest - self.starts_us[piece], self.pace[piece]
        about = periods * float(self.per_period) + self.starts[piece] + within * (pace * 1.0)
        if np.max(about, initial=0.0) > MOST_RECORDS * _RECORD:
            raise SettingError(
                f"the load has had more than {MOST_RECORDS:,} records by then",
                hint="start a new load",
            )
        counted = periods * self.per_period + self.starts[piece] + within * pace
        return np.asarray(counted // _RECORD, np.int64)

    def arrival_us(self, number: Numbers) -> Numbers:
        """Arrival times of the records with these numbers, in microseconds."""
        if np.max(number, initial=0) >= MOST_RECORDS:
            raise SettingError(
                f"a load has at most {MOST_RECORDS:,} records", hint="use smaller record numbers"
            )
        periods, rest = np.divmod((number + 1) * _RECORD - 1, self.per_period)
        piece = np.searchsorted(self.starts, rest, side="right") - 1
        pace = self.pace[piece]
        if not np.all(pace):
            raise SettingError(
                "the load ends before this number of records", hint="use smaller record numbers"
            )
        within = (rest - self.starts[piece]) // pace + 1
        return np.asarray(periods * self.period_us + self.starts_us[piece] + within, np.int64)

    def _piece(self, rest_us: Numbers) -> npt.NDArray[np.intp]:
        return np.searchsorted(self.starts_us, rest_us, side="right") - 1
