"""Flows as users write them: a source, steps, an SLA, a sink.

Every method returns a new flow; nothing runs before `start`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from penstock.control.elastic import Elastic, WorkerTerms
from penstock.control.money import HostPrice
from penstock.control.treat.decision import Policy
from penstock.errors import FlowError
from penstock.extensions import imported
from penstock.flows.claim import Mode
from penstock.flows.explain import explained
from penstock.flows.graph import Graph
from penstock.flows.joins import On, Span, join_bound, key_pairs
from penstock.flows.keyed_flow import KeyedFlow, WindowedFlow, must_be, popped_name
from penstock.flows.start import StartOptions, must_be_a_chain, must_have_arrivals, start
from penstock.flows.start_live import start_live
from penstock.model import SLA, LatencyBound, milliseconds, sla_of
from penstock.observe.dashboard.server import listening
from penstock.observe.report.html import writable
from penstock.offload.backends.backend import checked
from penstock.operators.aggregate.aggregates import Aggregate
from penstock.operators.join.plan import JoinPlan
from penstock.operators.operator import Emit, OnError, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.window.windows import Window
from penstock.plan.columns import Select, Value, Where
from penstock.plan.migration import Migration
from penstock.plan.steps import BatchFunction, FlowPlan, KeyedStep, MapStep
from penstock.settings import Settings
from penstock.spark.schema import declared
from penstock.spark.sinks import Sink, foreach_batch, to
from penstock.state.variables.ddl import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.query import FlowQuery

__all__ = ["Flow", "KeyedFlow", "WindowedFlow"]

_STARTS = {"micro_batch": start, "live": start_live}


@dataclass(frozen=True)
class Flow:
    """A pipeline: sources, steps on them, and a sink for the output. Made by `flow`."""

    graph: Graph
    """Sources and steps."""
    bound: SLA | None = None
    """The SLA; None: there is none."""
    elasticity: Elastic | None = None
    """Settings of autoscaling; None: it is off."""
    sink: Sink | None = None
    """The sink, unless `start` gets one."""
    time: str | None = None
    """The event-time column, which windows use by default; None after a step that drops it."""
    one_host: bool = False
    """Whether all steps run in one host."""
    keeps_order: bool = False
    """Whether the output is in the order of arrival."""
    by_arrival: bool = False
    """Whether that order is by arrival time, over all partitions of an epoch."""

    def key_by(self, *columns: str, slots: int = 64, nulls: bool = False) -> KeyedFlow:
        """Choose the key columns of the next step, and the number of slots of its key space.

        The number of slots is fixed for the life of a checkpoint, and is the largest number of hosts that
        the step can use. Rows with a null in the key are refused, unless `nulls` makes null a key like any
        other, as SQL's GROUP BY does.
        """
        if not columns:
            raise FlowError(
                "key_by needs a column", hint="name one, or use global_ for a step without a key"
            )
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
        """Group all rows into windows, without a key. See `KeyedFlow.window`."""
        _check_slots(slots)
        whole = KeyedFlow(self, (), slots)
        return whole.window(window, on=on, lateness=lateness, emit=emit)

    @overload
    def global_(
        self,
        processor: KeyedProcessor | None = None,
        /,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
        name: str,
        **aggregates: Aggregate,
    ) -> Flow: ...
    @overload
    def global_(
        self,
        processor: KeyedProcessor | None = None,
        /,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
        **aggregates: Aggregate,
    ) -> Flow: ...
    def global_(
        self,
        processor: KeyedProcessor | None = None,
        /,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
        **aggregates: Any,
    ) -> Flow:
        """Add a step with state but no key: aggregates of all rows, or a processor. It has one host.

        `name="total"` names the step, as in `KeyedFlow.aggregate`.
        """
        whole = KeyedFlow(self, (), 1)
        if processor is None:
            return whole.aggregate(emit="update", **aggregates)
        name = popped_name(aggregates)
        if aggregates:
            raise FlowError(
                "global_ got both a processor and aggregates", hint="use two steps, one for each"
            )
        return whole.process(processor, output_schema=output_schema, name=name)

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
        name: str | None = None,
    ) -> Flow:
        """Join with another flow on equal keys: a step with two inputs.

        `on` is a column that both flows have, a list of such columns, or a mapping of columns of this flow
        to columns of the other. One of these bounds which rows match, and how long rows are kept:

        - `window`: both rows are in the same window of event time;
        - `between=("0s", "10s")`: the other row's time is from 0 s to 10 s after this row's. The
          upper bound may be a timestamp column of this flow instead;
        - neither: rows are kept, and match, for ever, or for `ttl` after they arrived. Then a left join
          emits changes (see `_change`), since a row without a match may still find one.

        `left_time` and `right_time` name other timestamp columns than the flows' event times. Columns of
        the other flow whose name is taken get the `suffix`. With `distinct`, equal rows of a side count
        once in each window. Rows that arrive more than `lateness` after their window closed are late.
        `name` names the step, as in `KeyedFlow.aggregate`.
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
        id = graph.next_keyed("join", name)
        step = KeyedStep(id, slots, plan, reads=(left, right), kind="join")
        keeps_order = self.keeps_order or other.keeps_order
        both = replace(self, keeps_order=keeps_order)
        return both._on(replace(graph, steps=(*graph.steps, step)))

    def map_batches(
        self, function: BatchFunction, schema: pa.Schema | StructType | str | None = None
    ) -> Flow:
        """Add a stateless step: a function from an Arrow batch to a batch, a table, several, or None.

        `schema` declares the columns that it returns. Without it, the function is called once with an
        empty batch to find out.
        """
        name = self.graph.next_map()
        output = _probed(function, self.schema, name) if schema is None else self.declared(schema)
        return self._on(self.graph.then(MapStep(name, function, self.schema, output)))

    def select(self, *columns: str, **named: Value) -> Flow:
        """Keep these columns, in this order; `new="old"` renames a column, other values compute one.

        A value is the name of a column, an Arrow expression such as `pc.field("a") * 2`, or a
        function from a batch to an array.
        """
        chosen: dict[str, Value] = {**{column: column for column in columns}, **named}
        for column in chosen.values():
            if isinstance(column, str):
                self.must_have(column, "to select")
        if not chosen:
            raise FlowError("select needs a column", hint="name the columns to keep")
        return self.map_batches(Select(tuple(chosen.items())))

    def with_columns(self, **named: Value) -> Flow:
        """Add columns, or replace those that have the same name. Values are as in `select`."""
        return self.select(**({name: name for name in self.schema.names} | named))

    def filter(self, condition: pc.Expression | Callable[[pa.RecordBatch], Any]) -> Flow:
        """Keep the rows for which a condition is true, such as `pc.field("n") > 3`.

        The condition is an Arrow expression, or a function from a batch to an array of booleans.
        """
        if not (isinstance(condition, pc.Expression) or callable(condition)):
            raise FlowError(
                f"filter cannot use {condition!r:.100} as a condition",
                hint='use an expression such as pc.field("n") > 3, or a function of a batch',
            )
        return self.map_batches(Where(condition))

    def ordered(self, by: Literal["partition", "arrival"] = "partition") -> Flow:
        """Emit the output in the order of arrival, for each partition of the source.

        The output of a row leaves in the row's place, on whichever host it was processed. So the output
        is the same with one host as with many, after slots have moved, and after retries. Rows that an
        epoch emits at its end (aggregates, changes, tops) take the place of their key's first record in
        the epoch. Rows that are due by time (closing windows, timers) come before the rows of their epoch,
        by time. Without `ordered`, order is kept for each key only.

        A key may occur in several partitions. In micro-batches a step then processes its rows of an epoch
        partition by partition, or with `by="arrival"` by the arrival times in the flow's arrival column. That
        is for flows whose first keyed step is a processor. Hosts hold an epoch's rows until all have come.
        """
        if by not in ("partition", "arrival"):
            raise FlowError(f"unknown order {by!r}", hint='use "partition" or "arrival"')
        if by == "arrival":
            must_have_arrivals(self.plan)
        return replace(self, keeps_order=True, by_arrival=by == "arrival")

    def on_one_host(self) -> Flow:
        """Run all steps in one host, on as many cores as Spark gives a task (`spark.task.cpus`).

        This is for flows of one source whose steps follow one another. Rows cross the network once, and
        the output is that of a single thread: in the order of arrival of each source partition, as with
        `ordered`. Such a flow cannot be scaled or moved, and its state has to fit into the host's memory.
        """
        must_be_a_chain(self.plan)
        return replace(self, one_host=True)

    def sla(
        self,
        latency: str | float | None = None,
        window: str | float = "1s",
        *,
        p99: str | float | None = None,
        step: str | None = None,
    ) -> Flow:
        """Set the SLA: an average latency of at most `latency` over any `window`, such as "1s".

        `p99` bounds the 99th percentile, instead of the average or beside it. `step` names a keyed step,
        whose latency alone is bounded: from a row's arrival until the step's host has applied it. Several
        calls add up: `.sla(latency="1s").sla(p99="3s").sla(latency="200ms", step="clicks")`. A bound replaces
        an earlier one of the same kind and step.
        """
        if latency is None and p99 is None:
            raise FlowError("sla() has no bound", hint='use sla(latency="1s"), or sla(p99="1s")')
        names = [keyed.id for keyed in self.plan.keyed]
        if step is not None and step not in names:
            raise FlowError(
                f"there is no keyed step {step!r} to bound",
                hint=f"call sla after the steps, and use one of: {', '.join(names) or 'none yet'}",
            )
        bounds = [
            LatencyBound(milliseconds(most), milliseconds(window), is_p99, step)
            for most, is_p99 in ((latency, False), (p99, True))
            if most is not None
        ]
        whole = self.bound
        for bound in bounds:
            whole = sla_of([bound]) if whole is None else whole.with_bound(bound)
        return replace(self, bound=whole)

    def elastic(
        self,
        policy: str | Policy = "switch",
        *,
        at_least: int = 1,
        at_most: int = 8,
        margin: float | None = None,
        alert: str | float | None = None,
        delta: str | float = "100ms",
        dry_run: bool = False,
        functions: WorkerTerms | None = None,
        functions_at_most: int | None = None,
        patience: str | float = "2 minutes",
        merge_cost: float = 1.0,
        warm_for: float = 5.0,
        host_price: HostPrice | None = None,
    ) -> Flow:
        """Turn autoscaling on: the number of hosts of each step follows the load, to keep the SLA.

        Without it a step keeps the hosts that it was started with. Durations are text with a unit, such as
        "100ms", or seconds.

        - `policy`: "switch", another policy by name such as "static(4)", or your own (see `Policy`).
        - `at_least`, `at_most`: hosts of a step.
        - `margin`: share of a host's service rate that is kept in reserve, from 0 to below 1. None: the
          policy's, or 0.2.
        - `alert`: latency above which a step counts as in trouble. None: half the SLA's latency.
        - `delta`: length of the intervals in which arrivals and completions are counted.
        - `dry_run`: only record what would be done.
        - `functions`: burst workers such as `LocalFunctions(at_most=20)`, which take up bursts within a
          second: any object with the interface of `penstock.offload.backends.backend.Backend`. None: hosts do
          all the work.
        - `functions_at_most`: burst workers of a step at a time. None: the limit of `functions`.
        - `patience`: duration after which a burst counts as lasting, and hosts are added for it.
        - `merge_cost`: a host's cost of merging the results of burst workers, in rows for each partial state.
        - `warm_for`: multiple of the stable load for which burst workers are kept warm; 0: none are.
        - `host_price`: price of a host, in US dollars per hour. None: `HostPrice()`.
        """
        if functions is not None:
            checked(functions)
        elastic = Elastic(
            policy,
            at_least=at_least,
            at_most=at_most,
            margin=margin,
            alert=alert,
            delta=delta,
            dry_run=dry_run,
            functions=functions,
            functions_at_most=functions_at_most,
            patience=patience,
            merge_cost=merge_cost,
            warm_for=warm_for,
            host_price=host_price or HostPrice(),
        )
        return replace(self, elasticity=elastic)

    def to(self, format: str, **options: Any) -> Flow:
        """Send the output to a Spark batch writer. See `penstock.to`."""
        return replace(self, sink=to(format, **options))

    def foreach_batch(self, function: Callable[[DataFrame, int], None]) -> Flow:
        """Send the output to a function of (DataFrame, epoch). See `penstock.foreach_batch`."""
        return replace(self, sink=foreach_batch(function))

    @property
    def plan(self) -> FlowPlan:
        """The compiled flow: its sources and steps, ready to run."""
        return replace(
            self.graph.plan,
            ordered=self.keeps_order,
            by_arrival=self.by_arrival,
            one_host=self.one_host,
        )

    @property
    def schema(self) -> pa.Schema:
        """The output columns of the flow so far."""
        return self.graph.schema

    @property
    def spark(self) -> SparkSession:
        """The Spark session: that of the first source's DataFrame, or the active one."""
        return self.graph.sources[0].spark

    def explain(self) -> None:
        """Print the steps: their names, what each reads and emits, and where it runs."""
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
        dashboard: bool | int | str = False,
        report: str | None = None,
        telemetry: bool = False,
    ) -> FlowQuery:
        """Start the flow and return at once.

        - `checkpoint`: folder that the flow continues from when it is started again. A static DataFrame
          needs none.
        - `hosts`: hosts of each keyed step, or a dict of step name -> hosts. `explain` shows the names.
        - `migration`: how state follows slots that move to another host (see `Migration`). It can be changed
          while the query runs.
        - `on_error`: "fail" stops the query on a row that cannot be processed; "dead_letter" puts such rows
          into the checkpoint's `dead_letters` folder.
        - `late_rows`: sink for rows behind a step's watermark; for several such steps a dict by name
          ("window-1", "join-2.left"). Without one they are only counted.
        - `trigger`: duration between epochs, or "available_now"; by default epochs follow one another.
          Micro-batches only.
        - `close`: the input ends when everything available has been read; goes with "available_now". Every
          window closes, and the checkpoint cannot be continued.
        - `name`: the query's name in Spark's UI.
        - `mode`: "micro_batch", or "live", in which rows leave within milliseconds. Live couriers are
          long-lived tasks that read the sources themselves (`kafka`, `rate`, `source`).
        - `checkpoint_every`: duration between checkpoints of a live flow.
        - `delivery`: with "at_once" a live flow emits rows before they are durable; after a failure, rows
          since the last checkpoint are emitted again with the same ids (see `RowIds`). With "transactional"
          rows become visible once, when they are durable: to Kafka consumers that read committed rows, or
          as files. In micro-batches it writes each epoch to Kafka in one transaction.
        - `couriers`: couriers of a live flow; by default one for four source partitions.
        - `dashboard`: True serves a web page that shows the query, on a free port of the loopback address
          (`query.dashboard_url`); or a port, or an address and a port such as "0.0.0.0:8080". It is served
          until `query.stop()`. Everybody who reaches it can read it; orders need the control token.
        - `report`: HTML file that gets a report of the run when the query ends, also if it fails.
        - `telemetry`: send metrics, and a trace of each epoch, to OpenTelemetry: by the providers that the
          application has configured, otherwise by OTLP over HTTP as the variables OTEL_* say.
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
            report=report,
            telemetry=telemetry,
        )
        if report is not None:
            writable(report)
        if telemetry:
            imported("opentelemetry.exporter.otlp.proto.http", "otel", "telemetry=True")
        if mode not in _STARTS:
            raise FlowError(f"unknown mode {mode!r}", hint='use "micro_batch" or "live"')
        if (listens := listening(dashboard)) is None:
            return _STARTS[mode](whole, options)
        try:
            return _STARTS[mode](whole, replace(options, dashboard=listens))
        except BaseException:
            listens.close()
            raise

    def declared(self, schema: pa.Schema | StructType | str) -> pa.Schema:
        """The Arrow schema for a schema as users write it: Arrow, Spark, or DDL text."""
        if self.graph.sources[0].live is None:
            return declared(schema, self.spark)
        return schema_of(schema)

    def with_keyed(self, kind: str, slots: int, plan: StepPlan, name: str | None = None) -> Flow:
        """The flow with one more keyed step, under the user's name or an automatic one."""
        id = self.graph.next_keyed(kind, name)
        return self._on(self.graph.then(KeyedStep(id, slots, plan, kind=kind)))

    def time_column(self, name: str | None) -> str:
        """The timestamp column of a window or a join: the named one, or the flow's event time."""
        if name is None:
            if self.time is None:
                raise FlowError(
                    "the flow has no event time here",
                    hint='name its column: ps.flow(df, event_time="ts"), or window(..., on="ts")',
                )
            return self.time
        self.must_have(name, "with times")
        return name

    def must_have(self, column: str, purpose: str) -> None:
        """Raise if the flow has no such column."""
        if column not in self.schema.names:
            raise FlowError(
                f"there is no column {column!r} {purpose}",
                hint=f"use one of {', '.join(self.schema.names)}",
            )

    def _on(self, graph: Graph) -> Flow:
        """This flow with another graph. It keeps its event time if the column is still there."""
        schema, time = graph.schema, self.time
        if time is not None:
            place = schema.get_field_index(time)
            if place < 0 or not pa.types.is_timestamp(schema.field(place).type):
                time = None
        return replace(self, graph=graph, time=time)


def _check_slots(slots: int) -> None:
    if slots < 1 or slots > 32_768:
        raise FlowError(f"slots is {slots}", hint="use 1 to 32768; 64 suits most flows")


def _probed(function: BatchFunction, schema: pa.Schema, step: str) -> pa.Schema:
    """The columns that a function returns, found by calling it with an empty batch."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    try:
        result = function(empty)
    except FlowError:  # of `select` or `filter`, with its own cure
        raise
    except Exception as failed:
        raise FlowError(
            f"step {step}: the columns that the function returns are not known, since it fails on an "
            f"empty batch: {type(failed).__name__}: {failed}",
            hint="declare it: map_batches(fn, schema=...)",
        ) from failed
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise FlowError(
            f"step {step}: the columns that the function returns are not known, since it returns "
            f"{type(result).__name__} for an empty batch",
            hint="declare it: map_batches(fn, schema=...)",
        )
    return result.schema
