"""A flow with all that functions need put in: transients, routers and merges.

The pass follows the DAG rewriting of Sponge (Song, Um, Elnikety, Jeon and Chun), once, before a flow
starts. It puts in

    transient   a copy of a step that can run in functions: of every stateless step, and of every
                keyed one whose partial states merge
    router      where rows can leave a courier for functions: at an exchange, and before a stateless
                step that does not get its rows from another one's transient
    merge       after a keyed step with a transient: the owning host takes partial states into its own

None of them does anything until the plan of an epoch names a share. Two things differ from the
original. A stateless step's transient hands its rows to that of the keyed step behind it without an
exchange, in the same invocation: any function may make a partial state of any key. And sources have no
transients, since functions read none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from penstock.operators.operator import StepPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, Step

NodeKind = Literal["source", "step", "output", "transient", "router", "merge"]
EdgeKind = Literal["one-to-one", "exchange"]
"""Whether rows stay in their task, or are cut by key and go to the hosts that own them."""


@dataclass(frozen=True)
class Node:
    """One operator of the rewritten graph."""

    kind: NodeKind
    of: str
    """The source or step that it is, or is there for."""
    reads: str = ""
    """Of a router: the stream at which it stands. A step may have one at each that it reads."""

    def __str__(self) -> str:
        plain = self.kind in ("source", "step", "output")
        return self.of if plain else f"{self.kind} {self.of}"


@dataclass(frozen=True)
class Edge:
    """The way of rows, or of partial states, from one operator to another."""

    source: Node
    target: Node
    kind: EdgeKind


@dataclass(frozen=True)
class OffloadGraph:
    """A flow with all that functions need put in. Nodes and edges in the order of the flow."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    whole: dict[str, str]
    """Steps that have no transient, with the reason."""

    @cached_property
    def pipelined(self) -> dict[str, str]:
        """Steps whose transient gets its rows from another one's, in the same invocation: whose."""
        between = [e for e in self.edges if e.source.kind == e.target.kind == "transient"]
        return {edge.target.of: edge.source.of for edge in between}


def rewritten(plan: FlowPlan) -> OffloadGraph:
    """A flow's graph with transients, routers and merges."""
    made = _Rewriting(plan)
    for number, step in enumerate(plan.steps):
        made.step(number, step)
    made.output()
    return OffloadGraph(tuple(made.nodes), tuple(made.edges), made.whole)


def stream_name(plan: FlowPlan, stream: int) -> str:
    """What a stream is called: by its source, or by the step that gives it."""
    sources = len(plan.sources)
    if stream < sources:
        return "source" if sources == 1 else f"source-{stream + 1}"
    return plan.steps[stream - sources].id


def by_arrival(plan: StepPlan) -> bool:
    """Whether what a step gives depends on which of a key's rows came first."""
    if isinstance(plan, DistinctPlan):
        return True
    aggregates = getattr(plan, "aggregates", {})
    return any(aggregate.kind in ("first", "last") for aggregate in aggregates.values())


@dataclass
class _Rewriting:
    """The pass at work: step after step, each after those that it reads."""

    plan: FlowPlan
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)
    origins: list[Node] = field(default_factory=list)
    """Where the rows of each stream come out: of its source, its step or its merge."""
    copies: list[Node | None] = field(default_factory=list)
    """The transient that gives rows of each stream too: a stateless step's."""

    def __post_init__(self) -> None:
        plan = self.plan
        steps = range(len(plan.steps))
        self._readers = Counter(stream for number in steps for stream in set(plan.reads(number)))
        for stream in range(len(plan.sources)):
            self._gives(self._node(Node("source", stream_name(plan, stream))), None)

    def step(self, number: int, step: Step) -> None:
        keyed = isinstance(step, KeyedStep)
        own, copy = Node("step", step.id), None
        reason = self._why_whole(number, step)
        if reason:
            self.whole[step.id] = reason
        else:
            copy = Node("transient", step.id)
        for stream in dict.fromkeys(self.plan.reads(number)):
            self._connect(stream, own, copy, step)
        self._node(own)
        if copy is not None:
            self._node(copy)
        if not keyed:
            self._gives(own, copy)
        elif copy is None:
            self._gives(own, None)
        else:
            merge = self._node(Node("merge", step.id))
            self._edge(own, merge)
            self._edge(copy, merge, "exchange")
            self._gives(merge, None)

    def output(self) -> None:
        """What leaves the flow: the last stream."""
        last = 0 if not self.plan.steps else len(self.origins) - 1
        out, copy = self._node(Node("output", "output")), self.copies[last]
        self._edge(self.origins[last], out)
        if copy is not None:
            self._edge(copy, out)

    def _connect(self, stream: int, own: Node, copy: Node | None, step: Step) -> None:
        """Lead a stream to a step and to its transient."""
        origin, above = self.origins[stream], self.copies[stream]
        kind: EdgeKind = "exchange" if isinstance(step, KeyedStep) else "one-to-one"
        if copy is not None and above is not None and self._pipelines(stream, step):
            self._edge(above, copy)
            above = None
            routed = kind == "exchange"
        else:
            routed = copy is not None or above is not None
        if not routed:
            self._edge(origin, own, kind)
            return
        router = self._node(Node("router", step.id, stream_name(self.plan, stream)))
        for giver in (origin, above):
            if giver is not None:
                self._edge(giver, router, kind)
        for taker in (own, copy):
            if taker is not None:
                self._edge(router, taker)

    def _pipelines(self, stream: int, step: Step) -> bool:
        """Whether one invocation can run a stateless step and this one, its only reader."""
        whole_keys = isinstance(step, KeyedStep) and by_arrival(step.plan)
        return self._readers[stream] == 1 and not whole_keys

    def _why_whole(self, number: int, step: Step) -> str:
        if self.plan.one_host:
            return "all steps run in one host"
        if isinstance(step, MapStep):
            return ""
        if not step.plan.merges:
            return "its state does not merge"
        if len(self.plan.reads(number)) > 1:
            return "it reads more than one stream"
        return "its output is in the order of arrival" if self.plan.ordered else ""

    def _node(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _edge(self, source: Node, target: Node, kind: EdgeKind = "one-to-one") -> None:
        self.edges.append(Edge(source, target, kind))

    def _gives(self, origin: Node, copy: Node | None) -> None:
        self.origins.append(origin)
        self.copies.append(copy)
