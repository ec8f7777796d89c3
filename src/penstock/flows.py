"""What a user writes: a source, steps, an SLA, a sink.

Every method returns a new flow; nothing runs before `start`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.config import Settings
from penstock.errors import FlowError
from penstock.model import SLA, milliseconds
from penstock.operators.aggregates import Aggregate, AggregatePlan
from penstock.operators.process_step import ProcessPlan
from penstock.operators.processor import KeyedProcessor
from penstock.plan.explain import explained
from penstock.plan.migration import Migration
from penstock.plan.steps import BatchFunction, FlowPlan, KeyedStep, MapStep, OnError, Step
from penstock.spark import start as starting
from penstock.spark.schema import arrow_schema, declared
from penstock.spark.sinks import Sink, foreach_batch, to

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.spark.query import FlowQuery


@dataclass(frozen=True)
class Flow:
    """A pipeline: a source DataFrame, steps on it, and where the output goes. Made by `flow`."""

    source: DataFrame
    plan: FlowPlan
    bound: SLA | None = None
    sink: Sink | None = None

    def key_by(self, *columns: str, slots: int = 64) -> KeyedFlow:
        """Say which columns are the key of the next step, and into how many slots it is cut.

        The number of slots is fixed for the life of a checkpoint; it bounds how many hosts the step
        can use.
        """
        if not columns:
            raise FlowError("key_by needs a column", hint="use global_ for a step without a key")
        if slots < 1 or slots > 32_768:
            raise FlowError(f"slots={slots} is out of range", hint="use 1 to 32768; 64 suits most")
        known = self.schema.names
        for column in columns:
            if column not in known:
                raise FlowError(
                    f"there is no column {column!r} to key by",
                    hint=f"the columns here are {', '.join(known)}",
                )
        return KeyedFlow(self, columns, slots)

    def global_(
        self,
        processor: KeyedProcessor | None = None,
        /,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
        **aggregates: Aggregate,
    ) -> Flow:
        """A step with state but no key: one slot, one host. Aggregates, or a processor."""
        whole = KeyedFlow(self, (), 1)
        if processor is not None and aggregates:
            raise FlowError(
                "global_ got both a processor and aggregates", hint="make two steps of it"
            )
        if processor is not None:
            return whole.process(processor, output_schema=output_schema)
        return whole.aggregate(**aggregates)

    def map_batches(
        self, function: BatchFunction, schema: pa.Schema | StructType | str | None = None
    ) -> Flow:
        """A stateless step: a function from an Arrow batch to one (or a table, several, or None).

        `schema` says what it returns. Without it, the function is called once with an empty batch
        to find out.
        """
        name = self._name("map")
        if schema is not None:
            output = declared(schema, self.source.sparkSession)
        else:
            output = _probed(function, self.schema, name)
        return self._with(MapStep(name, function, self.schema, output))

    def sla(self, latency: str | float, window: str | float = "1s") -> Flow:
        """Ask for an average latency of at most `latency` over any `window`."""
        bound = SLA(milliseconds(latency), milliseconds(window))
        if bound.latency_ms <= 0 or bound.window_ms <= 0:
            raise FlowError("an SLA needs durations above zero", hint='for example latency="1s"')
        return replace(self, bound=bound)

    def to(self, format: str, **options: Any) -> Flow:
        """Send the output to a Spark batch writer. See `penstock.to`."""
        return replace(self, sink=to(format, **options))

    def foreach_batch(self, function: Callable[[DataFrame, int], None]) -> Flow:
        """Send the output to a function of (DataFrame, epoch). See `penstock.foreach_batch`."""
        return replace(self, sink=foreach_batch(function))

    @property
    def schema(self) -> pa.Schema:
        """The columns that come out at the end of the flow as it stands."""
        return self.plan.output

    def explain(self) -> None:
        """Print the steps, what each needs and gives, and where it runs."""
        print(explained(self.plan, self.bound))

    def start(
        self,
        sink: Sink | None = None,
        *,
        checkpoint: str | None = None,
        hosts: int | dict[str, int] = 2,
        migration: str | Migration = "lazy",
        on_error: OnError = "fail",
        trigger: str | None = None,
        name: str | None = None,
        settings: Settings | None = None,
    ) -> FlowQuery:
        """Start the flow and return at once.

        Each keyed step gets `hosts` hosts (or its own number, by step name). `checkpoint` is a
        folder that the flow continues from when it is started again; a static DataFrame needs none.
        `trigger` is a duration between epochs, or "available_now"; by default one epoch follows the
        other. `migration` says how state follows slots that change hands (see `Migration`); it can
        be changed while the query runs. With `on_error="dead_letter"` rows that cannot be processed
        are kept in the checkpoint's `dead_letters` folder instead of stopping the flow.
        """
        return starting.start(
            replace(self, sink=sink or self.sink),
            checkpoint=checkpoint,
            hosts=hosts,
            migration=migration,
            on_error=on_error,
            trigger=trigger,
            name=name,
            settings=settings or Settings(),
        )

    def _with(self, step: Step) -> Flow:
        return replace(self, plan=replace(self.plan, steps=(*self.plan.steps, step)))

    def _name(self, kind: str) -> str:
        return f"{kind}-{len(self.plan.steps) + 1}"


@dataclass(frozen=True)
class KeyedFlow:
    """A flow that knows its next step's key, and waits to be told what that step is."""

    flow: Flow
    keys: tuple[str, ...]
    slots: int

    def aggregate(self, **aggregates: Aggregate) -> Flow:
        """Keep aggregates per key, and emit the rows that changed: once per key and epoch."""
        if not aggregates:
            raise FlowError("aggregate needs something to keep", hint="for example n=ps.count()")
        plan = AggregatePlan(self.flow.schema, list(self.keys), aggregates)
        return self._step("aggregate", plan)

    def process(
        self,
        processor: KeyedProcessor,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
    ) -> Flow:
        """Run a `KeyedProcessor`: any logic of one's own, with state and timers per key."""
        schema = output_schema if output_schema is not None else processor.output_schema
        if schema is None:
            raise FlowError(
                f"{type(processor).__name__} does not say what it returns",
                hint='give process(..., output_schema="word string, n long")',
            )
        output = declared(schema, self.flow.source.sparkSession)
        plan = ProcessPlan(self.flow.schema, list(self.keys), processor, output)
        return self._step("process", plan)

    def _step(self, kind: str, plan: AggregatePlan | ProcessPlan) -> Flow:
        return self.flow._with(KeyedStep(self.flow._name(kind), self.slots, plan))


def flow(
    source: DataFrame,
    *,
    arrival: str | None = None,
    event_time: str | None = None,
    delay: str | float = 0,
) -> Flow:
    """Begin a flow on a DataFrame, streaming or static.

    `arrival` names the timestamp column that latency is measured from; by default it is measured
    from ingestion. `event_time` names the timestamp column that event-time timers follow, and `delay` how
    far out of order it may be.
    """
    schema = arrow_schema(source.schema, source.sparkSession)
    for purpose, column in (("arrival", arrival), ("event_time", event_time)):
        if column is None:
            continue
        index = schema.get_field_index(column)
        if index < 0 or not pa.types.is_timestamp(schema.field(index).type):
            found = f"of type {schema.field(index).type}" if index >= 0 else "missing"
            raise FlowError(
                f"{purpose}={column!r} must be a timestamp column, but it is {found}",
                hint=f"the columns here are {', '.join(schema.names)}",
            )
    plan = FlowPlan(schema, (), arrival, event_time, milliseconds(delay))
    return Flow(source, plan)


def _probed(function: BatchFunction, schema: pa.Schema, step: str) -> pa.Schema:
    """What a function returns, found by calling it with no rows."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    try:
        result = function(empty)
    except Exception as failed:
        raise FlowError(
            f"step {step}: cannot tell what the function returns, because it fails on an empty "
            f"batch: {type(failed).__name__}: {failed}",
            hint="declare it: map_batches(fn, schema=...)",
        ) from failed
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise FlowError(
            f"step {step}: cannot tell what the function returns from {type(result).__name__}",
            hint="declare it: map_batches(fn, schema=...)",
        )
    return result.schema
