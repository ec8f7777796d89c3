"""Laws of segments and rewritten graphs that hold for every flow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.offload.plan.graph import Edge, Node, rewritten, stream_name
from penstock.offload.plan.segments import segments
from penstock.plan.steps import FlowPlan, KeyedStep, Step
from tests.offload.plan.test_segments import BY_ARRIVAL, COUNTED, JOINED, flow_of, keyed, mapped


@st.composite
def flows(draw: st.DrawFn) -> FlowPlan:
    """Strategy for flows with all kinds of steps, each of which reads any earlier streams."""
    sources = draw(st.integers(1, 3))
    steps: list[Step] = []
    for number in range(draw(st.integers(0, 8))):
        stream = st.integers(0, sources + number - 1)
        recent = st.just(sources + number - 1) | stream
        kind = draw(st.sampled_from(["map", "map", "count", "distinct", "join"]))
        id = f"{kind}-{number + 1}"
        if kind == "map":
            steps.append(mapped(id, draw(recent)))
        elif kind == "join":
            steps.append(keyed(id, draw(recent), draw(stream), plan=JOINED))
        else:
            plan = COUNTED if kind == "count" else BY_ARRIVAL["distinct"]
            steps.append(keyed(id, draw(recent), plan=plan))
    one_host = sources == 1 and draw(st.integers(0, 9)) == 0
    return flow_of(*steps, sources=sources, ordered=draw(st.booleans()), one_host=one_host)


def plain(plan: FlowPlan) -> set[tuple[str, str, str]]:
    """The edges of the flow as the user wrote it."""
    edges = {
        (stream_name(plan, stream), step.id, _kind(step))
        for number, step in enumerate(plan.steps)
        for stream in plan.reads(number)
    }
    out = len(plan.sources) + len(plan.steps) - 1 if plan.steps else 0
    return edges | {(stream_name(plan, out), "output", "one-to-one")}


def _kind(step: Step) -> str:
    return "exchange" if isinstance(step, KeyedStep) else "one-to-one"


def inactive(edges: tuple[Edge, ...]) -> set[tuple[str, str, str]]:
    """The edges that rows take while nothing is offloaded: routers and merges pass them through."""
    left = [e for e in edges if "transient" not in (e.source.kind, e.target.kind)]
    while True:
        handed = [e for e in left if e.target.kind in ("router", "merge")]
        if not handed:
            return {(str(e.source), str(e.target), e.kind) for e in left}
        edge = handed[0]
        after = [e for e in left if e.source == edge.target]
        before = [e for e in left if e.target == edge.target]
        assert after, f"{edge.target} gives nothing"
        rest = [e for e in left if edge.target not in (e.source, e.target)]
        cut = [(b, a) for b in before for a in after]
        kinds = [{b.kind, a.kind} for b, a in cut]
        joined = [
            Edge(b.source, a.target, "exchange" if "exchange" in kind else "one-to-one")
            for (b, a), kind in zip(cut, kinds, strict=True)
        ]
        left = [*rest, *joined]


@settings(max_examples=200)
@given(flows())
def test_without_offloading_the_flow_is_as_the_user_wrote_it(plan: FlowPlan) -> None:
    # A step without readers has no merge that passes its rows on.
    read = {stream for number in range(len(plan.steps)) for stream in plan.reads(number)}
    last = len(plan.sources) + len(plan.steps) - 1
    unread = {stream_name(plan, s) for s in range(len(plan.sources), last) if s not in read}
    edges = tuple(
        e for e in rewritten(plan).edges if not (e.target.kind == "merge" and e.target.of in unread)
    )
    assert inactive(edges) == plain(plan)


@settings(max_examples=200)
@given(flows())
def test_laws_of_the_rewritten_graph(plan: FlowPlan) -> None:
    graph = rewritten(plan)
    assert len(set(graph.nodes)) == len(graph.nodes)
    assert len(set(graph.edges)) == len(graph.edges)
    assert {node for e in graph.edges for node in (e.source, e.target)} <= set(graph.nodes)
    copies = {node.of for node in graph.nodes if node.kind == "transient"}
    assert copies == {step.id for step in plan.steps} - set(graph.whole)
    keyed_copies = {step.id for step in plan.keyed} & copies
    assert {node.of for node in graph.nodes if node.kind == "merge"} == keyed_copies
    for edge in graph.edges:
        ends = (edge.source.kind, edge.target.kind)
        if ends == ("transient", "transient"):
            # one after the other in one invocation: burst workers do not talk to each other
            assert edge.kind == "one-to-one"
        elif edge.target.kind == "transient":
            assert edge.source.kind == "router"
        if edge.source.of in keyed_copies and edge.source.kind in ("step", "transient"):
            assert edge.target == Node("merge", edge.source.of)
    for step in plan.keyed:
        if step.id in copies:
            routers = [n for n in graph.nodes if n.kind == "router" and n.of == step.id]
            assert len(routers) == len(set(plan.reads(plan.steps.index(step))))


@settings(max_examples=200)
@given(flows())
def test_laws_of_segments(plan: FlowPlan) -> None:
    parts = segments(plan)
    inside = [
        step.id for segment in parts for step in (*segment.maps, segment.keyed) if step is not None
    ]
    assert sorted(inside) == sorted(step.id for step in plan.steps)
    for segment in parts:
        chain = [step for step in (*segment.maps, segment.keyed) if step is not None]
        numbers = [plan.steps.index(step) for step in chain]
        assert segment.id == chain[-1].id
        assert segment.reads == plan.reads(numbers[0])
        assert segment.gives == len(plan.sources) + numbers[-1]
        for before, number in pairwise(numbers):
            stream = len(plan.sources) + before
            assert plan.reads(number) == (stream,)
            readers = [n for n in range(len(plan.steps)) if stream in plan.reads(n)]
            assert readers == [number]
        if segment.offloadable:
            inputs = 1 if segment.keyed is None else len(segment.keyed.plan.inputs)
            assert len(segment.reads) == inputs
            assert segment.keyed is None or segment.keyed.plan.offloads
        elif not plan.one_host:
            assert chain == [segment.keyed]
