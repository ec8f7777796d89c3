"""What the simulated runs of `penstock bench burst` assume, each with where it comes from.

Times are milliseconds, sizes bytes. *Published* is Sponge's evaluation (its table 1 and section 6);
*here* is what was measured with this code (docs/results.md).

A query is its busy step: the one that gets the many rows, on hosts that are about two thirds busy. A
join behind it cannot be offloaded: it is a second step that works after the first in every epoch,
on hosts of its own, which only the switch can help. The two take turns, so their hosts share cores,
and cores are what is paid for. Other steps behind them get next to nothing and are left out. q1 has
no keyed step: what its couriers do is modelled as a step without state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from penstock.model import SLA, StepId
from penstock.sim.burst_workers import WorkerPlane
from penstock.sim.plane import Following, Plane
from penstock_bench.burst.sides import Side

STABLE_LOAD = 0.68
"""The part of the time that hosts are busy before a burst. Published: 60 to 80 %."""
HOSTS = 5
"""Hosts before a burst. Published: 5 workers (of 4 cores; here a host is one core)."""
FUNCTIONS = 50
"""Functions at a time. Published: 200 of one core for 20 cores of workers; the same in proportion."""
SLOTS = 420
"""A number that spreads evenly over the 5 hosts, and nearly so over 15, 25, 35 and 50."""
BOUND = SLA(2000, 1000)
"""Latency and window: loose enough for hosts that are two thirds busy in epochs of 0.3 s (mean 0.47
s, and the switch is alerted at half of the bound), and results are due each second, as published."""
EPOCH_COST_MS = 100.0
"""Here: 97 ms a trigger of 10,000 rows; 104 to 106 ms an epoch, live, on paced hosts."""
HOST_START_MS = 500.0
"""Here: from a decision until a new host works, in a session that has room for it."""
MACHINE_START_MS = 30_000.0
"""Milliseconds until a machine for a host is there. Published: 25 to 30 s, and 4 s more for the JVM; here the
host's own start is added instead."""
SWITCH_MS = 200.0
"""Milliseconds that hosts which give or get slots stop, without their state. Here: at 50 MB the peak of a
stopping migration is 0.2 s above the latency at rest."""
MOVE_BYTES_S = 600e6
"""State that goes out of one host into another, in bytes a second. Here: 500 to 700 MB/s."""
FUNCTION_BYTES_S = 12.5e6
"""Into one function. Published: about 100 Mbit/s each, whatever its size."""
FUNCTION_START_MS = 500.0
"""Milliseconds until a cold function works. Published: 300 to 750 ms on a cloud; here a local one
takes 30 ms, which would flatter the sides with functions."""
FUNCTION_OVERHEAD_MS = 20.0
"""Milliseconds that invoking a warm one costs. Here: 1 ms alone, up to 80 ms with eight on two busy cores."""
FUNCTION_SPEED = 1.0
"""Relative to a host. Published: one whole core for 1,769 MB."""
JOIN_COST = 0.1
"""The cost of a row in a join, in rows of the busy step. Published: what groups by key is the bottleneck; a
row of it belongs to 60 windows, of 60 s each second, and a record of each key to one."""
MERGE_COST = 1.0
"""The cost of a partial state on its host, in rows. Here: hosts with a set rate count both alike."""


@dataclass(frozen=True)
class QueryFigures:
    """One query. Rates and state sizes are those of the published table 1."""

    name: str
    rate: float
    """Rows a second of the busy step, before a burst."""
    state_bytes: float
    """State of the busy step, all hosts together."""
    partials_per_row: float
    partials_each: float
    """Keys among the rows that one courier hands over: so many for a row, and so many in any case.
    Fitted to what this repo's generator gives, with the benchmark's figures, for 1,000 to 100,000
    rows in a row."""
    joined: float = 0.0
    """Rows that a join behind it gets, for a row of the busy step; 0: there is none."""

    @property
    def busy_load(self) -> float:
        """The busy step's load of its hosts: with the join's, it makes up the stable load."""
        return STABLE_LOAD / (1.0 + JOIN_COST * self.joined)

    @property
    def host_rate(self) -> float:
        """Rows a second of useful time that a host takes.

        >>> round(QUERIES["q7"].host_rate), round(QUERIES["q4"].host_rate)
        (4412, 56610)
        """
        return self.rate / HOSTS / self.busy_load


_AUCTIONS_A_BID = 3 / 46
"""NEXMark has 1 person and 3 auctions to 46 bids."""
_PEOPLE_AN_AUCTION = 1 / 3
_BID_ON = (0.065, 82.0)
"""Auctions that are bid on, over bids; and those that are bid on all the time. Of many seconds only
the first counts: a record each for a join behind them."""
_SELLERS = (0.18, 45.0)
"""Sellers over auctions, in the same way."""

QUERIES: dict[str, QueryFigures] = {
    query.name: query
    for query in (
        QueryFigures("q1", 550_000.0, 0.0, 0.0, 0.0),
        QueryFigures("q4", 190_000.0, 90e6, *_BID_ON, joined=_AUCTIONS_A_BID + _BID_ON[0]),
        QueryFigures("q5", 19_000.0, 2.4e9, *_BID_ON),
        QueryFigures("q6", 230_000.0, 73e6, *_BID_ON, joined=_AUCTIONS_A_BID + _BID_ON[0]),
        QueryFigures("q7", 15_000.0, 1.5e9, *_BID_ON),
        QueryFigures("q8", 60_000.0, 7e9, *_SELLERS, joined=_PEOPLE_AN_AUCTION + _SELLERS[0]),
    )
}

STABLE_S = 20
"""Seconds before a burst."""
FACTORS = (3, 5, 7, 10)
LENGTHS_S = (30, 60, 120)
USUAL_FACTOR, USUAL_S = 5, 60
"""Size and length of sine and gradual bursts, and of what is looked at in more detail, as published."""


MIGRATING: tuple[Side, ...] = ("functions_migrating", "routers", "routers_transients")
"""Sides on which functions take over slots, as hosts do."""
_STARTS_MS: dict[Side, float] = {
    "new_hosts": HOST_START_MS,
    "hosts_beforehand": 0.0,
    # kept warm, as in Sponge's comparison: only the invocation
    **dict.fromkeys(MIGRATING, FUNCTION_OVERHEAD_MS),
}


def hosts_of(side: Side, factor: float) -> int:
    """Hosts in the beginning.

    >>> hosts_of("penstock", 5), hosts_of("overprovisioned", 5)
    (5, 25)
    """
    return math.ceil(HOSTS * factor) if side == "overprovisioned" else HOSTS


def policy_of(side: Side, hosts: int) -> str:
    """The policy of the busy step."""
    return f"static({hosts})" if side in ("no_scaling", "overprovisioned") else "switch"


def machines(query: QueryFigures, side: Side, slots: int) -> Plane:
    """Hosts and functions of the busy step.

    Where a machine has to be started for a new host, that is so for Penstock's hosts, too.

    >>> machines(QUERIES["q8"], "functions_migrating", 420).take_slot_ms.__round__()
    1333
    """
    slot_bytes, moving = query.state_bytes / slots, side in MIGRATING
    machine_ms = MACHINE_START_MS + HOST_START_MS
    return Plane(
        service_rate=query.host_rate,
        start_host_ms=_STARTS_MS.get(side, machine_ms),
        # Tasks that are there already need not stop to be moved; their state must.
        switch_ms=0.0 if side == "routers_transients" else SWITCH_MS,
        move_slot_ms=1000.0 * slot_bytes / MOVE_BYTES_S,
        take_slot_ms=1000.0 * slot_bytes / FUNCTION_BYTES_S if moving else None,
        engine="epochs",
        epoch_cost_ms=EPOCH_COST_MS,
        revises=True,
        burst_workers=_functions(query, side),
    )


def _functions(query: QueryFigures, side: Side) -> WorkerPlane | None:
    if side not in ("penstock", "no_warm"):
        return None
    usual = WorkerPlane(
        at_most=FUNCTIONS,
        speed=FUNCTION_SPEED,
        start_ms=FUNCTION_START_MS,
        overhead_ms=FUNCTION_OVERHEAD_MS,
        partials_per_row=query.partials_per_row,
        partials_each=query.partials_each,
        couriers=HOSTS,
        merge_cost=MERGE_COST,
    )
    return usual if side == "penstock" else replace(usual, warm_for=0.0)


def join_of(query: QueryFigures, side: Side, slots: int, hosts: int) -> Following:
    """The step behind the busy one. Its state is taken to be small.

    Functions do not talk to each other, so where the busy step is on functions this one is not,
    unless there are routers between them.
    """
    plane = replace(
        machines(query, side, slots),
        service_rate=query.host_rate / JOIN_COST,
        burst_workers=None,
        move_slot_ms=0.0,
        take_slot_ms=0.0,
    )
    return Following(
        StepId("join"),
        slots,
        query.joined,
        hosts=hosts,
        policy=f"static({hosts})" if side == "functions_migrating" else None,
        plane=plane,
    )
