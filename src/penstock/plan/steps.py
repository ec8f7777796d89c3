"""The compiled steps of a flow, with known schemas, ready to ship to couriers and hosts.

Streams are numbered: first the sources, then the output of each step. A step names the streams that it
reads; by default the one before it. All sources share one stream of rows, each tagged with its
source (see `operators.tagged`), since a flow is one Spark query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from penstock.model import DeadLetter
from penstock.operators.operator import OnError, Operator, StepPlan
from penstock.operators.tagged import TaggedSchema
from penstock.plan.watermarks import SourceTime
from penstock.state.keys.codec import KeyCodec

BatchFunction = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class MapStep:
    """A stateless step between keyed ones: a user's function on Arrow batches, run by couriers."""

    id: str
    function: BatchFunction
    input: pa.Schema
    output: pa.Schema
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class KeyedStep:
    """A step with state. Its key space is divided into slots, which hosts own."""

    id: str
    slots: int
    plan: StepPlan
    on_error: OnError = "fail"
    reads: tuple[int, ...] = ()
    """Numbers of the streams it reads, in the order of the plan's inputs; empty: the one before it."""
    kind: str = ""
    """The kind of step, which its automatic name begins with, such as "aggregate"."""

    @property
    def keys(self) -> list[str]:
        return list(self.plan.key_names)

    @property
    def codec(self) -> KeyCodec:
        return self.plan.codec

    @property
    def output(self) -> pa.Schema:
        return self.plan.output

    @property
    def has_timers(self) -> bool:
        """Whether the step needs epochs even when no rows arrive."""
        return self.plan.has_timers

    def operator(self, ordered: bool = False) -> Operator:
        """Create an empty operator for one host. If `ordered`, its output rows carry their places."""
        return self.plan.operator(self.slots, self.id, self.on_error, ordered)


Step = MapStep | KeyedStep


class SourceDecoder(Protocol):
    """A picklable decoder that couriers use to turn what Spark reads into a source's rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that Spark reads."""
        ...

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[DeadLetter]]:
        """Decode a batch into rows, and dead letters for what could not be decoded."""
        ...


@dataclass(frozen=True)
class SourcePlan:
    """One source of a flow: its columns, and the settings of its event time."""

    schema: pa.Schema
    event_time: str | None = None
    delay_ms: int = 0
    """Milliseconds by which event times may be out of order."""
    partition: str | None = None
    """Name of the column with the source's partition of a row."""
    idle_ms: int | None = None
    """Milliseconds without a row after which a partition no longer holds back the watermark; None: never."""
    arrival: str | None = None
    decoder: SourceDecoder | None = None
    """Decoder of what Spark reads into the source's rows; None: Spark reads the rows themselves."""

    @property
    def as_read(self) -> pa.Schema:
        """The columns that Spark reads."""
        return self.schema if self.decoder is None else self.decoder.schema

    @property
    def time(self) -> SourceTime | None:
        """Settings of its watermark; None: the source has no event time."""
        if self.event_time is None:
            return None
        return SourceTime(self.delay_ms, self.idle_ms, self.partition is not None)


@dataclass(frozen=True)
class FlowPlan:
    """A whole flow, ready to run."""

    sources: tuple[SourcePlan, ...]
    steps: tuple[Step, ...] = ()
    on_error: OnError = "fail"
    ordered: bool = False
    """Whether output rows leave in the order of the input rows that caused them, per partition."""
    by_arrival: bool = False
    """Whether the first keyed step processes an epoch's rows, of all partitions, by their arrival times."""
    one_host: bool = False
    """Whether all steps run in one host, on all its cores. Couriers then only send rows and receive
    output."""

    @property
    def in_order(self) -> bool:
        """Whether each step's output is in the order of its input."""
        return self.ordered or self.one_host

    def arrival_of(self, step: str) -> str | None:
        """Column of the arrival times by which a step processes rows; None: in the order of partitions."""
        first = self.by_arrival and step == self.keyed[0].id
        return self.sources[0].arrival if first else None

    @property
    def linear(self) -> bool:
        """Whether each step reads the one before it, and nothing else."""
        before = range(len(self.steps))
        return len(self.sources) == 1 and all(self.reads(n) == (n,) for n in before)

    @property
    def output(self) -> pa.Schema:
        return self.steps[-1].output if self.steps else self.sources[0].schema

    @property
    def keyed(self) -> tuple[KeyedStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, KeyedStep))

    @cached_property
    def tagged(self) -> TaggedSchema | None:
        """Schema of the stream that several sources share; None: there is one source."""
        if len(self.sources) == 1:
            return None
        return TaggedSchema(tuple(source.as_read for source in self.sources))

    def reads(self, step: int) -> tuple[int, ...]:
        """Numbers of the streams that a step reads."""
        return self.steps[step].reads or (len(self.sources) + step - 1 if step else 0,)

    def schema_of(self, stream: int) -> pa.Schema:
        """The columns of a stream."""
        sources = len(self.sources)
        return (
            self.sources[stream].schema if stream < sources else self.steps[stream - sources].output
        )

    @cached_property
    def graph(self) -> tuple[tuple[str, tuple[int | str, ...]], ...]:
        """(keyed step, the sources and keyed steps that it reads), skipping stateless steps in between."""
        made: list[tuple[int | str, ...]] = [(number,) for number in range(len(self.sources))]
        edges = []
        for number, step in enumerate(self.steps):
            read = tuple(dict.fromkeys(s for stream in self.reads(number) for s in made[stream]))
            if isinstance(step, KeyedStep):
                edges.append((step.id, read))
                read = (step.id,)
            made.append(read)
        return tuple(edges)

    @cached_property
    def depths(self) -> dict[str, int]:
        """Keyed step -> number of keyed steps on the longest path to it, itself included."""
        depths: dict[str, int] = {}
        for step, reads in self.graph:
            depths[step] = 1 + max((depths[r] for r in reads if isinstance(r, str)), default=0)
        return depths
