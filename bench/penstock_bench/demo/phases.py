"""The story of the demo: its phases, what happens in each of them and why that is hard, and its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.sim.pieces import Piece
from penstock.sim.shapes import Steps

PhaseName = Literal["warm-up", "steady", "hotspot", "burst", "calm", "kill"]

BURST = 5
"""Bids in the burst, as a multiple of the steady rate."""
MOVES = 3
"""Places at which the hotspot is, one after the other."""
_WARM_UP_S = 6.0
"""Most seconds of the warm-up."""


@dataclass(frozen=True)
class Phase:
    """One part of the demo. Times are seconds after the end of the warm-up, which is negative time."""

    name: PhaseName
    title: str
    about: str
    """What happens, and why it is hard. One paragraph."""
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Story:
    """The demo's phases, scaled to a length in seconds, and the bids that arrive in them."""

    seconds: float
    rate: int
    """Bids per second, except in the burst."""

    @property
    def warm_up_s(self) -> float:
        """Length of the warm-up, in seconds. It comes before the story."""
        return min(_WARM_UP_S, max(1.0, self.seconds / 5))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order. The first one is the warm-up.

        >>> [(phase.name, phase.begin_s, phase.end_s) for phase in Story(90, 800).phases][2:4]
        [('hotspot', 15.0, 39.0), ('burst', 39.0, 57.0)]
        """
        whole, begin_s = sum(share for _, share, _, _ in _PHASES), 0.0
        phases = [Phase("warm-up", "Warm-up", _WARM_UP, -self.warm_up_s, 0.0)]
        for name, share, title, about in _PHASES:
            end_s = begin_s + self.seconds * share / whole
            text = about.format(rate=self.rate, burst=self.rate * BURST)
            phases.append(Phase(name, title, text, begin_s, end_s))
            begin_s = end_s
        return tuple(phases)

    def phase(self, name: PhaseName) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)

    def at(self, t_s: float) -> Phase:
        """The phase at this time."""
        return next((phase for phase in self.phases if t_s < phase.end_s), self.phases[-1])

    @property
    def arrivals(self) -> Steps:
        """Bids per second over time, from the end of the warm-up on.

        >>> Story(90, 800).arrivals.rate_at([38, 40, 58]).tolist()
        [800.0, 4000.0, 800.0]
        """
        burst = self.phase("burst")
        # A long last piece: the shape repeats, and the query takes a moment to stop.
        return Steps(
            (
                Piece(burst.begin_s, self.rate),
                Piece(burst.end_s - burst.begin_s, self.rate * BURST),
                Piece(3_600.0, self.rate),
            )
        )

    @property
    def kill_s(self) -> float:
        """When a host is killed."""
        phase = self.phase("kill")
        return phase.begin_s + (phase.end_s - phase.begin_s) / 6


_WARM_UP = "The first bids arrive, and code is compiled. Its latency is shown, and is not judged."
_PHASES: tuple[tuple[PhaseName, float, str, str], ...] = (
    (
        "steady",
        15,
        "Steady load",
        "{rate:,} bids/s, spread evenly over all auctions. This is what the hosts are there for.",
    ),
    (
        "hotspot",
        24,
        "A moving hotspot",
        "Still {rate:,} bids/s, but 95 % of them are for a quarter of the auctions, which share a host. "
        "A third and two thirds through, other auctions become the hot ones. One host has too much to do "
        "(it is called severe then) and the others too little, so slots (groups of auctions, with their "
        "state) must move.",
    ),
    (
        "burst",
        18,
        "A burst",
        "{burst:,} bids/s, five times as many, from one moment to the next. Every second without enough "
        "hosts adds seconds of waiting, so new hosts must be up and have their slots at once.",
    ),
    (
        "calm",
        15,
        "Calm again",
        "{rate:,} bids/s. Hosts that are not needed cost money. They leave one by one, once the load has "
        "been low for a while: the next burst may be near.",
    ),
    (
        "kill",
        18,
        "A host is killed",
        "{rate:,} bids/s. In a moment a host's process gets SIGKILL, in the middle of its work. Its state "
        "must come back from the checkpoint, and no bid may be lost or counted twice.",
    ),
)  # fmt: skip
