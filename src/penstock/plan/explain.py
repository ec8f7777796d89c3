"""A flow as text: what runs where."""

from __future__ import annotations

import pyarrow as pa

from penstock.model import SLA
from penstock.operators.aggregates import AggregatePlan
from penstock.plan.steps import FlowPlan, MapStep


def explained(plan: FlowPlan, bound: SLA | None) -> str:
    """The flow from source to output, a step a line, with where each runs."""
    lines = [f"source      spark    {_columns(plan.input)}"]
    if plan.arrival:
        lines.append(f"            latency is measured from column {plan.arrival}")
    if plan.event_time:
        lines.append(
            f"            event time is column {plan.event_time}, up to {plan.delay_ms} ms late"
        )
    for step in plan.steps:
        if isinstance(step, MapStep):
            name = getattr(step.function, "__name__", type(step.function).__name__)
            lines.append(f"{step.id:<12}couriers {name} -> {_columns(step.output)}")
            continue
        key = f"by {', '.join(step.keys)}" if step.keys else "global"
        if isinstance(step.plan, AggregatePlan):
            what = ", ".join(f"{n}={a}" for n, a in step.plan.aggregates.items())
            where = "combined in couriers, merged on hosts"
        else:
            what, where = type(step.plan.processor).__name__, "on hosts"
        lines.append(f"{step.id:<12}hosts    {key}, {step.slots} slots: {what} ({where})")
        lines.append(f"            -> {_columns(step.output)}")
    lines.append(f"sla         {bound}" if bound else "sla         none")
    return "\n".join(lines)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
