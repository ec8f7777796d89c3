"""A flow as text: what runs where."""

from __future__ import annotations

import pyarrow as pa

from penstock.model import SLA
from penstock.plan.steps import FlowPlan, MapStep, Step

_GAP = " " * 12


def explained(plan: FlowPlan, bound: SLA | None) -> str:
    """The flow from sources to output, a step a line, with where each runs."""
    lines = [line for number in range(len(plan.sources)) for line in _source(plan, number)]
    for number, step in enumerate(plan.steps):
        lines += _step(step, _read(plan, number), plan.one_host)
    if plan.in_order:
        lines.append("order       of arrival, for each partition of the source")
    lines.append(f"sla         {bound}" if bound else "sla         none")
    return "\n".join(lines)


def _source(plan: FlowPlan, number: int) -> list[str]:
    source = plan.sources[number]
    lines = [f"{_name(plan, number):<12}spark    {_columns(source.schema)}"]
    if source.arrival:
        lines.append(f"{_GAP}latency is measured from column {source.arrival}")
    if source.event_time:
        text = f"event time is column {source.event_time}, up to {source.delay_ms} ms late"
        if source.partition:
            text += f", for each {source.partition}"
        if source.idle_ms is not None:
            text += f", idle after {source.idle_ms} ms"
        lines.append(_GAP + text)
    return lines


def _step(step: Step, reads: str, one_host: bool) -> list[str]:
    where = "one host" if one_host else "hosts   "
    if isinstance(step, MapStep):
        name = getattr(step.function, "__name__", type(step.function).__name__)
        where = where if one_host else "couriers"
        return [f"{step.id:<12}{where} {reads}{name} -> {_columns(step.output)}"]
    key = f"by {', '.join(step.keys)}" if step.keys else "global"
    merges = "partial states merge" if step.plan.merges else "state does not merge"
    return [
        f"{step.id:<12}{where} {reads}{key}, {step.slots} slots: {step.plan} ({merges})",
        f"{_GAP}-> {_columns(step.output)}",
    ]


def _read(plan: FlowPlan, number: int) -> str:
    """What a step reads, where that is not what stands above it."""
    reads, above = plan.reads(number), len(plan.sources) + number - 1
    if reads == (above,):
        return ""
    return f"({', '.join(_name(plan, stream) for stream in reads)}) "


def _name(plan: FlowPlan, stream: int) -> str:
    sources = len(plan.sources)
    if stream < sources:
        return "source" if sources == 1 else f"source-{stream + 1}"
    return plan.steps[stream - sources].id


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
