"""The live runs of `penstock bench burst`, as values.

Hosts have a set service rate, so that two cores can stand for many. Two hosts are enough for the stable
load; a burst of n times that load needs n times as many. Unpaced runs have hosts and functions as fast as
they are, couriers that combine, and a burst of about what two cores carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.sim.shapes import Shape, shape
from penstock_bench.burst.sides import LIVE, Side
from penstock_bench.workloads.nexmark.live import burst_form

CORES = 40
"""Spark task slots: enough for the most hosts of every step, and for the couriers."""
SLOTS = 60
"""Slots of a step: they spread evenly, or nearly so, over 2, 6, 10 and 14 hosts."""


@dataclass(frozen=True)
class LiveBurst:
    """One live run: a query, a burst, and the side that answers it."""

    query: str
    side: Side
    factor: float = 5.0
    """Load in the burst, as a multiple of the stable load."""
    at_s: int = 20
    """Seconds of stable load before the burst."""
    for_s: int = 30
    """Seconds that the burst lasts."""
    after_s: int = 5
    """Seconds of stable load after the burst."""
    hosts: int = 2
    """Hosts that the stable load needs, in the step that gets the burst."""
    other_hosts: int = 1
    """Hosts of each other step, which gets only one record per key and window."""
    host_rate: float = 4_000.0
    """Records per second that a host, or a function, processes. It must not be small: with few records an
    epoch has few keys, which do not spread evenly over hosts."""
    load: float = 0.65
    """Share of the time that the stable load keeps the first hosts busy."""
    unpaced_rate: float | None = None
    """Events per second of the stable load, on hosts and functions without a set rate and with couriers that
    combine. None: hosts and functions are paced, and couriers do not combine."""
    functions: int = 24
    """Most functions that run at once."""
    seed: int = 1
    """Seed of the rows."""
    latency_s: float = 2.0
    """The SLA's bound in seconds: loose enough that the stable load keeps it without more hosts."""

    @property
    def name(self) -> str:
        return f"{self.query}, {self.side}, seed {self.seed}"

    @property
    def shape(self) -> Shape:
        """The rate over time of the events that the query reads.

        >>> LiveBurst("q7", "penstock", host_rate=500.0, load=0.5).shape.rate_at([0, 20]).tolist()
        [500.0, 2500.0]
        """
        paced = self.load * self.hosts * self.host_rate / burst_form(self.query).records
        base = paced if self.unpaced_rate is None else self.unpaced_rate
        return shape(f"burst({base:.1f}, {self.factor:g}, {self.at_s}s, {self.for_s}s)")

    @property
    def seconds(self) -> int:
        """Seconds in which events arrive."""
        return self.at_s + self.for_s + self.after_s

    @property
    def most_hosts(self) -> int:
        """Number of hosts that are as busy in the burst as `hosts` are in the stable load.

        >>> LiveBurst("q7", "penstock", factor=7).most_hosts
        14
        """
        return round(self.hosts * self.factor)

    @property
    def stateless(self) -> bool:
        """Whether the query has no hosts: couriers do the work, and Spark sets their number."""
        return self.query == "q1"


def of(queries: Iterable[str], sides: Sequence[Side], like: LiveBurst) -> tuple[LiveBurst, ...]:
    """A copy of `like` for each query and side."""
    return tuple(replace(like, query=query, side=side) for query in queries for side in sides)


DEFAULT = LiveBurst("q7", "penstock")
WARM_UP = replace(DEFAULT, side="overprovisioned", factor=1.5, at_s=8, for_s=6, after_s=2)
"""A first run that warms up a new session and does not count."""

FULL = (
    *of(("q7",), LIVE, DEFAULT),
    *of(("q5", "q4", "q6", "q8"), ("new_hosts_30s", "penstock", "overprovisioned"), DEFAULT),
    *of(("q1",), ("penstock", "overprovisioned"), DEFAULT),
)
"""All live runs. q1 has no side with new hosts, since couriers cannot be added."""
QUICK = of(("q7",), ("penstock", "overprovisioned"), replace(DEFAULT, factor=3.0, at_s=12, for_s=8))
UNPACED_RATES = {
    "q7": 20_000.0,
    "q5": 20_000.0,
    "words": 2_500.0,
    "skewed": 20_000.0,
    "own": 5_000.0,
    "joined": 5_000.0,
}
"""Events per second of the stable load. A sentence has eight words, and user logic and joins take longer."""
SEEDS = 3


def unpaced(query: str) -> tuple[LiveBurst, ...]:
    """Runs of a query with `SEEDS` seeds, and one run of each side to compare with: under six minutes."""
    like = replace(
        DEFAULT,
        query=query,
        unpaced_rate=UNPACED_RATES[query],
        hosts=1,
        at_s=12,
        for_s=15,
        functions=2,
    )
    return (
        *(replace(like, seed=seed) for seed in range(1, SEEDS + 1)),
        *of((query,), ("no_scaling", "overprovisioned"), like),
    )


UNPACED = {query: unpaced(query) for query in UNPACED_RATES}
"""Query -> its runs without a set rate."""
