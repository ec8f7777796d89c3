"""Which events are of which stream: of each fifty, the first is a person, then auctions, then bids."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import SettingError
from penstock.sim.pieces import Numbers
from penstock_bench.workloads.nexmark.columns import STREAMS, Stream
from penstock_bench.workloads.nexmark.config import AUCTIONS, BIDS, PEOPLE, ROUND

_EACH: dict[Stream, int] = {"person": PEOPLE, "auction": AUCTIONS, "bid": BIDS}


class RoundPlaces(NamedTuple):
    """A run of events in each round: the first one's place, and how many."""

    first: int
    each: int

    def events(self, number: Numbers) -> Numbers:
        """The numbers, among all events, of those that are so many-th in these places."""
        return number // self.each * ROUND + self.first + number % self.each


def places(*streams: Stream) -> RoundPlaces:
    """Where the events of a stream are, or of streams that follow one another in a round.

    >>> import numpy as np
    >>> places("auction").events(np.arange(4)).tolist()
    [1, 2, 3, 51]
    >>> places("auction", "bid")
    RoundPlaces(first=1, each=49)
    """
    before = STREAMS.index(streams[0])
    if streams != STREAMS[before : before + len(streams)]:
        raise SettingError(
            f"{' and '.join(streams)} do not follow one another in a round",
            hint=f"the order is {', '.join(STREAMS)}",
        )
    return RoundPlaces(sum(_EACH[s] for s in STREAMS[:before]), sum(_EACH[s] for s in streams))
