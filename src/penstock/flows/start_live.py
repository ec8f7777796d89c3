"""Starting a flow in live mode. Whatever live mode cannot do is refused here, before anything runs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.control.crew_size import CrewLimits
from penstock.errors import FlowError, SettingError
from penstock.flows.claim import claim
from penstock.flows.start import (
    StartOptions,
    check_delivery,
    elastic_counts,
    for_one_host,
    host_counts,
    most_hosts,
    sink_of,
    with_errors,
)
from penstock.live.sinks.transactional import TransactionalSink
from penstock.live.sources.source import LiveSource
from penstock.model import milliseconds
from penstock.plan.migration import Migration
from penstock.spark.checkpoint import locate
from penstock.spark.live_parts import LiveParts, LiveStart
from penstock.spark.private import keep_jobs_on_interrupt
from penstock.spark.query import FlowQuery
from penstock.spark.session import EXECUTORS_S, check_cores, check_session, task_cores, task_slots
from penstock.spark.sinks import late_sinks, live_sink
from penstock.spark.switching import to_live
from penstock.state.store.store import Store

if TYPE_CHECKING:
    from penstock.flows.flow import Flow

_MICRO = 'start it without mode="live"'
_PARTITIONS_EACH = 4
"""Source partitions per courier by default. A courier reads some ten thousand rows per second from each, and
takes a task slot."""


def start_live(flow: Flow, options: StartOptions) -> FlowQuery:
    """Check everything, then launch the live query."""
    sink, plan = sink_of(flow), with_errors(flow.plan, options.on_error)
    if plan.by_arrival:
        raise FlowError(
            'a live flow cannot be ordered(by="arrival"): it processes rows as they come',
            hint=_MICRO,
        )
    checkpoint, settings, close = options.checkpoint, options.settings, options.close
    late_rows = options.late_rows
    sources = _sources(flow)
    _refuse(options.trigger, options.delivery)
    bounded = all(getattr(source, "rows", None) is not None for source in sources)
    if close and not bounded:
        raise SettingError(
            "close=True needs sources that end, but one of this flow never ends",
            hint="leave close out, or give ps.rate(...) a number of rows",
        )
    to = live_sink(sink)
    to.check(plan.output)
    every_ms = milliseconds(options.checkpoint_every)
    if every_ms <= 0:
        raise SettingError(
            f"checkpoint_every is {options.checkpoint_every!r}",
            hint='use a duration above 0, such as "1s"',
        )
    spark, counts = flow.spark, host_counts(plan, options.hosts)
    migration = Migration.parse(options.migration)
    if plan.one_host:
        migration = for_one_host(flow, plan, counts)
    most = most_hosts(flow, plan, counts)
    tasks = 1 if plan.one_host else sum(most.values())
    count = _courier_count(sources, options.couriers)
    check_session(spark)
    check_cores(spark, tasks, count + bool(late_rows), EXECUTORS_S)
    crew = None
    if flow.elasticity is not None and options.couriers is None:
        crew = _crew_limits(task_slots(spark), tasks + bool(late_rows))
    if settings.host_cores is None:
        settings = replace(settings, host_cores=task_cores(spark))
    temporary = ""
    if checkpoint is None:
        if not bounded:
            raise SettingError(
                "a live flow needs a checkpoint folder",
                hint='use start(checkpoint="some/folder"); the next start continues from there',
            )
        temporary = tempfile.mkdtemp(prefix="penstock-")
        checkpoint = f"file://{temporary}"
    folder = locate(spark, checkpoint)
    store = Store(folder.store)
    flow_id = claim(
        store, plan, "live", lambda _: to_live(folder, store, sources, bool(plan.keyed))
    )
    if options.delivery == "transactional":
        to = TransactionalSink(to, store.place, flow_id)
        to.check(plan.output)
    if flow.elasticity is not None:
        newest = max(store.epochs(), default=None)
        counts = elastic_counts(flow.elasticity, counts, most, store, newest)
    keep_jobs_on_interrupt()
    settled = LiveStart(
        flow=plan,
        spark=spark,
        sink=sink,
        store=store.place,
        flow_id=flow_id,
        hosts=counts,
        migration=migration,
        settings=settings,
        sla=flow.bound,
        elastic=flow.elasticity,
        close=close,
        late_rows=late_sinks(plan, late_rows, sink),
        name=options.name,
        dashboard=options.dashboard,
        report=options.report,
        telemetry=options.telemetry,
        temporary=temporary,
        sources=sources,
        outlet=to,
        couriers=count,
        crew=crew,
        checkpoint_ms=every_ms,
    )
    return FlowQuery(LiveParts(settled)).launch()


def _sources(flow: Flow) -> tuple[LiveSource, ...]:
    sources = tuple(source.live for source in flow.graph.sources if source.live is not None)
    if len(sources) < len(flow.graph.sources):
        raise FlowError(
            "a live flow cannot begin with a DataFrame, which only Spark can read",
            hint=f"begin it with ps.kafka(...), ps.rate(...) or ps.source(...), or {_MICRO}",
        )
    return sources


def _refuse(trigger: str | None, delivery: str) -> None:
    """Raise if options are set that a live flow cannot have."""
    if trigger is not None:
        raise SettingError(
            "a live flow has no trigger: rows leave as they arrive",
            hint='leave trigger out; checkpoint_every="1s" sets how often state is made durable',
        )
    check_delivery(delivery)


def _courier_count(sources: tuple[LiveSource, ...], wanted: int | None) -> int:
    partitions = sum(len(source.partitions()) for source in sources)
    if wanted is None:
        return -(-partitions // _PARTITIONS_EACH)
    if not 1 <= wanted <= partitions:
        raise SettingError(
            f"couriers is {wanted}, but the sources have {partitions} partitions",
            hint=f"use 1 to {partitions}: each courier reads one partition or more",
        )
    return wanted


def _crew_limits(slots: int | None, taken: int) -> CrewLimits:
    """Limits on couriers: the task slots that hosts and sinks leave free; None slots: no limit is known."""
    return CrewLimits(at_most=1_000 if slots is None else max(1, slots - taken))
