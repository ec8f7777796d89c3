"""The burst workers of a query, and its bill."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.control.money import HostPrice
from penstock.driver.bill import Bill
from penstock.driver.relocation import Relocation
from penstock.offload.driver.keeper import WorkerKeeper
from penstock.spark.epoch_stream import Start

if TYPE_CHECKING:
    from penstock.offload.backends.backend import Backend


def keeper_of(start: Start, run_id: str, token: str) -> WorkerKeeper | None:
    """The burst workers of a flow that may use any, not started yet."""
    if start.elastic is None or start.elastic.functions is None:
        return None
    backend = cast("Backend", start.elastic.functions)
    faults = start.settings.faults
    return WorkerKeeper(lambda: backend.start(start.flow, run_id, token, faults))


def trigger_ms(start: Start) -> float:
    """The least time from one epoch to the next; 0: there is none."""
    return float(start.trigger.get("processingTime", "0 milliseconds").split()[0])


def bill_of(
    start: Start,
    relocation: Relocation,
    keeper: WorkerKeeper | None,
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
        lambda: 0.0 if keeper is None else keeper.used.money,
        lambda: time.time() * 1000,
    )
