"""A flow as text: its steps, and where each runs."""

from __future__ import annotations

import pyarrow as pa

from penstock.control.elastic import WorkerTerms
from penstock.control.epoch_bound import FIRST, rows_within
from penstock.model import SLA
from penstock.offload.plan.graph import NodeKind, rewritten, stream_name
from penstock.offload.plan.segments import by_arrival
from penstock.plan.steps import FlowPlan, MapStep, Step

_GAP = " " * 12
_RUNS: dict[NodeKind, str] = {"router": "couriers", "transient": "function", "merge": "hosts"}
"""Where each kind of node that is added for burst workers runs."""


def explained(
    plan: FlowPlan,
    bound: SLA | None,
    workers: WorkerTerms | None = None,
    bounds_epochs: bool = False,
) -> str:
    """The flow from sources to output, one line per step, and where each runs.

    For burst workers it adds the operators of their plan, with inputs and outputs, and the steps that they
    cannot do. `bounds_epochs` adds the limit that the SLA sets on the rows of an epoch.
    """
    lines = [line for number in range(len(plan.sources)) for line in _source(plan, number)]
    for number, step in enumerate(plan.steps):
        lines += _step(step, _read(plan, number), plan.one_host)
    if workers is not None:
        lines += _offloading(plan, workers)
    if plan.in_order:
        lines.append("order       of arrival, for each partition of the source")
    lines.append(f"sla         {bound}" if bound else "sla         none")
    if bound and bounds_epochs:
        lines += _epochs(bound)
    return "\n".join(lines)


def _epochs(bound: SLA) -> list[str]:
    half_ms, rows = bound.latency_ms / 2, rows_within(bound.latency_ms, FIRST)
    return [
        f"epochs      take rows of Kafka for {half_ms:.0f} ms, half of the SLA's latency (not if live):",
        f"{_GAP}{rows:,} at first ({FIRST.fixed_ms:.0f} ms and {FIRST.rows_per_s:,.0f} rows per second), "
        "then as measured",
    ]


def _source(plan: FlowPlan, number: int) -> list[str]:
    source = plan.sources[number]
    reader = "spark" if source.decoder is None else "source"
    lines = [f"{stream_name(plan, number):<12}{reader:<9}{_columns(source.schema)}"]
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
        return [f"{step.id:<11} {where} {reads}{name} -> {_columns(step.output)}"]
    key = f"by {', '.join(step.keys)}" if step.keys else "global"
    merges = "partial states merge" if step.plan.merges else "state does not merge"
    return [
        f"{step.id:<11} {where} {reads}{key}, {step.slots} slots: {step.plan} ({merges})",
        f"{_GAP}-> {_columns(step.output)}",
    ]


def _read(plan: FlowPlan, number: int) -> str:
    """The inputs of a step in parentheses, unless it reads the line above it."""
    reads, above = plan.reads(number), len(plan.sources) + number - 1
    if reads == (above,):
        return ""
    return f"({', '.join(stream_name(plan, stream) for stream in reads)}) "


def _offloading(plan: FlowPlan, workers: WorkerTerms) -> list[str]:
    graph = rewritten(plan)
    whole_keys = {step.id for step in plan.keyed if by_arrival(step.plan)}
    speed = f"each at {workers.speed:.0%} of a host's speed"
    lines = [f"functions   at most {workers.at_most}, {speed}, while hosts are not enough"]
    for node in graph.nodes:
        if node.kind not in _RUNS:
            continue
        inputs = [str(edge.source) for edge in graph.edges if edge.target == node]
        outputs = [str(edge.target) for edge in graph.edges if edge.source == node]
        by = " by whole keys" if node.kind == "transient" and node.of in whole_keys else ""
        read = node.of + by if node.kind == "transient" else ", ".join(inputs)
        lines.append(f"{node.kind:<12}{_RUNS[node.kind]:<8} {read} -> {', '.join(outputs)}")
    return lines + [f"{'left whole':<12}{name}: {reason}" for name, reason in graph.whole.items()]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
