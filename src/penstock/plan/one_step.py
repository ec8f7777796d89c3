"""A flow on one host, as live couriers see it: a single step from the source's rows to the output."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.operators.operator import OnError, Operator, StepPlan
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.state.keys.codec import KeyCodec


class WholeFlow(StepPlan):
    """A step plan for a whole flow on one host. Couriers send source rows as they are; the host takes them
    through the steps."""

    def __init__(self, input: pa.Schema, output: pa.Schema) -> None:
        self.inputs, self.output = (input,), output
        self.key_names, self.codec = [], KeyCodec(pa.schema([]))

    def __str__(self) -> str:
        return "all steps"

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        raise NotImplementedError("a host that runs all steps has one operator per step")


def as_couriers_see(flow: FlowPlan) -> FlowPlan:
    """The flow plan for couriers. A flow on one host becomes a single step with the id of its first keyed
    step.

    >>> flow = FlowPlan((), ())
    >>> as_couriers_see(flow) is flow
    True
    """
    if not flow.one_host or not flow.keyed:
        return flow
    first, plan = flow.keyed[0], WholeFlow(flow.sources[0].schema, flow.output)
    return replace(
        flow, steps=(KeyedStep(first.id, first.slots, plan),), ordered=False, one_host=False
    )
