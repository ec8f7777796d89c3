"""Records counted over pieces of constant rate, in integers: exact, never going back.

The unit of time is the microsecond, and of records a billionth: what arrives in a microsecond is
then an integer for any rate with up to three decimals, and what has arrived is the same in every
process that asks.
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
"""What integers of 64 bits can count in billionths."""

_RECORD = 1_000_000_000
_NEVER = 2**63 - 1


class Piece(NamedTuple):
    """A time in which the rate stays the same."""

    seconds: float
    rate: float


@dataclass(frozen=True, eq=False)
class Pieces:
    """One piece after the other. In the end they begin anew, or the last one lasts for ever.

    >>> pieces = Pieces.of([Piece(1, 2.0), Piece(1, 4.0)], repeats=True)
    >>> t_us = np.array([499_999, 500_000, 1_000_000, 1_250_000, 3_500_000])
    >>> pieces.count(t_us).tolist()
    [0, 1, 2, 3, 10]
    >>> pieces.arrival_us(np.array([0, 1, 2, 9])).tolist()
    [500000, 1000000, 1250000, 3500000]
    """

    starts_us: Numbers
    starts: Numbers
    """Billionths of a record that have come when a piece begins."""
    pace: Numbers
    """Billionths of a record that come in a microsecond."""
    period_us: int
    per_period: int

    @staticmethod
    def of(pieces: Sequence[Piece], repeats: bool, what: str = "the load") -> Pieces:
        """Refuses what cannot be counted, or brings nothing; `what` is how errors call it."""
        if not all(piece.seconds >= 0 and 0 <= piece.rate <= MOST_RATE for piece in pieces):
            raise SettingError(
                f"{what} has a negative time, or a rate out of bounds",
                hint=f"give times of 0 s or more, and rates from 0 to {MOST_RATE:,} a second",
            )
        if not sum(piece.seconds * max(piece.rate, 1) for piece in pieces) <= MOST_RECORDS:
            raise SettingError(
                f"{what} brings more than {MOST_RECORDS:,} records", hint="give shorter times"
            )
        ends_us = [round(1e6 * s) for s in np.cumsum([piece.seconds for piece in pieces])]
        starts_us, starts = [0, *ends_us[:-1]], [0]
        pace = [round(1000 * piece.rate) for piece in pieces]
        for start, end, each in zip(starts_us, ends_us, pace, strict=True):
            starts.append(starts[-1] + (end - start) * each)
        if not (starts[-1] if repeats else max(starts[-1], pace[-1])):
            raise SettingError(f"{what} brings no records", hint="give a rate above 0")
        return Pieces(
            np.array(starts_us, np.int64),
            np.array(starts[:-1], np.int64),
            np.array(pace, np.int64),
            ends_us[-1] if repeats else _NEVER,
            starts[-1] if repeats else _NEVER,
        )

    def rate(self, t_us: Numbers) -> Floats:
        """Records a second at these times."""
        return np.asarray(self.pace[self._piece(t_us % self.period_us)] / 1000.0, np.float64)

    def count(self, t_us: Numbers) -> Numbers:
        """How many records have arrived by these times: those whose arrival is not later."""
        periods, rest = np.divmod(np.maximum(t_us, 0), self.period_us)
        piece = self._piece(rest)
        within, pace = rest - self.starts_us[piece], self.pace[piece]
        about = periods * float(self.per_period) + self.starts[piece] + within * (pace * 1.0)
        if np.max(about, initial=0.0) > MOST_RECORDS * _RECORD:
            raise SettingError(
                f"the load has brought more than {MOST_RECORDS:,} records by then",
                hint="begin a new one",
            )
        counted = periods * self.per_period + self.starts[piece] + within * pace
        return np.asarray(counted // _RECORD, np.int64)

    def arrival_us(self, number: Numbers) -> Numbers:
        """When the records of these numbers arrive: the first microsecond that counts them."""
        if np.max(number, initial=0) >= MOST_RECORDS:
            raise SettingError(
                f"only {MOST_RECORDS:,} records can be told apart", hint="ask for earlier ones"
            )
        periods, rest = np.divmod((number + 1) * _RECORD - 1, self.per_period)
        piece = np.searchsorted(self.starts, rest, side="right") - 1
        pace = self.pace[piece]
        if not np.all(pace):
            raise SettingError("the load ends before so many records", hint="ask for earlier ones")
        within = (rest - self.starts[piece]) // pace + 1
        return np.asarray(periods * self.period_us + self.starts_us[piece] + within, np.int64)

    def _piece(self, rest_us: Numbers) -> npt.NDArray[np.intp]:
        return np.searchsorted(self.starts_us, rest_us, side="right") - 1
