"""Segments: what of a flow can go to burst workers, in the pieces that one invocation runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from penstock.operators.operator import CHANGE, StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, Step


@dataclass(frozen=True)
class Segment:
    """What one invocation runs: stateless steps, and the keyed one behind them if any.

    Every step of a flow is in exactly one segment. A segment that ends in a keyed step returns partial
    states of it; any other returns rows. These take the place of the rows that they are made of, so
    that what comes after still gets the rows of a task in the order of arrival.
    """

    id: str
    """Id of its last step."""
    maps: tuple[MapStep, ...]
    keyed: KeyedStep | None
    reads: tuple[int, ...]
    """Input streams: one, if the segment can be offloaded."""
    gives: int
    """Output stream of its last step."""
    reason: str = ""
    """Why it is left whole. Empty: it can be offloaded."""
    whole_keys: bool = False
    """Whether all rows of a key must go one way, with partial states merged in the order of their
    requests, because the step's output depends on which row of a task came first."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.maps if self.keyed is None else (*self.maps, self.keyed)

    @property
    def offloadable(self) -> bool:
        return not self.reason

    @property
    def by_slot(self) -> bool:
        """Whether slots are known where rows leave. They are not before stateless steps, which may
        still change the key, nor where a row's window is part of what decides its slot."""
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
    reads = [plan.reads(number) for number in range(len(plan.steps))]
    readers = Counter(stream for streams in reads for stream in set(streams))
    found: dict[int, Segment] = {}
    """By output stream."""
    for number, step in enumerate(plan.steps):
        streams, reason = reads[number], _why_whole(plan, number)
        keyed = step if isinstance(step, KeyedStep) else None
        maps = (step,) if isinstance(step, MapStep) else ()
        whole_keys = keyed is not None and by_arrival(keyed.plan)
        # One invocation runs a step together with stateless ones whose only reader it is. Not where
        # keys must stay whole: rows that leave before a stateless step have no key yet.
        alone = reason or whole_keys or readers[streams[0]] > 1
        before = None if alone else found.get(streams[0])
        if before is not None and before.keyed is None and before.offloadable:
            del found[before.gives]
            streams, maps = before.reads, (*before.maps, *maps)
        gives = len(plan.sources) + number
        found[gives] = Segment(step.id, maps, keyed, streams, gives, reason, whole_keys)
    return tuple(found.values())


def live_segment(segment: Segment) -> Segment:
    """What of a segment that ends in a keyed step goes to burst workers in a live flow: the keyed step.

    Couriers do stateless steps when rows arrive. Answers come in any order, chunk by chunk. So steps whose
    output depends on which row came first are left whole; and those that read changes, where what is taken
    back must not come before it was put in.
    """
    assert segment.keyed is not None
    why = segment.reason
    if segment.whole_keys and not why:
        why = "its output is by the order of arrival"
    if CHANGE in segment.keyed.plan.inputs[0].names and not why:
        why = "it reads changes, in their order"
    return replace(segment, maps=(), reason=why)


def by_arrival(plan: StepPlan) -> bool:
    """Whether a step's output depends on which of a key's rows came first."""
    if isinstance(plan, DistinctPlan):
        return True
    aggregates = getattr(plan, "aggregates", {})
    return any(aggregate.kind in ("first", "last") for aggregate in aggregates.values())


def _why_whole(plan: FlowPlan, number: int) -> str:
    step = plan.steps[number]
    if plan.one_host:
        return "all steps run in one host"
    if isinstance(step, MapStep):
        return ""
    if not step.plan.merges:
        return "its state does not merge"
    if len(plan.reads(number)) > 1:
        return "it reads more than one stream"
    return "its output is in the order of arrival" if plan.ordered else ""
