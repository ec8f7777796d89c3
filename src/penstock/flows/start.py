"""Starting a flow in micro-batches. Whatever can be refused is refused here, before anything runs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any

from penstock import codec
from penstock.control.elastic import Elastic
from penstock.control.epoch_bound import FIRST, EpochBound, Pace
from penstock.errors import FlowError, PenstockError, SettingError
from penstock.flows.claim import claim
from penstock.model import milliseconds
from penstock.operators.operator import OnError
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.spark.checkpoint import catch_up, locate, version_to_resume
from penstock.spark.delivery import check_sink, transactional
from penstock.spark.epoch_stream import MicroStart
from penstock.spark.inputs import one_stream, ticking, with_clock
from penstock.spark.parts import FlowParts
from penstock.spark.plain import is_plain
from penstock.spark.private import keep_jobs_on_interrupt
from penstock.spark.query import FlowQuery
from penstock.spark.s3a import must_have_s3a
from penstock.spark.session import EXECUTORS_S, check_cores, task_cores
from penstock.spark.sinks import Sink, late_sinks
from penstock.spark.switching import must_be_live, to_micro
from penstock.state.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.flows.flow import Flow


@dataclass(frozen=True)
class StartOptions:
    """Arguments of `Flow.start`, which documents them."""

    checkpoint: str | None = None
    hosts: int | dict[str, int] = 2
    migration: str | Migration = "lazy"
    on_error: OnError = "fail"
    late_rows: Sink | dict[str, Sink] | None = None
    trigger: str | None = None
    close: bool = False
    name: str | None = None
    settings: Settings = field(default_factory=Settings)
    checkpoint_every: str | float = "1s"
    delivery: str = "at_once"
    couriers: int | None = None
    dashboard: socket | None = None
    """Socket on which the dashboard listens; None if there is none."""
    report: str | None = None
    telemetry: bool = False


def start(flow: Flow, options: StartOptions) -> FlowQuery:
    """Check everything, then launch the query in micro-batches."""
    defaults = StartOptions()
    for name in ("checkpoint_every", "couriers"):
        if getattr(options, name) != getattr(defaults, name):
            raise SettingError(
                f"{name} is for live flows only",
                hint='leave it out, or start the flow with mode="live"',
            )
    settings, trigger, close = options.settings, options.trigger, options.close
    checkpoint = options.checkpoint
    check_delivery(options.delivery)
    sink = sink_of(flow)
    if options.delivery == "transactional":
        sink = transactional(sink)
    chosen = Migration.parse(options.migration)
    plan = with_errors(flow.plan, options.on_error)
    source = _source(flow, plan, flow.spark)
    if close and (source.isStreaming and trigger != "available_now"):
        raise SettingError(
            "close=True needs an input that ends, but this flow reads on",
            hint='add trigger="available_now", or leave close out',
        )
    check_sink(sink, source.sparkSession)
    counts = host_counts(plan, options.hosts)
    if plan.one_host:
        chosen = for_one_host(flow, plan, counts)
    most, elastic = most_hosts(flow, plan, counts), flow.elasticity
    tasks = 1 if plan.one_host else sum(most.values())
    check_cores(source.sparkSession, tasks, patience_s=EXECUTORS_S)
    if settings.host_cores is None:
        settings = replace(settings, host_cores=task_cores(source.sparkSession))
    temporary = ""
    if checkpoint is None:
        if source.isStreaming:
            raise SettingError(
                "a streaming flow needs a checkpoint folder",
                hint='use start(checkpoint="some/folder"); the next start continues from there',
            )
        temporary = tempfile.mkdtemp(prefix="penstock-")
        checkpoint = f"file://{temporary}"
    folder = locate(source.sparkSession, checkpoint)
    if folder.spark.startswith("s3a:") and source.isStreaming:
        must_have_s3a(source.sparkSession)
    store = Store(folder.store)

    def switched(facts: dict[str, Any]) -> dict[str, Any]:
        live = must_be_live([source.live for source in flow.graph.sources], store.uri)
        return to_micro(folder, store, live, sink, facts["id"])

    flow_id = claim(store, plan, "micro_batch", switched, bounded=not source.isStreaming)
    plain = is_plain(plan, source.isStreaming, elastic, settings)
    if not plan.keyed and not plain:
        catch_up(folder, store)
    replays = source.isStreaming and not store.closing and not plain
    version = version_to_resume(folder, store) if replays else None
    if elastic is not None:
        counts = elastic_counts(elastic, counts, most, store, version)
    keep_jobs_on_interrupt()
    timers = any(step.has_timers for step in plan.keyed)
    clock = False
    if source.isStreaming and timers:
        source, clock = with_clock(source, folder, running=trigger != "available_now")
    bound, bounded = _bound(flow, store), None
    if bound is not None:
        source = _source(flow, plan, flow.spark, bound.rows, clock)
        if trigger != "available_now":
            bounded = partial(_source, flow, plan, flow.spark, clock=clock)
    settled = MicroStart(
        flow=plan,
        spark=source.sparkSession,
        source=source,
        clock=clock,
        sink=sink,
        store=store.place,
        checkpoint=folder.spark,
        flow_id=flow_id,
        hosts=counts,
        migration=chosen,
        settings=settings,
        sla=flow.bound,
        elastic=elastic,
        trigger=_trigger(trigger),
        plain=plain,
        bound=bound,
        bounded=bounded,
        close=close,
        late_rows=late_sinks(plan, options.late_rows, sink),
        name=options.name,
        dashboard=options.dashboard,
        report=options.report,
        telemetry=options.telemetry,
        temporary=temporary,
    )
    return FlowQuery(FlowParts(settled)).launch()


def _source(
    flow: Flow,
    plan: FlowPlan,
    spark: SparkSession,
    bound: int | None = None,
    clock: bool = False,
) -> DataFrame:
    """All sources as one DataFrame. An epoch reads at most `bound` rows of those that the SLA bounds."""
    sources = flow.graph.sources
    share = bound and max(1, bound // sum(source.bounded_by_sla for source in sources))
    stream = one_stream([source.frame(spark, share) for source in sources], plan.tagged)
    return ticking(stream) if clock else stream


def _bound(flow: Flow, store: Store) -> EpochBound | None:
    """The limit on the rows of an epoch, by the SLA and the pace of earlier epochs; None: there is none."""
    if flow.bound is None or not any(source.bounded_by_sla for source in flow.graph.sources):
        return None
    try:
        facts = store.read_pace()
        pace = FIRST if facts is None else codec.from_plain(facts, Pace)
    except PenstockError:
        pace = FIRST  # a flow can start without it
    return EpochBound(flow.bound.latency_ms, pace)


def for_one_host(flow: Flow, plan: FlowPlan, counts: dict[str, int]) -> Migration:
    """Set the hosts of each step to 1 in `counts`. Returns the migration, which brings state all at once."""
    must_be_a_chain(plan)
    if plan.by_arrival:
        raise FlowError(
            'a flow on one host cannot be ordered(by="arrival"): it takes one partition after the other',
            hint="use ordered(), or leave on_one_host() out",
        )
    if flow.elasticity is not None:
        raise FlowError(
            "a flow on one host cannot be elastic", hint="remove elastic() or on_one_host()"
        )
    counts.update(dict.fromkeys(counts, 1))
    return Migration("pause")


def must_be_a_chain(plan: FlowPlan) -> None:
    """Raise if the steps of a flow for one host do not follow one another."""
    if not plan.linear:
        raise FlowError(
            "a flow with a join cannot run on one host",
            hint="remove on_one_host(): it needs one source, and steps that follow one another",
        )


def must_have_arrivals(plan: FlowPlan) -> None:
    """Raise if rows cannot be processed by arrival time: no step whose result depends on their order, or no
    arrival times there."""
    first = plan.keyed[0] if plan.keyed else None
    if first is None or first.kind != "process" or not plan.linear:
        raise FlowError(
            'ordered(by="arrival") is for a flow of one source whose first keyed step is a processor',
            hint="use ordered(): the results of other steps do not depend on the order of partitions",
        )
    arrival, read = plan.sources[0].arrival, plan.schema_of(plan.reads(plan.steps.index(first))[0])
    if arrival is None or arrival not in read.names:
        raise FlowError(
            f"the rows of step {first.id} have no arrival times",
            hint='name their column, ps.flow(df, arrival="ts"), and keep it until that step',
        )


def check_delivery(delivery: str) -> None:
    """Raise if the delivery is unknown."""
    if delivery not in ("at_once", "transactional"):
        raise SettingError(
            f"unknown delivery {delivery!r}", hint='use "at_once" or "transactional"'
        )


def sink_of(flow: Flow) -> Sink:
    """The flow's sink; raises if it has none."""
    if flow.sink is None:
        raise FlowError(
            "the flow has no sink", hint='use start(ps.to("parquet", path="out")) or another sink'
        )
    return flow.sink


def with_errors(plan: FlowPlan, on_error: OnError) -> FlowPlan:
    """The plan, in which each step treats rows that cannot be processed in this way."""
    if on_error not in ("fail", "dead_letter"):
        raise FlowError(f"unknown on_error {on_error!r}", hint='use "fail" or "dead_letter"')
    steps = tuple(
        replace(step, on_error=on_error) if isinstance(step, KeyedStep) else step
        for step in plan.steps
    )
    return replace(plan, steps=steps, on_error=on_error)


def host_counts(plan: FlowPlan, hosts: int | dict[str, int]) -> dict[str, int]:
    """Step -> number of hosts to start with."""
    counts = {}
    for step in plan.keyed:
        wanted = hosts.get(step.id, 1) if isinstance(hosts, dict) else hosts
        if not isinstance(wanted, int) or wanted < 1:
            raise SettingError(f"step {step.id} has {wanted!r} hosts", hint="use 1 or more")
        counts[step.id] = min(wanted, step.slots)
    if isinstance(hosts, dict) and (unknown := set(hosts) - set(counts)):
        raise SettingError(
            f"hosts names steps that the flow does not have: {', '.join(sorted(unknown))}",
            hint=f"use {', '.join(counts)} (see flow.explain())",
        )
    return counts


def most_hosts(flow: Flow, plan: FlowPlan, counts: dict[str, int]) -> dict[str, int]:
    """Step -> maximum number of hosts."""
    if flow.elasticity is None:
        return counts
    if flow.bound is None:
        raise FlowError("elastic() needs an SLA", hint='add .sla(latency="1s")')
    return {step.id: min(step.slots, flow.elasticity.at_most) for step in plan.keyed}


def elastic_counts(
    elastic: Elastic,
    counts: dict[str, int],
    most: dict[str, int],
    store: Store,
    version: int | None,
) -> dict[str, int]:
    """Step -> number of hosts to start with: as many as before, within its limits."""
    before = counts | _hosts_before(store, version)
    return {step: min(max(n, elastic.at_least), most[step]) for step, n in before.items()}


def _hosts_before(store: Store, version: int | None) -> dict[str, int]:
    """Step -> number of hosts at a version, which autoscaling had chosen."""
    if version is None or version < 0:
        return {}
    routes = store.chain(version).manifest.routes
    return {step: len(codec.from_plain(facts, RouteTable).hosts) for step, facts in routes.items()}


def _trigger(trigger: str | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    if trigger == "available_now":
        return {"availableNow": True}
    return {"processingTime": f"{milliseconds(trigger)} milliseconds"}
