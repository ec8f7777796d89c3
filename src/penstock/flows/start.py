"""From a flow to a running query: everything that can be refused is refused here, before it runs."""

from __future__ import annotations

import base64
import secrets
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from penstock import codec
from penstock.control.elastic import Elastic
from penstock.control.epoch_bound import FIRST, EpochBound, Pace
from penstock.errors import CheckpointError, FlowError, PenstockError, SettingError, StoreError
from penstock.model import milliseconds
from penstock.operators.operator import OnError
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.spark.checkpoint import locate, version_to_resume
from penstock.spark.delivery import check_sink, transactional
from penstock.spark.epoch_stream import MicroStart
from penstock.spark.inputs import one_stream, ticking, with_clock
from penstock.spark.parts import FlowParts
from penstock.spark.private import keep_jobs_on_interrupt
from penstock.spark.query import FlowQuery
from penstock.spark.s3a import must_have_s3a
from penstock.spark.session import EXECUTORS_S, check_cores, task_cores
from penstock.spark.sinks import Sink, late_sinks
from penstock.spark.switching import must_be_live, to_micro
from penstock.state.store.manifest import check_flow
from penstock.state.store.store import FORMAT, READABLE, Store
from penstock.state.table.table import HASH

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.flows.flow import Flow

Mode = Literal["micro_batch", "live"]


@dataclass(frozen=True)
class StartOptions:
    """How a flow is to run. See `Flow.start`."""

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


def start(flow: Flow, options: StartOptions) -> FlowQuery:
    """Check everything, then launch the query in micro-batches."""
    defaults = StartOptions()
    for name in ("checkpoint_every", "couriers"):
        if getattr(options, name) != getattr(defaults, name):
            raise SettingError(
                f"{name} is for live flows",
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
            "close=True ends the input when all that is there now has been read",
            hint='give trigger="available_now" with it',
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
                hint='give start(checkpoint="some/folder"); it continues from there next time',
            )
        temporary = tempfile.mkdtemp(prefix="penstock-")
        checkpoint = f"file://{temporary}"
    folder = locate(source.sparkSession, checkpoint)
    if folder.spark.startswith("s3a:") and source.isStreaming:
        must_have_s3a(source.sparkSession)
    store = Store(folder.store)

    def switched(found: dict[str, Any]) -> dict[str, Any]:
        live = must_be_live([source.live for source in flow.graph.sources], store.uri)
        return to_micro(folder, store, live, sink, found["id"])

    flow_id = claim(store, plan, "micro_batch", switched, bounded=not source.isStreaming)
    replays = source.isStreaming and not store.closing
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
        bound=bound,
        bounded=bounded,
        close=close,
        late_rows=late_sinks(plan, options.late_rows, sink),
        name=options.name,
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
    """All sources as one, of which an epoch takes at most `bound` rows where the SLA says that."""
    sources = flow.graph.sources
    share = bound and max(1, bound // sum(source.bounded_by_sla for source in sources))
    found = one_stream([source.frame(spark, share) for source in sources], plan.tagged)
    return ticking(found) if clock else found


def _bound(flow: Flow, store: Store) -> EpochBound | None:
    """How many rows an epoch may take, by the SLA and by what epochs took before; None: nothing says that."""
    if flow.bound is None or not any(source.bounded_by_sla for source in flow.graph.sources):
        return None
    try:
        found = store.read_pace()
        pace = FIRST if found is None else codec.from_plain(found, Pace)
    except PenstockError:
        pace = FIRST  # it is good to know, but no reason not to start
    return EpochBound(flow.bound.latency_ms, pace)


def for_one_host(flow: Flow, plan: FlowPlan, counts: dict[str, int]) -> Migration:
    """Give each step its one host; returns how its state comes when it starts: all at once."""
    must_be_a_chain(plan)
    if flow.elasticity is not None:
        raise FlowError(
            "a flow on one host cannot be elastic", hint="leave out elastic() or on_one_host()"
        )
    counts.update(dict.fromkeys(counts, 1))
    return Migration("pause")


def must_be_a_chain(plan: FlowPlan) -> None:
    """Refuse to run a flow on one host whose steps do not follow one another."""
    if not plan.linear:
        raise FlowError(
            "a flow with a join cannot run on one host",
            hint="on_one_host is for a chain of steps on one source",
        )


def check_delivery(delivery: str) -> None:
    """Refuse a delivery that there is not."""
    if delivery not in ("at_once", "transactional"):
        raise SettingError(
            f"delivery={delivery!r} is unknown", hint='use "at_once" or "transactional"'
        )


def sink_of(flow: Flow) -> Sink:
    """The sink that a flow has; refuses one without."""
    if flow.sink is None:
        raise FlowError(
            "the flow has no sink", hint='give start(sink=ps.to("parquet", path=...)) or the like'
        )
    return flow.sink


def with_errors(plan: FlowPlan, on_error: OnError) -> FlowPlan:
    """The plan, with what becomes of rows that cannot be processed."""
    if on_error not in ("fail", "dead_letter"):
        raise FlowError(f"on_error={on_error!r} is unknown", hint='use "fail" or "dead_letter"')
    steps = tuple(
        replace(step, on_error=on_error) if isinstance(step, KeyedStep) else step
        for step in plan.steps
    )
    return replace(plan, steps=steps, on_error=on_error)


def host_counts(plan: FlowPlan, hosts: int | dict[str, int]) -> dict[str, int]:
    """Step -> how many hosts it is to have."""
    counts = {}
    for step in plan.keyed:
        wanted = hosts.get(step.id, 1) if isinstance(hosts, dict) else hosts
        if wanted < 1:
            raise SettingError(f"hosts={wanted} for step {step.id}", hint="use at least 1")
        counts[step.id] = min(wanted, step.slots)
    if isinstance(hosts, dict) and (unknown := set(hosts) - set(counts)):
        raise SettingError(
            f"hosts names unknown steps {sorted(unknown)}",
            hint=f"the keyed steps are {', '.join(counts)} (see flow.explain())",
        )
    return counts


def most_hosts(flow: Flow, plan: FlowPlan, counts: dict[str, int]) -> dict[str, int]:
    """Step -> how many hosts it may come to have."""
    if flow.elasticity is None:
        return counts
    if flow.bound is None:
        raise FlowError("an elastic flow needs an SLA", hint='add .sla(latency="1s")')
    return {step.id: min(step.slots, flow.elasticity.at_most) for step in plan.keyed}


def elastic_counts(
    elastic: Elastic,
    counts: dict[str, int],
    most: dict[str, int],
    store: Store,
    version: int | None,
) -> dict[str, int]:
    """Step -> how many hosts it begins with: as many as it had, within its limits."""
    before = counts | _hosts_before(store, version)
    return {step: min(max(n, elastic.at_least), most[step]) for step, n in before.items()}


def _hosts_before(store: Store, version: int | None) -> dict[str, int]:
    """How many hosts each step had at a version: an elastic flow had reasons for that."""
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


def claim(
    store: Store,
    plan: FlowPlan,
    mode: Mode,
    switched: Callable[[dict[str, Any]], dict[str, Any]],
    bounded: bool = False,
) -> str:
    """Make the checkpoint this flow's own, or check that it already is. Returns the flow's id.

    If it was last run in the other mode, `switched` is called with what `flow.json` says, and gives what that
    has to say from now on.
    """
    facts = {"format": FORMAT, "mode": mode, "steps": [_step_facts(step) for step in plan.keyed]}
    store.files.must_answer()
    try:
        found = store.read_flow()
        if found is not None:
            _check(store, found, facts, bounded)
        store.claim(int(time.time() * 1000))
        found = store.read_flow()  # by whoever may have started it at the same time
        if found is None:
            found = facts | {"id": secrets.token_hex(8)}
            store.write_flow(found)
        elif found.get("mode", "micro_batch") != mode:
            found = found | switched(found) | {"mode": mode}
            store.write_flow(found)
    except (OSError, StoreError) as refused:
        raise SettingError(
            f"cannot use the checkpoint folder {store.uri!r}: {refused}",
            hint="choose a folder that this user may write to, and check the free space",
        ) from refused
    _check(store, found, facts, bounded)
    return str(found["id"])


def _check(store: Store, found: dict[str, Any], facts: dict[str, Any], bounded: bool) -> None:
    """Refuse a checkpoint that is not this flow's, or not one that it can go on from."""
    if bounded and store.epochs():
        raise CheckpointError(
            f"{store.uri} already holds the state of a run",
            hint="a static DataFrame always starts anew: choose a new folder, or give none",
        )
    if found.get("format") not in READABLE:
        raise CheckpointError(
            f"{store.uri} has state format {found.get('format')}, this Penstock writes {FORMAT}",
            hint="open it with the release that wrote it, or start from a new checkpoint folder",
        )
    check_flow(found, f"flow.json of {store.uri}")
    if found.get("closed"):
        raise CheckpointError(
            f"{store.uri} is of a flow whose input has ended: all its windows are closed",
            hint="start it from a new checkpoint folder",
        )
    _compare(store.uri, codec.to_plain(found["steps"]), codec.to_plain(facts["steps"]))


def _compare(uri: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    if [step["id"] for step in old] != [step["id"] for step in new]:
        raise CheckpointError(
            f"{uri} was written by a flow with the keyed steps "
            f"{[s['id'] for s in old]}, this one has {[s['id'] for s in new]}",
            hint="start the changed flow from a new checkpoint folder",
        )
    names = {"slots": "slot count", "keys": "key columns", "state": "state schema"}
    for before, now in zip(old, new, strict=True):
        for fact, words in names.items():
            if before[fact] != now[fact]:
                raise CheckpointError(
                    f"step {now['id']}: the {words} of the checkpoint is {before[fact]}, the "
                    f"flow's is {now[fact]}",
                    hint="change it back, or start the changed flow from a new checkpoint folder",
                )


def _step_facts(step: KeyedStep) -> dict[str, Any]:
    schema: pa.Schema = step.operator().table.schema
    null = " or null" if step.codec.nulls else ""
    return {
        "id": step.id,
        "slots": step.slots,
        "keys": [[field.name, f"{field.type}{null}"] for field in step.codec.schema],
        # The types once more, for whoever reads the state without the flow.
        "key_schema": base64.b64encode(step.codec.schema.serialize()).decode(),
        "state": [[f.name, str(f.type)] for f in schema if f.name != HASH and "~" not in f.name],
    }
