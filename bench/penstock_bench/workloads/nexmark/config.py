"""Settings of the generator: the same settings give the same events on any machine.

Events come in rounds of fifty: one person, then three auctions, then bids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from penstock.errors import SettingError
from penstock.sim.pieces import Numbers
from penstock_bench.workloads.nexmark.columns import STREAMS, Stream

ShapeName = Literal["flat", "burst", "sine", "step"]
Hot = Literal["canonical", "zipf"]

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
"""New persons, new auctions and bids in each round of 50 events, in this order."""
ROUND = PEOPLE + AUCTIONS + BIDS
MOST_EVENTS = 9_000_000_000
MOST_RATE = 10_000_000
MOST_IN_PERIOD = 3_000_000_000
"""Limits that keep counts exact in 64-bit integers, see `shapes.py`."""


@dataclass(frozen=True)
class NexmarkConfig:
    """Settings of the generator; the defaults are those of the canonical generator.

    >>> NexmarkConfig(events=100, shape="saw")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: Unknown shape 'saw'. What to do: use one of flat, burst, sine, step
    """

    events: int
    """Number of events: persons, auctions and bids together."""
    seed: int = 1
    rate: int = 10_000
    """Events per second of event time, where the shape's factor is 1."""
    shape: ShapeName = "flat"
    """Change of the rate over a period; see `shapes.py`."""
    period_s: int = 60
    """Seconds after which a shape repeats."""
    hot: Hot = "canonical"
    """Choice of hot keys. canonical: the hot auction, bidder and seller change after every `hot_batch` of
    their kind. zipf: the first `hot_set` of each kind stay hot, drawn by Zipf's law."""
    disorder_ms: int = 0
    """Most milliseconds between an event's time and its place in the file: files are out of order."""
    base_ms: int = 1_436_918_400_000
    """Time of event 0, in milliseconds of Unix time: 2015-07-15T00:00:00Z."""

    hot_auction_ratio: int = 2
    """With n, all but one in n bids go to a hot auction."""
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    hot_batch: int = 100
    """Only for canonical: keys between one hot key and the next."""
    in_flight: int = 100
    """Average number of open auctions."""
    active_people: int = 1_000
    """Number of people who bid and sell: the newest ones."""
    hot_set: int = 100
    """Only for zipf: number of hot auctions, bidders and sellers."""
    zipf_exponent: float = 1.0
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100

    def __post_init__(self) -> None:
        if self.shape not in get_args(ShapeName):
            shapes = ", ".join(get_args(ShapeName))
            raise SettingError(f"Unknown shape {self.shape!r}", hint=f"use one of {shapes}")
        if self.hot not in get_args(Hot):
            raise SettingError(
                f"Unknown kind of hot keys {self.hot!r}", hint="use canonical or zipf"
            )
        _within("events", self.events, 0, MOST_EVENTS)
        _within("rate", self.rate, 1, MOST_RATE)
        _within("period_s", self.period_s, 1, 86_400)
        _within("rate × period_s", self.rate * self.period_s, 1, MOST_IN_PERIOD)
        _within("disorder_ms", self.disorder_ms, 0, 86_400_000)
        _within("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("hot_auction_ratio", "hot_bidder_ratio", "hot_seller_ratio"):
            _within(name, getattr(self, name), 1, 1_000_000)
        for name in ("hot_batch", "in_flight", "active_people", "hot_set"):
            _within(name, getattr(self, name), 1, 10_000_000)
        for name in ("person_bytes", "auction_bytes", "bid_bytes"):
            _within(name, getattr(self, name), 0, 100_000)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingError(f"{name} is {value}", hint=f"{name} must be from {low:,} to {high:,}")


_EACH: dict[Stream, int] = {"person": PEOPLE, "auction": AUCTIONS, "bid": BIDS}


class RoundPlaces(NamedTuple):
    """Consecutive events in each round: the first one's place, and their number."""

    first: int
    each: int

    def events(self, number: Numbers) -> Numbers:
        """Numbers among all events of the events with these numbers among these places."""
        return number // self.each * ROUND + self.first + number % self.each


def places(*streams: Stream) -> RoundPlaces:
    """The places of a stream's events in a round, or of several consecutive streams.

    >>> import numpy as np
    >>> places("auction").events(np.arange(4)).tolist()
    [1, 2, 3, 51]
    >>> places("auction", "bid")
    RoundPlaces(first=1, each=49)
    """
    before = STREAMS.index(streams[0])
    if streams != STREAMS[before : before + len(streams)]:
        raise SettingError(
            f"{' and '.join(streams)} are not consecutive in a round",
            hint=f"the order is {', '.join(STREAMS)}",
        )
    return RoundPlaces(sum(_EACH[s] for s in STREAMS[:before]), sum(_EACH[s] for s in streams))
