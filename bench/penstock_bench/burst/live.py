"""Live runs of `penstock bench burst`: real Spark, hosts and functions, latency at the sink.

Couriers send every row as a record, so that it is hosts that have the work, and functions when they
take it. What a run put out is held against what a database makes of the same events.

    no_scaling           two hosts
    new_hosts            the switch asks for hosts, which come as soon as they do here
    new_hosts_30s        they come 30 s after that, as on a machine that has to be started
    hosts_beforehand     all hosts are up, two have the slots; in the burst slots go to all of them
    functions_migrating  the same with functions in place of the other hosts: they are paid for while
                         they have slots, and a slot's state is there before its rows are taken
    penstock             functions take what is beyond the hosts' target, and the switch has its say
    overprovisioned      all hosts have slots all the time

q1 has no hosts: couriers, whose number is Spark's, are as slow as hosts are elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.money import FunctionPrice, HostPrice
from penstock.errors import PenstockError
from penstock.settings import Settings
from penstock.spark.sinks import Collect
from penstock.testing import Delay, Fault, Pace, Uncombined
from penstock_bench import sides
from penstock_bench.burst.outcome import (
    ArrivedRows,
    BurstOutcome,
    LiveRuns,
    by_couriers,
    outcome_of,
)
from penstock_bench.burst.scenarios import CORES, SLOTS, WARM_UP, LiveBurst
from penstock_bench.burst.sides import per_second
from penstock_bench.burst.standby import StandBy, Taken
from penstock_bench.live.latency import Began
from penstock_bench.live.query import GRACE_S, began, running, until
from penstock_bench.report import Show
from penstock_bench.workloads.nexmark.live import BurstLoad, burst_flow, burst_form, compared

_START_MS = 30_000
"""Milliseconds until a new machine is there."""
_STANDING_BY = ("hosts_beforehand", "functions_migrating")


class WrongRows(PenstockError):
    """A run put out something else than it should have: then its figures are worth nothing."""


def live_runs(scenarios: Sequence[LiveBurst], show: Show) -> LiveRuns:
    """Run these one after the other in one session. One that fails does not keep others from it."""
    show("starting Spark")
    found: list[BurstOutcome] = []
    failed: dict[str, str] = {}
    wrong: dict[str, str] = {}
    with sides.bench_session(CORES) as spark:
        # A JVM gets faster for minutes: the first run is for it, and does not count.
        for scenario in (WARM_UP, *scenarios):
            try:
                outcome = live_run(spark, scenario, show)
            except Exception as trouble:
                failed[scenario.name] = str(trouble).split("\n")[0]
                if isinstance(trouble, WrongRows):
                    wrong[scenario.name] = failed[scenario.name]
                show(f"live {scenario.name}: failed: {failed[scenario.name]}")
            else:
                found += [outcome] if scenario is not WARM_UP else []
    return LiveRuns(tuple(found), failed, wrong)


def live_run(spark: SparkSession, scenario: LiveBurst, show: Show) -> BurstOutcome:
    """Run one, in a session of `bench_session`."""
    sink, started_s = ps.collect(), time.monotonic()
    flow = _flow(spark, scenario)
    start = partial(_started, flow, scenario, sink)
    busy = burst_form(scenario.query).busy
    taken: Taken | None = None
    with sides.folder(spark) as folder, running(start, folder) as query:
        stand_by = StandBy(query, busy, scenario) if scenario.side in _STANDING_BY else None
        if stand_by is not None:
            stand_by.stand_by()
        load = began(query)
        if stand_by is not None:
            stand_by.begin(load.start_ms + 1000 * scenario.at_s)
        _await_rows(query, scenario, len(flow.plan.keyed))
        if stand_by is not None:
            taken = stand_by.end(time.time() * 1000)
        epochs, journal = query.progress, query.journal
    right = _right_rows(scenario, load, sink)
    rows = ArrivedRows.of(scenario.shape, load.start_ms, epochs, scenario.seconds)
    if scenario.stateless:
        epochs = by_couriers(epochs, _partitions(scenario), scenario.host_rate)
    outcome = outcome_of(scenario, busy, rows, epochs, journal, load.start_ms)
    if taken is not None and scenario.side == "functions_migrating":
        hosts = scenario.hosts + scenario.other_hosts * (len(flow.plan.keyed) - 1)
        outcome = replace(outcome, money=_lent(scenario, hosts, taken))
    took_s = time.monotonic() - started_s
    show(f"{_line(outcome)}; {right:,} rows are right; took {took_s:.0f} s")
    return outcome


# -- the query


def _flow(spark: SparkSession, scenario: LiveBurst) -> ps.Flow:
    flow = burst_flow(
        *(scenario.query, spark, scenario.shape, SLOTS), partitions=_partitions(scenario)
    ).sla(scenario.latency_s)
    if scenario.side in ("no_scaling", "overprovisioned"):
        return flow
    settings: dict[str, Any] = {"at_most": scenario.most_hosts}
    if scenario.side == "penstock":
        settings["functions"] = ps.LocalFunctions(at_most=scenario.functions)
    # who stands by is told of the burst, and nothing else is done about it
    return flow.elastic(dry_run=scenario.side in _STANDING_BY, **settings)


def _partitions(scenario: LiveBurst) -> int:
    """Partitions of the source: as many couriers, which stand for hosts where they do the work."""
    more = scenario.stateless and scenario.side == "overprovisioned"
    return scenario.most_hosts if more else scenario.hosts


def _started(flow: ps.Flow, scenario: LiveBurst, sink: Collect, checkpoint: str) -> ps.FlowQuery:
    busy = burst_form(scenario.query).busy
    all_up = scenario.side in ("overprovisioned", *_STANDING_BY)
    hosts = {step.id: scenario.other_hosts for step in flow.plan.keyed}
    if not scenario.stateless:
        hosts[busy] = scenario.most_hosts if all_up else scenario.hosts
    settings = Settings(faults=_slow_and_late(scenario, busy, hosts), progress_kept=100_000)
    migration = "all_at_once" if scenario.side == "functions_migrating" else "lazy"
    return flow.start(
        sink, checkpoint=checkpoint, hosts=hosts, migration=migration, settings=settings
    )


def _slow_and_late(scenario: LiveBurst, busy: str, hosts: dict[str, int]) -> tuple[Fault, ...]:
    """What makes this machine stand for many: all but the hosts that a flow starts with come late."""
    pace = Pace(scenario.host_rate)
    # what comes behind the busy step gets all rows of a window at once, and cannot be helped
    faults = [
        Fault("courier.sender", Uncombined(), hits=()),
        Fault("courier.work" if scenario.stateless else "host.work", pace, {"step": busy}, ()),
        Fault("burst.work", pace, hits=()),
    ]
    if scenario.side in ("new_hosts_30s", "penstock"):
        faults += [
            Fault("driver.host", Delay(_START_MS), {"step": step}, range(first + 1, 1_000))
            for step, first in hosts.items()
        ]
    return tuple(faults)


def _await_rows(query: ps.FlowQuery, scenario: LiveBurst, steps: int) -> None:
    """Wait until all that arrived in the scenario's time is taken in, and the windows that closed by it are
    in the sink: each of the keyed steps that come after one another takes an epoch for that."""
    count = int(scenario.shape.cumulative(scenario.seconds * 1000 - 1e-3))
    # what two hosts would take for it, and some time to come up
    work_s = scenario.load * (scenario.seconds + (scenario.factor - 1) * scenario.for_s)
    timeout_s = max(scenario.seconds, work_s) + GRACE_S
    until(query, lambda: sum(epoch.rows for epoch in query.progress) >= count, timeout_s)
    last = query.progress[-1].epoch + steps + 1
    until(query, lambda: query.progress[-1].epoch >= last, timeout_s)


# -- what it gave


def _right_rows(scenario: LiveBurst, load: Began, sink: Collect) -> int:
    """How many rows came out; all of them are right, and all are there up to the burst's end."""
    arrived = BurstLoad(scenario.query, scenario.shape, load.start_ms, load.first)
    found = compared(arrived, sink.rows())
    if not found.right:
        raise WrongRows(f"{scenario.name}: {found}")
    if found.until_ms < load.start_ms + 1000 * (scenario.at_s + scenario.for_s):
        raise PenstockError(f"{scenario.name}: it ended before all of the burst's windows were out")
    return found.rows


def _lent(scenario: LiveBurst, hosts: int, taken: Taken) -> dict[str, float]:
    """What it costs when the hosts that stood by are functions, paid for while they had slots."""
    lent_s = (scenario.most_hosts - scenario.hosts) * (taken.to_ms - taken.from_ms) / 1000
    functions = FunctionPrice().money(0, lent_s)
    stable = HostPrice().money(hosts)
    paid_for = stable * scenario.seconds
    return {"hosts": paid_for, "functions": functions} | per_second(
        paid_for, functions, stable, scenario.seconds, scenario.for_s
    )


def _line(outcome: BurstOutcome) -> str:
    helped = f", {outcome.function_rows:,} rows by functions" if outcome.function_rows else ""
    return (
        f"live {outcome.query}, {outcome.side}: p99 {outcome.p99_stable_ms:.0f} ms, "
        f"{outcome.p99_peak_ms:.0f} ms at the worst; load {outcome.load_stable:.0%}, "
        f"epochs of {outcome.epoch_ms:.0f} ms{helped}"
    )
