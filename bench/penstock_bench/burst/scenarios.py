"""The live runs of `penstock bench burst`, as values.

Hosts have a set service rate, so that two cores can stand for many. Two hosts are as busy as they
should be when the burst comes; the burst needs as many times more as it is times the stable load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.sim.shapes import Shape, shape
from penstock_bench.burst.sides import LIVE, Side
from penstock_bench.workloads.nexmark.live import burst_form

CORES = 40
"""Task slots: as many hosts as any step may get, and the couriers."""
SLOTS = 60
"""Two, six, ten and fourteen hosts get as many, or nearly so."""


@dataclass(frozen=True)
class LiveBurst:
    """One live run: a query, a burst, and what is done about it."""

    query: str
    side: Side
    factor: float = 5.0
    """Times the stable load."""
    at_s: int = 20
    for_s: int = 30
    after_s: int = 5
    """Seconds that events go on to arrive after the burst."""
    hosts: int = 2
    """Hosts that the stable load needs, in the step that gets the burst."""
    other_hosts: int = 1
    """Hosts of each other step, which gets a record of each key and window only."""
    host_rate: float = 4_000.0
    """Records a second that a host takes, and a function. With few records an epoch has few keys,
    and no number of hosts shares those evenly."""
    load: float = 0.65
    """The part of the time that the stable load keeps those hosts busy."""
    functions: int = 24
    """Functions at most."""
    latency_s: float = 2.0
    """The SLA's bound: loose enough that the stable load keeps it without more hosts."""

    @property
    def name(self) -> str:
        return f"{self.query}, {self.side}"

    @property
    def shape(self) -> Shape:
        """The rate over time of the events that the query reads.

        >>> LiveBurst("q7", "penstock", host_rate=500.0, load=0.5).shape.rate_at([0, 20]).tolist()
        [500.0, 2500.0]
        """
        base = self.load * self.hosts * self.host_rate / burst_form(self.query).records
        return shape(f"burst({base:.1f}, {self.factor:g}, {self.at_s}s, {self.for_s}s)")

    @property
    def seconds(self) -> int:
        """Seconds in which events arrive."""
        return self.at_s + self.for_s + self.after_s

    @property
    def most_hosts(self) -> int:
        """Hosts that are as busy in the burst as two are in stable times.

        >>> LiveBurst("q7", "penstock", factor=7).most_hosts
        14
        """
        return round(self.hosts * self.factor)

    @property
    def stateless(self) -> bool:
        """Whether there is no host at all: couriers do the work, and their number is Spark's."""
        return self.query == "q1"


def of(queries: Iterable[str], sides: Sequence[Side], like: LiveBurst) -> tuple[LiveBurst, ...]:
    """Each query with each side."""
    return tuple(replace(like, query=query, side=side) for query in queries for side in sides)


DEFAULT = LiveBurst("q7", "penstock")
WARM_UP = replace(DEFAULT, side="overprovisioned", factor=1.5, at_s=8, for_s=6, after_s=2)
"""A first run, for a session that has just begun."""

FULL = (
    *of(("q7",), LIVE, DEFAULT),
    *of(("q5", "q4", "q6", "q8"), ("new_hosts_30s", "penstock", "overprovisioned"), DEFAULT),
    *of(("q1",), ("penstock", "overprovisioned"), DEFAULT),
)
"""Couriers cannot be added: q1 has no side with new hosts."""
QUICK = of(("q7",), ("penstock", "overprovisioned"), replace(DEFAULT, factor=3.0, at_s=12, for_s=8))
