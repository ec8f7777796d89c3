"""Segments: the pieces of a flow that one invocation of a burst worker can run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from penstock.operators.operator import CHANGE, StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, Step


@dataclass(frozen=True)
class Segment:
    """The steps that one invocation runs: stateless steps, and the keyed step behind them if any.

    Every step of a flow is in exactly one segment. A segment that ends in a keyed step returns partial
    states; any other returns rows. These rows take the place of their input rows, so that later steps still
    get the rows of a task in the order of arrival.
    """

    id: str
    """Id of its last step."""
    maps: tuple[MapStep, ...]
    keyed: KeyedStep | None
    reads: tuple[int, ...]
    """Numbers of its input streams: one, or two for a join."""
    gives: int
    """Number of its last step's output stream."""
    reason: str = ""
    """Reason why it cannot be offloaded; empty if it can."""
    whole_keys: bool = False
    """Whether all rows of a key must go to the same place, with partial states merged in the order of their
    requests. True if the step's output depends on which row of a task came first."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All its steps, in order."""
        return self.maps if self.keyed is None else (*self.maps, self.keyed)

    @property
    def offloadable(self) -> bool:
        """Whether burst workers can run it."""
        return not self.reason

    @property
    def by_slot(self) -> bool:
        """Whether the slots of rows are known where rows leave for burst workers. They are not before
        stateless steps, which may change the key, nor if the slot depends on a row's window. For joins they
        are not used."""
        if self.keyed is None or self.maps or len(self.reads) > 1:
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
    >>> [segment] = segments(FlowPlan((SourcePlan(bid),), steps))
    >>> segment.id, [step.id for step in segment.maps], segment.offloadable
    ('count-2', ['map-1'], True)
    """
    reads = [plan.reads(number) for number in range(len(plan.steps))]
    readers = Counter(stream for streams in reads for stream in set(streams))
    by_output: dict[int, Segment] = {}
    """Output stream -> segment."""
    for number, step in enumerate(plan.steps):
        streams, reason = reads[number], _why_whole(plan, number)
        keyed = step if isinstance(step, KeyedStep) else None
        maps = (step,) if isinstance(step, MapStep) else ()
        whole_keys = keyed is not None and by_arrival(keyed.plan)
        # One invocation runs a step together with the stateless steps that only it reads. Not if keys
        # must stay whole: rows that leave before a stateless step have no key yet.
        alone = reason or whole_keys or len(streams) > 1 or readers[streams[0]] > 1
        before = None if alone else by_output.get(streams[0])
        if before is not None and before.keyed is None and before.offloadable:
            del by_output[before.gives]
            streams, maps = before.reads, (*before.maps, *maps)
        gives = len(plan.sources) + number
        by_output[gives] = Segment(step.id, maps, keyed, streams, gives, reason, whole_keys)
    return tuple(by_output.values())


def live_segment(segment: Segment) -> Segment:
    """The part of a segment that burst workers run in a live flow: only its keyed step.

    Couriers run stateless steps when rows arrive. Answers come in any order, chunk by chunk. So a step is not
    offloaded if its output depends on which row came first, or if it reads changes: a retraction must not
    come before its insertion.
    """
    assert segment.keyed is not None
    why = segment.reason
    if segment.whole_keys and not why:
        why = "its output depends on the order of arrival"
    if any(CHANGE in input.names for input in segment.keyed.plan.inputs) and not why:
        why = "it reads changes, which must stay in order"
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
    if not step.plan.offloads:
        return "its state does not merge"
    if len(plan.reads(number)) > len(step.plan.inputs):
        return "it reads more than one stream"
    return "its output is in the order of arrival" if plan.ordered else ""
