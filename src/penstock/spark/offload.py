"""The burst workers of a query, and its bill."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.relocation import Relocation
from penstock.offload.driver.help import Offloads
from penstock.offload.driver.keeper import FunctionKeeper
from penstock.spark.epoch_stream import Start


def offloads_of(
    start: Start, run_id: str, token: str, together: Callable[[], int | None]
) -> Offloads | None:
    """The burst workers of a flow that may use any, not started yet."""
    backend = None if start.elastic is None else start.elastic.functions
    if backend is None:
        return None
    faults = start.settings.faults
    keeper = FunctionKeeper(lambda: backend.start(start.flow, run_id, token, faults))
    every = start.trigger.get("processingTime", "0 milliseconds")
    return Offloads(start.flow, keeper, float(every.split()[0]), together)


def bill_of(
    start: Start,
    relocation: Relocation,
    offloads: Offloads | None,
    couriers: Callable[[], int],
) -> Bill:
    """The bill of a flow. A host costs by its cores, from when it is asked for.

    Where a flow has no hosts, its couriers do the work, and cost as much.
    """

    def cores() -> int:
        hosts = sum(len(relocation.hosts(step.id)) for step in start.flow.keyed)
        if not start.flow.keyed:
            hosts = couriers()
        return (min(hosts, 1) if start.flow.one_host else hosts) * start.settings.workers

    return Bill(
        HostPrice() if start.elastic is None else start.elastic.host_price,
        cores,
        lambda: 0.0 if offloads is None else offloads.keeper.used.money,
        lambda: time.time() * 1000,
    )
