"""What of a flow can go to functions: the segments that one invocation runs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.offload.plan.graph import by_arrival, rewritten
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep


@dataclass(frozen=True)
class Segment:
    """What one function invocation runs: stateless steps, and the keyed one behind them if any.

    Every step of a flow is in exactly one segment. A segment that ends in a keyed step gives partial
    states of it; any other gives rows. These take the place of the rows that they are made of, so
    that what comes after still gets the rows of a task in the order of arrival.
    """

    id: str
    """Of its last step."""
    maps: tuple[MapStep, ...]
    keyed: KeyedStep | None
    reads: tuple[int, ...]
    """The streams that come in: one, if it can be offloaded."""
    gives: int
    """The stream that comes out of its last step."""
    reason: str = ""
    """Why it is left whole; empty: it is not."""
    whole_keys: bool = False
    """Whether all rows of a key must take one road, with partial states merged in the order of their
    requests: what the step gives depends on which row of a task came first."""

    @property
    def offloadable(self) -> bool:
        return not self.reason

    @property
    def by_slot(self) -> bool:
        """Whether slots are known where rows leave. Not before stateless steps, which may still change
        the key, and not where a row's window is part of what decides its slot."""
        if self.keyed is None or self.maps:
            return False
        plan = self.keyed.plan
        return set(plan.codec.schema.names) <= set(plan.inputs[0].names)


def segments(plan: FlowPlan) -> tuple[Segment, ...]:
    """The segments of a flow, in the order of their last steps.

    >>> import pyarrow as pa
    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> from penstock.plan.steps import SourcePlan
    >>> bid = pa.schema([("auction", pa.int64())])
    >>> steps = (MapStep("map-1", len, bid, bid),
    ...          KeyedStep("count-2", 8, AggregatePlan(bid, ["auction"], {"n": count()})))
    >>> [found] = segments(FlowPlan((SourcePlan(bid),), steps))
    >>> found.id, [step.id for step in found.maps], found.offloadable
    ('count-2', ['map-1'], True)
    """
    graph = rewritten(plan)
    numbers = {step.id: number for number, step in enumerate(plan.steps)}
    inside = set(graph.pipelined.values())
    found = []
    for last, step in enumerate(plan.steps):
        if step.id in inside:
            continue
        chain = [step.id]
        while chain[0] in graph.pipelined:
            chain.insert(0, graph.pipelined[chain[0]])
        steps = [plan.steps[numbers[name]] for name in chain]
        keyed = step if isinstance(step, KeyedStep) else None
        found.append(
            Segment(
                step.id,
                tuple(one for one in steps if isinstance(one, MapStep)),
                keyed,
                plan.reads(numbers[chain[0]]),
                len(plan.sources) + last,
                graph.whole.get(step.id, ""),
                keyed is not None and by_arrival(keyed.plan),
            )
        )
    return tuple(found)
