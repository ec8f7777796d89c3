"""Hosts as slow as they are told to be, so that a small machine can stand for many."""

from __future__ import annotations

from collections.abc import Sequence


class Pace:
    """Makes a host take no more than so many records a second. None: as fast as it can.

    >>> Pace(1_000).rest(records=500, spent_s=0.1), Pace(None).rest(500, 0.1)
    (0.4, 0.0)
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate

    def rest(self, records: int, spent_s: float) -> float:
        """The seconds that are left until so many records have taken their time."""
        return 0.0 if self._rate is None else max(0.0, records / self._rate - spent_s)


def rate_of(host: str, rates: Sequence[float]) -> float | None:
    """The rate of a host by its number, the rates repeating; None if there are none.

    >>> rate_of("sum/4", (100.0, 50.0, 75.0)), rate_of("sum/4", ())
    (50.0, None)
    """
    return rates[int(host.rsplit("/", 1)[1]) % len(rates)] if rates else None
