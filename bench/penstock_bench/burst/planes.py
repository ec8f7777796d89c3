"""What each side of the simulated bursts has: hosts, functions, and how slots move."""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.model import StepId
from penstock.sim.functions import FunctionPlane
from penstock.sim.plane import Following, Plane
from penstock_bench.burst import params as given
from penstock_bench.burst.params import QueryFigures
from penstock_bench.burst.sides import Side

MIGRATING: tuple[Side, ...] = ("functions_migrating", "routers", "routers_transients")
"""Sides on which functions take over slots, as hosts do."""
_STARTS_MS: dict[Side, float] = {
    "new_hosts": given.HOST_START_MS,
    "hosts_beforehand": 0.0,
    # kept warm, as in Sponge's comparison: only the invocation
    **dict.fromkeys(MIGRATING, given.FUNCTION_OVERHEAD_MS),
}


def hosts_of(side: Side, factor: float) -> int:
    """Hosts in the beginning.

    >>> hosts_of("penstock", 5), hosts_of("overprovisioned", 5)
    (5, 25)
    """
    return math.ceil(given.HOSTS * factor) if side == "overprovisioned" else given.HOSTS


def policy_of(side: Side, hosts: int) -> str:
    """Of the busy step."""
    return f"static({hosts})" if side in ("no_scaling", "overprovisioned") else "switch"


def machines(query: QueryFigures, side: Side, slots: int) -> Plane:
    """Hosts and functions of the busy step.

    Where a machine has to be started for a new host, that is so for Penstock's hosts, too.

    >>> machines(given.QUERIES["q8"], "functions_migrating", 420).take_slot_ms.__round__()
    1333
    """
    slot_bytes, moving = query.state_bytes / slots, side in MIGRATING
    machine_ms = given.MACHINE_START_MS + given.HOST_START_MS
    return Plane(
        service_rate=query.host_rate,
        start_host_ms=_STARTS_MS.get(side, machine_ms),
        # Tasks that are there already need not stop to be moved; their state must.
        switch_ms=0.0 if side == "routers_transients" else given.SWITCH_MS,
        move_slot_ms=1000.0 * slot_bytes / given.MOVE_BYTES_S,
        take_slot_ms=1000.0 * slot_bytes / given.FUNCTION_BYTES_S if moving else None,
        engine="epochs",
        epoch_cost_ms=given.EPOCH_COST_MS,
        revises=True,
        functions=_functions(query, side),
    )


def _functions(query: QueryFigures, side: Side) -> FunctionPlane | None:
    if side not in ("penstock", "no_warm"):
        return None
    usual = FunctionPlane(
        at_most=given.FUNCTIONS,
        speed=given.FUNCTION_SPEED,
        start_ms=given.FUNCTION_START_MS,
        overhead_ms=given.FUNCTION_OVERHEAD_MS,
        partials_per_row=query.partials_per_row,
        partials_each=query.partials_each,
        couriers=given.HOSTS,
        merge_cost=given.MERGE_COST,
    )
    return usual if side == "penstock" else replace(usual, warm_for=0.0)


def join_of(query: QueryFigures, side: Side, slots: int, hosts: int) -> Following:
    """The step behind the busy one. Its state is taken to be small.

    Functions do not talk to each other, so where the busy step is on functions this one is not,
    unless there are routers between them.
    """
    plane = replace(
        machines(query, side, slots),
        service_rate=query.host_rate / given.JOIN_COST,
        functions=None,
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
