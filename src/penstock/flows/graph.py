"""Flows as graphs: sources, steps that read streams, and how two of them become one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.live.sources.kafka import KafkaSource
from penstock.live.sources.source import LiveSource
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from penstock.spark.session import check_session
from penstock.spark.sources import active_session, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, eq=False)
class Source:
    """What a flow begins with. The same object is the same source in every flow."""

    origin: DataFrame | LiveSource
    plan: SourcePlan

    @property
    def live(self) -> LiveSource | None:
        """What couriers read by themselves; None: only Spark can read it."""
        return self.origin if isinstance(self.origin, LiveSource) else None

    @property
    def spark(self) -> SparkSession:
        """The session that it is read in."""
        return active_session() if isinstance(self.origin, LiveSource) else self.origin.sparkSession

    @property
    def bounded_by_sla(self) -> bool:
        """Whether the SLA says how many rows of it an epoch takes."""
        return isinstance(self.origin, KafkaSource) and self.origin.bounded_by_sla

    def frame(self, spark: SparkSession, bound: int | None = None) -> DataFrame:
        """What Spark reads of it in micro-batches: at most `bound` rows an epoch, if the SLA says that."""
        if not isinstance(self.origin, LiveSource):
            return self.origin
        made = frame(self.origin, spark, bound)
        check_session(made)
        return made


@dataclass(frozen=True)
class Graph:
    """Sources and steps, in an order in which each step comes after those that it reads.

    Streams are numbered as in `plan.steps`: the sources, then what each step gives.
    """

    sources: tuple[Source, ...]
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> int:
        """The stream that comes out."""
        return len(self.sources) + len(self.steps) - 1 if self.steps else 0

    @property
    def plan(self) -> FlowPlan:
        return FlowPlan(tuple(source.plan for source in self.sources), self.steps)

    @property
    def schema(self) -> pa.Schema:
        return self.plan.output

    def name(self, kind: str) -> str:
        """What the next step of a kind is called."""
        return f"{kind}-{len(self.steps) + 1}"

    def then(self, step: Step) -> Graph:
        """With one more step at the end, which reads the stream that comes out now."""
        return replace(self, steps=(*self.steps, replace(step, reads=(self.end,))))

    def joined(self, other: Graph) -> tuple[Graph, int, int]:
        """Both in one graph; where the streams that came out of each are in it.

        Sources and steps that both have are there once.
        """
        extra = tuple(source for source in other.sources if source not in self.sources)
        sources = (*self.sources, *extra)
        steps: list[Step] = []
        ends = [_add(graph, sources, steps) for graph in (self, other)]
        return Graph(sources, tuple(steps)), ends[0], ends[1]


def _add(graph: Graph, sources: tuple[Source, ...], steps: list[Step]) -> int:
    """Put a graph's steps among those of a larger one; returns where its end is there."""
    places = [sources.index(source) for source in graph.sources]
    for step in graph.steps:
        reads = tuple(places[stream] for stream in step.reads)
        there = next((n for n, known in enumerate(steps) if _same(known, step, reads)), None)
        if there is None:
            there = len(steps)
            kind = step.id.rsplit("-", 1)[0]
            steps.append(replace(step, id=f"{kind}-{there + 1}", reads=reads))
        places.append(len(sources) + there)
    return places[graph.end]


def _same(known: Step, step: Step, reads: tuple[int, ...]) -> bool:
    if known.reads != reads:
        return False
    if isinstance(known, KeyedStep) and isinstance(step, KeyedStep):
        return known.plan is step.plan
    both = isinstance(known, MapStep) and isinstance(step, MapStep)
    return both and known.function is step.function  # type: ignore[union-attr]
