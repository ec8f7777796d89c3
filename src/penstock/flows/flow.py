"""What a user writes: a source, steps, an SLA, a sink.

Every method returns a new flow; nothing runs before `start`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.control.elastic import Elastic
from penstock.control.treat.decision import Policy
from penstock.errors import FlowError
from penstock.flows.explain import explained
from penstock.flows.graph import Graph, Source
from penstock.flows.joins import On, Span, join_bound, key_pairs
from penstock.flows.keyed_flow import KeyedFlow, WindowedFlow, must_be
from penstock.flows.start import Mode, StartOptions, must_be_a_chain, start
from penstock.flows.start_live import start_live
from penstock.live.sources.source import LiveSource
from penstock.model import SLA, milliseconds
from penstock.operators.aggregate.aggregates import Aggregate
from penstock.operators.join.plan import JoinPlan
from penstock.operators.operator import Emit, OnError, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.window.windows import Window
from penstock.plan.columns import Select, Value, Where
from penstock.plan.migration import Migration
from penstock.plan.steps import BatchFunction, FlowPlan, KeyedStep, MapStep, SourcePlan
from penstock.settings import Settings
from penstock.spark.schema import arrow_schema, declared
from penstock.spark.session import check_session
from penstock.spark.sinks import Sink, foreach_batch, to
from penstock.state.variables.ddl import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.query import FlowQuery

__all__ = ["Flow", "KeyedFlow", "WindowedFlow", "flow"]

_STARTS = {"micro_batch": start, "live": start_live}


@dataclass(frozen=True)
class Flow:
    """A pipeline: source DataFrames, steps on them, and where the output goes. Made by `flow`."""

    graph: Graph
    bound: SLA | None = None
    elasticity: Elastic | None = None
    sink: Sink | None = None
    time: str | None = None
    """The column of event times, as long as there is one that windows can go by."""
    one_host: bool = False
    keeps_order: bool = False

    def key_by(self, *columns: str, slots: int = 64, nulls: bool = False) -> KeyedFlow:
        """Say which columns are the key of the next step, and into how many slots it is cut.

        The number of slots is fixed for the life of a checkpoint; it bounds how many hosts the step
        can use. Rows with a null in the key are refused, unless `nulls` makes null a key like any
        other, as SQL's GROUP BY does.
        """
        if not columns:
            raise FlowError("key_by needs a column", hint="use global_ for a step without a key")
        _check_slots(slots)
        for column in columns:
            self.must_have(column, "to key by")
        return KeyedFlow(self, columns, slots, nulls)

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        lateness: str | float = 0,
        emit: Emit = "close",
        slots: int = 64,
    ) -> WindowedFlow:
        """Cut all rows into windows, without a key. See `KeyedFlow.window`."""
        _check_slots(slots)
        whole = KeyedFlow(self, (), slots)
        return whole.window(window, on=on, lateness=lateness, emit=emit)

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
        return whole.aggregate(emit="update", **aggregates)

    def join(
        self,
        other: Flow,
        on: On,
        *,
        how: Literal["inner", "left"] = "inner",
        window: Window | None = None,
        between: Span | None = None,
        ttl: str | float | None = None,
        left_time: str | None = None,
        right_time: str | None = None,
        suffix: str = "_right",
        distinct: bool = False,
        lateness: str | float = 0,
        slots: int = 64,
    ) -> Flow:
        """Join with another flow on equal keys: a step with two inputs.

        `on` is a column that both have, several, or a mapping of columns here to columns there. What
        else must hold, and how long rows are kept:

        - `window`: both rows are in the same window of event time;
        - `between=("0s", "10s")`: the other row's time is from 0 s to 10 s after this row's. The
          second may be a timestamp column of this side: up to that time;
        - neither: all rows match for ever, or for `ttl` after they came. Then a left join gives
          changes (see `_change`), since a row without a match may still find one.

        `left_time` and `right_time` name the columns of times where a flow's event time is not
        meant. Columns of the other side whose name is taken get the `suffix`. With `distinct`, equal
        rows of a side count once in each window.
        """
        _check_slots(slots)
        must_be(other, Flow, "join", "a flow", "other = ps.flow(df)")
        plan = JoinPlan(
            self.schema,
            other.schema,
            key_pairs(self, other, on),
            how,
            join_bound(self, other, window, between, ttl, left_time, right_time),
            suffix=suffix,
            distinct=distinct,
            lateness_ms=milliseconds(lateness),
        )
        graph, left, right = self.graph.joined(other.graph)
        step = KeyedStep(graph.name("join"), slots, plan, reads=(left, right))
        keeps_order = self.keeps_order or other.keeps_order
        both = replace(self, keeps_order=keeps_order)
        return both._on(replace(graph, steps=(*graph.steps, step)))

    def map_batches(
        self, function: BatchFunction, schema: pa.Schema | StructType | str | None = None
    ) -> Flow:
        """A stateless step: a function from an Arrow batch to one (or a table, several, or None).

        `schema` says what it returns. Without it, the function is called once with an empty batch
        to find out.
        """
        name = self.graph.name("map")
        output = _probed(function, self.schema, name) if schema is None else self.declared(schema)
        return self._on(self.graph.then(MapStep(name, function, self.schema, output)))

    def select(self, *columns: str, **named: Value) -> Flow:
        """Keep these columns, in this order; `new="old"` renames one, other values make new ones.

        A value is the name of a column, an Arrow expression such as `pc.field("a") * 2`, or a
        function from a batch to an array.
        """
        chosen: dict[str, Value] = {**{column: column for column in columns}, **named}
        for column in chosen.values():
            if isinstance(column, str):
                self.must_have(column, "to select")
        if not chosen:
            raise FlowError("select needs a column", hint="name those to keep")
        return self.map_batches(Select(tuple(chosen.items())))

    def with_columns(self, **named: Value) -> Flow:
        """All columns, and these; one that has the name of another takes its place. See `select`."""
        return self.select(**({name: name for name in self.schema.names} | named))

    def filter(self, condition: pc.Expression | Callable[[pa.RecordBatch], Any]) -> Flow:
        """Keep the rows for which a condition is true, such as `pc.field("n") > 3`.

        It is an Arrow expression, or a function from a batch to an array of booleans.
        """
        if not (isinstance(condition, pc.Expression) or callable(condition)):
            raise FlowError(
                f"{condition!r:.100} is no condition",
                hint='give an expression such as pc.field("n") > 3',
            )
        return self.map_batches(Where(condition))

    def ordered(self) -> Flow:
        """Give the output in the order of arrival, for each partition of the source.

        Wherever a row was worked on, what it caused leaves in the place that it came in; the output
        is the same with one host as with many, after slots have moved and after retries. What an
        epoch gives at its end (aggregates, changes, tops) goes by the first record of each key that
        was sent in the epoch; what time makes due, such as windows that close and timers, comes
        before the rows of its epoch, by time. Without this, order is kept for each key only.
        """
        return replace(self, keeps_order=True)

    def on_one_host(self) -> Flow:
        """Run all steps in one host, on as many cores as Spark gives a task (`spark.task.cpus`).

        For flows of one source whose steps follow one another. Rows then cross the network once,
        and what comes out is what one thread would have given that takes the rows one after the
        other: in the order of arrival of each source partition, as with `ordered`. Such a flow
        cannot be scaled or moved, and its state has to fit into the one host's memory.
        """
        must_be_a_chain(self.plan)
        return replace(self, one_host=True)

    def sla(self, latency: str | float, window: str | float = "1s") -> Flow:
        """Ask for an average latency of at most `latency` over any `window`."""
        return replace(self, bound=SLA(milliseconds(latency), milliseconds(window)))

    def elastic(self, policy: str | Policy = "switch", **settings: Any) -> Flow:
        """Let the hosts of each step follow the load, so that the SLA is kept with few of them.

        `policy` is "switch", or another one by name, or your own (see `Policy`). Settings are those
        of `Elastic`: `at_least` and `at_most` hosts of a step, the `margin` of service rates that is
        not counted on, the `alert` latency, and `dry_run`, which only tells what would be done.
        Without this a step keeps the hosts that it was started with.

        `functions`, such as `LocalFunctions(at_most=20)`, take up bursts: they are there in less
        than a second, and hosts come when a burst has lasted for longer than `patience`.
        """
        return replace(self, elasticity=Elastic(policy, **settings))

    def to(self, format: str, **options: Any) -> Flow:
        """Send the output to a Spark batch writer. See `penstock.to`."""
        return replace(self, sink=to(format, **options))

    def foreach_batch(self, function: Callable[[DataFrame, int], None]) -> Flow:
        """Send the output to a function of (DataFrame, epoch). See `penstock.foreach_batch`."""
        return replace(self, sink=foreach_batch(function))

    @property
    def plan(self) -> FlowPlan:
        """The flow compiled."""
        return replace(self.graph.plan, ordered=self.keeps_order, one_host=self.one_host)

    @property
    def schema(self) -> pa.Schema:
        """The columns that come out at the end of the flow as it stands."""
        return self.graph.schema

    @property
    def spark(self) -> SparkSession:
        """The session of the sources: that of a DataFrame, or the active one."""
        return self.graph.sources[0].spark

    def explain(self) -> None:
        """Print the steps, what each needs and gives, and where it runs."""
        elastic = self.elasticity
        functions = None if elastic is None else elastic.functions
        bounds_epochs = any(source.bounded_by_sla for source in self.graph.sources)
        print(explained(self.plan, self.bound, functions, bounds_epochs))

    def start(
        self,
        sink: Sink | None = None,
        *,
        checkpoint: str | None = None,
        hosts: int | dict[str, int] = 2,
        migration: str | Migration = "lazy",
        on_error: OnError = "fail",
        late_rows: Sink | dict[str, Sink] | None = None,
        trigger: str | None = None,
        close: bool = False,
        name: str | None = None,
        settings: Settings | None = None,
        mode: Mode = "micro_batch",
        checkpoint_every: str | float = "1s",
        delivery: Literal["at_once", "transactional"] = "at_once",
        couriers: int | None = None,
    ) -> FlowQuery:
        """Start the flow and return at once.

        Each keyed step gets `hosts` hosts (or its own number, by step name). `checkpoint` is a
        folder that the flow continues from when it is started again; a static DataFrame needs none.
        `trigger` is a duration between epochs, or "available_now"; by default one epoch follows the
        other. With `close`, which goes with "available_now", the input has ended when all that is
        there has been read: every window closes, and the checkpoint cannot be continued.

        `migration` says how state follows slots that change hands (see `Migration`); it can be
        changed while the query runs. With `on_error="dead_letter"` rows that cannot be processed are
        kept in the checkpoint's `dead_letters` folder instead of stopping the flow. Rows that came
        behind the watermark of a step are counted, and go to the sink `late_rows` if there is one;
        with several such steps, one for each by its name ("window-1", "join-2.left").

        With `mode="live"` rows leave within milliseconds: couriers are long-lived tasks too, and read
        the sources themselves (`kafka`, `rate`, `source`). State is made durable every
        `checkpoint_every`. With `delivery="at_once"` rows leave before that, so that those since the
        last checkpoint leave again after a failure, with ids that tell (see `RowIds`). With "transactional"
        they are seen when they are durable, each exactly once: in Kafka by consumers that read committed
        rows, or as files. `couriers` is their number; by default each reads four source partitions. `trigger`
        is for micro-batches only. There "transactional" lets a topic of Kafka have each epoch once, in one
        transaction of the driver's.
        """
        whole = replace(self, sink=sink or self.sink)
        options = StartOptions(
            checkpoint=checkpoint,
            hosts=hosts,
            migration=migration,
            on_error=on_error,
            late_rows=late_rows,
            trigger=trigger,
            close=close,
            name=name,
            settings=settings or Settings(),
            checkpoint_every=checkpoint_every,
            delivery=delivery,
            couriers=couriers,
        )
        if mode not in _STARTS:
            raise FlowError(f"mode={mode!r} is unknown", hint='use "micro_batch" or "live"')
        return _STARTS[mode](whole, options)

    def declared(self, schema: pa.Schema | StructType | str) -> pa.Schema:
        """A schema as users write it (Arrow, Spark, or DDL text) as Arrow."""
        if self.graph.sources[0].live is None:
            return declared(schema, self.spark)
        return schema_of(schema)

    def with_keyed(self, kind: str, slots: int, plan: StepPlan) -> Flow:
        """With one more keyed step."""
        return self._on(self.graph.then(KeyedStep(self.graph.name(kind), slots, plan)))

    def time_column(self, name: str | None) -> str:
        """The column of times that a window or a join goes by."""
        if name is None:
            if self.time is None:
                raise FlowError(
                    "there is no event time here to go by",
                    hint='name its column: ps.flow(df, event_time="ts"), or the `on` of a window',
                )
            return self.time
        self.must_have(name, "of times")
        return name

    def must_have(self, column: str, purpose: str) -> None:
        """Refuse a column that is not here."""
        if column not in self.schema.names:
            raise FlowError(
                f"there is no column {column!r} {purpose}",
                hint=f"the columns here are {', '.join(self.schema.names)}",
            )

    def _on(self, graph: Graph) -> Flow:
        """This flow with another graph; its event time goes on where the column does."""
        schema, time = graph.schema, self.time
        if time is not None:
            place = schema.get_field_index(time)
            if place < 0 or not pa.types.is_timestamp(schema.field(place).type):
                time = None
        return replace(self, graph=graph, time=time)


def flow(
    source: DataFrame | LiveSource,
    *,
    arrival: str | None = None,
    event_time: str | None = None,
    delay: str | float = 0,
    partition: str | None = None,
    idle: str | float | None = None,
) -> Flow:
    """Begin a flow on a DataFrame, streaming or static, or on a source that couriers can read
    without Spark: `kafka`, `rate` or `source`. Only these can run in live mode.

    `arrival` names the timestamp column that latency is measured from; by default it is the one that
    the source has for it (Kafka's timestamp), or else latency is measured from ingestion.
    `event_time` names the timestamp column that windows and event-time timers follow, and `delay` how
    far out of order it may be.

    The watermark is the newest event time less the delay. Where the partitions of the source do not
    advance together, `partition` names the column that tells them apart (Kafka's `partition`): then
    it is that of the partition that is furthest behind. One that has brought no row for `idle` does
    not hold the others back; nor does a whole source that is joined with others.
    """
    decoder = None
    if isinstance(source, LiveSource):
        schema, decoder, arrival = source.schema, source.decoder, arrival or source.arrival
    else:
        check_session(source)
        schema = arrow_schema(source.schema, source.sparkSession)
    times, names = (pa.types.is_timestamp,), (pa.types.is_integer, pa.types.is_string)
    for purpose, column, what, kinds in (
        ("arrival", arrival, "a timestamp column", times),
        ("event_time", event_time, "a timestamp column", times),
        ("partition", partition, "a column of integers or text", names),
    ):
        place = -1 if column is None else schema.get_field_index(column)
        type = schema.field(place).type if place >= 0 else None
        if column is not None and (type is None or not any(kind(type) for kind in kinds)):
            found = "missing" if type is None else f"of type {type}"
            raise FlowError(
                f"{purpose}={column!r} must be {what}, but it is {found}",
                hint=f"the columns here are {', '.join(schema.names)}",
            )
    if event_time is None and (partition is not None or idle is not None):
        raise FlowError(
            "partition and idle are about the watermark, but there is no event time",
            hint='name its column: ps.flow(df, event_time="ts", ...)',
        )
    idle_ms = None if idle is None else milliseconds(idle)
    plan = SourcePlan(schema, event_time, milliseconds(delay), partition, idle_ms, arrival, decoder)
    return Flow(Graph((Source(source, plan),)), time=event_time)


def _check_slots(slots: int) -> None:
    if slots < 1 or slots > 32_768:
        raise FlowError(f"slots={slots} is out of range", hint="use 1 to 32768; 64 suits most")


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
