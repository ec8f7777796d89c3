"""Flows as graphs: sources, steps that read streams, and the union of two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import FlowError
from penstock.flows.step_names import checked_name, is_automatic
from penstock.live.sources.kafka import KafkaSource
from penstock.live.sources.source import LiveSource
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan, Step
from penstock.spark.session import check_session
from penstock.spark.sources import active_session, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, eq=False)
class Source:
    """A source of a flow. The same object is the same source in every flow."""

    origin: DataFrame | LiveSource
    """The DataFrame or source that the user gave to `flow`."""
    plan: SourcePlan
    """Its columns, and which of them tell the time."""

    @property
    def live(self) -> LiveSource | None:
        """The source that couriers read without Spark; None: only Spark can read it."""
        return self.origin if isinstance(self.origin, LiveSource) else None

    @property
    def spark(self) -> SparkSession:
        """The Spark session that reads it."""
        return active_session() if isinstance(self.origin, LiveSource) else self.origin.sparkSession

    @property
    def bounded_by_sla(self) -> bool:
        """Whether the SLA bounds the rows that an epoch reads of it."""
        return isinstance(self.origin, KafkaSource) and self.origin.bounded_by_sla

    def frame(self, spark: SparkSession, bound: int | None = None) -> DataFrame:
        """The DataFrame for micro-batches, with at most `bound` rows per epoch if the SLA bounds it."""
        if not isinstance(self.origin, LiveSource):
            return self.origin
        df = frame(self.origin, spark, bound)
        check_session(df)
        return df


@dataclass(frozen=True)
class Graph:
    """Sources and steps, in an order in which each step comes after those that it reads.

    Streams are numbered as in `plan.steps`: the sources, then what each step gives.
    """

    sources: tuple[Source, ...]
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> int:
        """The number of the output stream."""
        return len(self.sources) + len(self.steps) - 1 if self.steps else 0

    @property
    def plan(self) -> FlowPlan:
        return FlowPlan(tuple(source.plan for source in self.sources), self.steps)

    @property
    def schema(self) -> pa.Schema:
        return self.plan.output

    def next_map(self) -> str:
        """The name of the next stateless step."""
        return _map_name(self.steps)

    def next_keyed(self, kind: str, name: str | None = None) -> str:
        """The name of the next keyed step: the user's, or an automatic one."""
        if name is None:
            return _keyed_name(self.steps, kind)
        name = checked_name(name)
        if any(step.id == name for step in self.steps):
            raise _named_twice(name)
        return name

    def then(self, step: Step) -> Graph:
        """The graph with one more step at the end, which reads the output stream."""
        return replace(self, steps=(*self.steps, replace(step, reads=(self.end,))))

    def joined(self, other: Graph) -> tuple[Graph, int, int]:
        """The union of two graphs, and the numbers of their output streams in it.

        Sources and steps that both have are in it once.
        """
        extra = tuple(source for source in other.sources if source not in self.sources)
        sources = (*self.sources, *extra)
        steps: list[Step] = []
        ends = [_add(graph, sources, steps) for graph in (self, other)]
        return Graph(sources, tuple(steps)), ends[0], ends[1]


def _add(graph: Graph, sources: tuple[Source, ...], steps: list[Step]) -> int:
    """Add a graph's steps to those of a union. Returns the number of its output stream there."""
    places = [sources.index(source) for source in graph.sources]
    for step in graph.steps:
        reads = tuple(places[stream] for stream in step.reads)
        there = next((n for n, known in enumerate(steps) if _same(known, step, reads)), None)
        if there is None:
            there = len(steps)
            steps.append(replace(step, id=_name_among(steps, step), reads=reads))
        places.append(len(sources) + there)
    return places[graph.end]


def _name_among(steps: list[Step], step: Step) -> str:
    """The name of a step that is put behind others: automatic names count on, a user's name stays."""
    if isinstance(step, MapStep):
        return _map_name(steps)
    if is_automatic(step.id, step.kind):
        return _keyed_name(steps, step.kind)
    if any(step.id == known.id for known in steps):
        raise _named_twice(step.id)
    return step.id


def _map_name(steps: Sequence[Step]) -> str:
    return f"map-{1 + sum(isinstance(step, MapStep) for step in steps)}"


def _keyed_name(steps: Sequence[Step], kind: str) -> str:
    return f"{kind}-{1 + sum(isinstance(step, KeyedStep) for step in steps)}"


def _named_twice(name: str) -> FlowError:
    return FlowError(
        f"two steps of the flow have the name {name!r}", hint="give one of them another name"
    )


def _same(known: Step, step: Step, reads: tuple[int, ...]) -> bool:
    if known.reads != reads:
        return False
    if isinstance(known, KeyedStep) and isinstance(step, KeyedStep):
        return known.plan is step.plan
    both = isinstance(known, MapStep) and isinstance(step, MapStep)
    return both and known.function is step.function  # type: ignore[union-attr]
