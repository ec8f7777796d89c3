"""Parameters of the simulated runs of `penstock bench burst`, each with its source.

Times are milliseconds, sizes bytes. *Published* is Sponge's evaluation (its table 1 and section 6);
*here* is what was measured with this code (docs/results.md).

A query is modelled by its busy step: the one that gets most rows, on hosts that are about two thirds
busy. A join after it cannot be offloaded. It is a second step that works after the first in every epoch,
on hosts of its own, and only the switch can scale it. The two steps take turns, so their hosts share
cores, and cores are what is paid for. Further steps get very few rows and are left out. q1 has no keyed
step: the work of its couriers is modelled as a step without state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from penstock.model import SLA, StepId
from penstock.sim.burst_workers import WorkerPlane
from penstock.sim.plane import Following, Plane
from penstock_bench.burst.sides import Side

STABLE_LOAD = 0.68
"""Share of the time that hosts are busy before a burst. Published: 60 to 80 %."""
HOSTS = 5
"""Hosts before a burst. Published: 5 workers (of 4 cores; here a host is one core)."""
FUNCTIONS = 50
"""Most functions that run at once. Published: 200 of one core for 20 cores of workers; scaled to `HOSTS`."""
SLOTS = 420
"""Slots of a step: they spread evenly over 5 hosts, and nearly so over 15, 25, 35 and 50."""
BOUND = SLA(2000, 1000)
"""The SLA's latency and window, in milliseconds. It is loose enough for hosts that are two thirds busy in
epochs of 0.3 s: mean latency is 0.47 s, and the switch reacts at half of the bound. Published: results are
due each second."""
EPOCH_COST_MS = 100.0
"""Fixed milliseconds per epoch. Here: 97 ms for a trigger of 10,000 rows; live 104 to 106 ms."""
HOST_START_MS = 500.0
"""Milliseconds from a decision until a new host works. Here: in a session that has room for it."""
MACHINE_START_MS = 30_000.0
"""Milliseconds until a machine for a host is ready. Published: 25 to 30 s, and 4 s more for the JVM; the
host's own start is added here instead of the JVM's."""
SWITCH_MS = 200.0
"""Milliseconds that hosts pause when slots move, not counting the transfer of state. Here: at 50 MB the
latency peak of a pausing migration is 0.2 s above the latency before it."""
MOVE_BYTES_S = 600e6
"""Bytes per second of state that moves between two hosts. Here: 500 to 700 MB/s."""
FUNCTION_BYTES_S = 12.5e6
"""Bytes per second of state that moves into one function. Published: about 100 Mbit/s, whatever its size."""
FUNCTION_START_MS = 500.0
"""Milliseconds until a cold function works. Published: 300 to 750 ms on a cloud. Here: 30 ms for a local
one, which would flatter the sides with functions."""
FUNCTION_OVERHEAD_MS = 20.0
"""Milliseconds to invoke a warm function. Here: 1 ms alone, up to 80 ms with eight on two busy cores."""
FUNCTION_SPEED = 1.0
"""Speed of a function relative to a host. Published: one whole core for 1,769 MB."""
JOIN_COST = 0.1
"""Cost of a row in a join, in rows of the busy step. Published: the step that groups by key is the
bottleneck; its row belongs to 60 windows (60 s long, one each second), and a join's record to one."""
MERGE_COST = 1.0
"""Cost of a partial state on its host, in rows. Here: hosts with a set rate count both alike."""


@dataclass(frozen=True)
class QueryFigures:
    """Load and state of one query. Rates and state sizes are those of the published table 1."""

    name: str
    rate: float
    """Rows per second of the busy step, before a burst."""
    state_bytes: float
    """Bytes of the busy step's state on all hosts together."""
    partials_per_row: float
    partials_each: float
    """Partial states of one courier's batch: `partials_per_row` times its rows, plus `partials_each`.
    Fitted to the events of this repo's generator, with the benchmark's settings, for 1,000 to 100,000
    consecutive rows."""
    joined: float = 0.0
    """Rows that the following join gets per row of the busy step; 0 if there is no join."""

    @property
    def busy_load(self) -> float:
        """The busy step's part of `STABLE_LOAD`; the rest is the join's."""
        return STABLE_LOAD / (1.0 + JOIN_COST * self.joined)

    @property
    def host_rate(self) -> float:
        """Rows that a host processes per second of useful time.

        >>> round(QUERIES["q7"].host_rate), round(QUERIES["q4"].host_rate)
        (4412, 56610)
        """
        return self.rate / HOSTS / self.busy_load


_AUCTIONS_A_BID = 3 / 46
"""NEXMark has 1 person and 3 auctions to 46 bids."""
_PEOPLE_AN_AUCTION = 1 / 3
_BID_ON = (0.065, 82.0)
"""Auctions with bids: the number per bid, and a constant part. Over many seconds only the first counts:
a following join gets a record for each."""
_SELLERS = (0.18, 45.0)
"""Sellers: the number per auction, and a constant part."""

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
"""Seconds of stable load before a burst."""
FACTORS = (3, 5, 7, 10)
LENGTHS_S = (30, 60, 120)
USUAL_FACTOR, USUAL_S = 5, 60
"""Factor and seconds of sine and gradual bursts, and of bursts that are plotted in detail, as published."""


MIGRATING: tuple[Side, ...] = ("functions_migrating", "routers", "routers_transients")
"""Sides on which functions own slots, as hosts do."""
_STARTS_MS: dict[Side, float] = {
    "new_hosts": HOST_START_MS,
    "hosts_beforehand": 0.0,
    # Functions are kept warm, as in Sponge's comparison: only the invocation counts.
    **dict.fromkeys(MIGRATING, FUNCTION_OVERHEAD_MS),
}


def hosts_of(side: Side, factor: float) -> int:
    """Number of hosts at the start of a run.

    >>> hosts_of("penstock", 5), hosts_of("overprovisioned", 5)
    (5, 25)
    """
    return math.ceil(HOSTS * factor) if side == "overprovisioned" else HOSTS


def policy_of(side: Side, hosts: int) -> str:
    """The policy of the busy step."""
    return f"static({hosts})" if side in ("no_scaling", "overprovisioned") else "switch"


def machines(query: QueryFigures, side: Side, slots: int) -> Plane:
    """The simulated hosts and functions of the busy step.

    Hosts that Penstock adds wait for a new machine too, as on the side `new_hosts_30s`.

    >>> machines(QUERIES["q8"], "functions_migrating", 420).take_slot_ms.__round__()
    1333
    """
    slot_bytes, moving = query.state_bytes / slots, side in MIGRATING
    machine_ms = MACHINE_START_MS + HOST_START_MS
    return Plane(
        service_rate=query.host_rate,
        start_host_ms=_STARTS_MS.get(side, machine_ms),
        # Transient tasks already run, so only their state moves.
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
    """The join that follows the busy step. Its state is assumed to be small.

    Functions cannot connect to each other. So the join stays on hosts where the busy step runs on
    functions, unless there are routers between them.
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
