"""The graph of a flow with its segments, for people to read: transients, routers and merges.

It is the result of the DAG rewriting of Sponge (Song, Um, Elnikety, Jeon and Chun).

    transient   a copy of a step for burst workers: of every stateless step, and of every keyed one
                whose partial states merge
    router      a point where rows can leave a courier for burst workers: at an exchange, and before a
                stateless step that does not get its rows from another step's transient
    merge       after a keyed step with a transient: the owning host merges partial states into its own

They are inactive until the plan of an epoch names a share. Two things differ from the original. A
stateless step's transient passes its rows to that of the keyed step behind it without an exchange, in the
same invocation: any burst worker may make a partial state of any key. And sources have no transients, since
burst workers do not read sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.offload.plan.segments import segments
from penstock.plan.steps import FlowPlan, KeyedStep

NodeKind = Literal["source", "step", "output", "transient", "router", "merge"]
EdgeKind = Literal["one-to-one", "exchange"]
"""Kind of an edge: rows stay in their task, or are split by key and go to the hosts that own them."""


@dataclass(frozen=True)
class Node:
    """One operator of the rewritten graph."""

    kind: NodeKind
    of: str
    """Id of the source or step that it represents or belongs to."""
    reads: str = ""
    """Name of the stream that a router reads. A step may have a router for each of its input streams."""

    def __str__(self) -> str:
        plain = self.kind in ("source", "step", "output")
        return self.of if plain else f"{self.kind} {self.of}"


@dataclass(frozen=True)
class Edge:
    """A connection that carries rows or partial states from one operator to another."""

    source: Node
    target: Node
    kind: EdgeKind


@dataclass(frozen=True)
class OffloadGraph:
    """A flow's graph with transients, routers and merges. Nodes and edges are in the order of the flow."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    whole: dict[str, str]
    """Step -> the reason why it has no transient."""


def stream_name(plan: FlowPlan, stream: int) -> str:
    """Name of a stream: that of its source or of the step that makes it."""
    sources = len(plan.sources)
    if stream < sources:
        return "source" if sources == 1 else f"source-{stream + 1}"
    return plan.steps[stream - sources].id


def rewritten(plan: FlowPlan) -> OffloadGraph:
    """Build a flow's graph with transients, routers and merges."""
    parts = segments(plan)
    whole = {segment.id: segment.reason for segment in parts if segment.reason}
    joined = {step.id for segment in parts for step in segment.steps[1:]}
    """Steps whose transient gets its rows from another transient, in the same invocation."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    origins: list[Node] = []
    """Stream -> the source, step or merge that produces it."""
    copies: list[Node | None] = []
    """Stream -> the transient that also produces it, if its step is stateless."""

    def connect(source: Node | None, target: Node | None, kind: EdgeKind = "one-to-one") -> None:
        if source is not None and target is not None:
            edges.append(Edge(source, target, kind))

    for stream in range(len(plan.sources)):
        origins.append(Node("source", stream_name(plan, stream)))
        copies.append(None)
    nodes += origins
    for number, step in enumerate(plan.steps):
        keyed = isinstance(step, KeyedStep)
        kind: EdgeKind = "exchange" if keyed else "one-to-one"
        own = Node("step", step.id)
        copy = None if step.id in whole else Node("transient", step.id)
        for stream in dict.fromkeys(plan.reads(number)):
            origin, above = origins[stream], copies[stream]
            if step.id in joined:
                connect(above, copy)
                above, routed = None, keyed
            else:
                routed = copy is not None or above is not None
            if not routed:
                connect(origin, own, kind)
                continue
            router = Node("router", step.id, stream_name(plan, stream))
            nodes.append(router)
            for producer in (origin, above):
                connect(producer, router, kind)
            for target in (own, copy):
                connect(router, target)
        nodes += [own] if copy is None else [own, copy]
        if keyed and copy is not None:
            merge = Node("merge", step.id)
            nodes.append(merge)
            connect(own, merge)
            connect(copy, merge, "exchange")
            own = merge
        origins.append(own)
        copies.append(None if keyed else copy)
    last = len(origins) - 1 if plan.steps else 0
    output = Node("output", "output")
    nodes.append(output)
    connect(origins[last], output)
    connect(copies[last], output)
    return OffloadGraph(tuple(nodes), tuple(edges), whole)
