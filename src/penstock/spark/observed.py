"""A running query, as its recorder sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock
from penstock.control.money import HostPrice
from penstock.driver.clock import wall_ms
from penstock.observe.moment import Look, StepLook
from penstock.observe.recording import FlowFacts
from penstock.spark.parts import FlowParts, QueryParts

if TYPE_CHECKING:
    from penstock.spark.query import FlowQuery


def facts_of(parts: QueryParts) -> FlowFacts:
    """Facts about a started flow."""
    start = parts.start
    return FlowFacts(
        name=start.name or start.flow_id,
        flow_id=start.flow_id,
        mode="micro_batch" if isinstance(parts, FlowParts) else "live",
        checkpoint=parts.store.uri.removesuffix("/penstock"),
        started_ms=parts.started_ms,
        slots={step.id: step.slots for step in start.flow.keyed},
        host_price=HostPrice() if start.elastic is None else start.elastic.host_price,
        version=penstock.__version__,
    )


def backlog_of(parts: QueryParts) -> int:
    """Rows that were read, or are known to wait in the source, and whose output is not in the sink."""
    unread = parts.epochs.unread if isinstance(parts, FlowParts) else 0
    return parts.runner.backlog + unread


def look_at(query: FlowQuery, parts: QueryParts) -> Look:
    """The query now."""
    status, control = query.status, parts.control
    return Look(
        time_ms=wall_ms(),
        state=status.state,
        message=status.message,
        backlog=backlog_of(parts),
        hosts_up=status.hosts,
        steps=_steps(parts),
        couriers=len(status.couriers),
        sla=parts.start.sla if control is None else control.machine.sla,
        control=None if control is None else control.facts(),
        money=status.money,
    )


def _steps(parts: QueryParts) -> list[StepLook]:
    """All keyed steps whose slots have owners: none before the first epoch."""
    relocation, control = parts.relocation, parts.control
    if not relocation.begun:
        return []
    steps = []
    for step in parts.start.flow.keyed:
        routes = relocation.routes(step.id)
        if not routes.hosts:  # it has begun, and waits for its hosts
            continue
        vitals = None if control is None else control.machine.all_steps[step.id].vitals
        rates = None if vitals is None else vitals.rate.tolist()
        hosts, pending = relocation.hosts(step.id), relocation.pending_of(step.id)
        steps.append(StepLook(step.id, routes, hosts, pending, rates))
    return steps
