"""Live runs of `penstock bench burst`: real Spark, hosts and functions, latency at the sink.

Couriers send every row as a record, so that hosts do the work, or functions when rows go to them. In unpaced
runs they combine, and hosts and functions are as fast as they are. The
output of each run is compared with a database's answer for the same events.

    no_scaling           two hosts, all the time
    new_hosts            the switch adds hosts, which start as fast as this machine allows
    new_hosts_30s        the switch adds hosts, which start 30 s later, as on a new machine
    hosts_beforehand     all hosts are up and two own the slots; the burst spreads slots over all
    functions_migrating  the same with functions in place of the added hosts: they are paid for while
                         they own slots, and a slot's state moves before its rows are processed
    penstock             functions take the rows beyond the hosts' target, and the switch may add hosts
    overprovisioned      all hosts own slots all the time

q1 has no hosts. Spark sets the number of its couriers, which are as slow as hosts are in other queries.
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
"""Milliseconds until a new machine is ready."""
_STANDING_BY = ("hosts_beforehand", "functions_migrating")


class WrongRows(PenstockError):
    """The output of a run differs from the database's: its figures do not count."""


def live_runs(scenarios: Sequence[LiveBurst], show: Show) -> LiveRuns:
    """Run the scenarios one after the other in one session. The others run even if one fails."""
    show("starting Spark")
    outcomes: list[BurstOutcome] = []
    failed: dict[str, str] = {}
    wrong: dict[str, str] = {}
    with sides.bench_session(CORES) as spark:
        # A JVM gets faster for minutes: the first run warms it up and does not count.
        for scenario in (WARM_UP, *scenarios):
            try:
                outcome = live_run(spark, scenario, show)
            except Exception as trouble:
                failed[scenario.name] = str(trouble).split("\n")[0]
                if isinstance(trouble, WrongRows):
                    wrong[scenario.name] = failed[scenario.name]
                show(f"live {scenario.name}: failed: {failed[scenario.name]}")
            else:
                outcomes += [outcome] if scenario is not WARM_UP else []
    return LiveRuns(tuple(outcomes), failed, wrong)


def live_run(spark: SparkSession, scenario: LiveBurst, show: Show) -> BurstOutcome:
    """Run one scenario in a session made by `bench_session`."""
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
        *(scenario.query, spark, scenario.shape, SLOTS, scenario.seed),
        partitions=_partitions(scenario),
    ).sla(scenario.latency_s)
    if scenario.side in ("no_scaling", "overprovisioned"):
        return flow
    settings: dict[str, Any] = {"at_most": scenario.most_hosts}
    if scenario.side == "penstock":
        settings["functions"] = ps.LocalFunctions(at_most=scenario.functions)
    # For standby hosts a dry run only detects the burst: `StandBy` moves the slots.
    return flow.elastic(dry_run=scenario.side in _STANDING_BY, **settings)


def _partitions(scenario: LiveBurst) -> int:
    """Number of source partitions, and so of couriers, which stand for hosts in stateless queries."""
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
    """Faults that let this machine stand for many: hosts have a set pace, and added hosts start late."""
    faults: list[Fault] = []
    if scenario.unpaced_rate is None:
        pace = Pace(scenario.host_rate)
        # Only the busy step is paced: steps after it get all rows of a window at once, which no side can
        # change.
        faults += [
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
    """Wait until all rows of the scenario are processed and the windows that they closed are in the sink.

    Each keyed step on the way takes one epoch for that.
    """
    count = int(scenario.shape.cumulative(scenario.seconds * 1000 - 1e-3))
    # The time that the first hosts alone would need, and a grace period for the start.
    work_s = scenario.load * (scenario.seconds + (scenario.factor - 1) * scenario.for_s)
    timeout_s = max(scenario.seconds, work_s) + GRACE_S
    until(query, lambda: sum(epoch.rows for epoch in query.progress) >= count, timeout_s)
    last = query.progress[-1].epoch + steps + 1
    until(query, lambda: query.progress[-1].epoch >= last, timeout_s)


# -- the results


def _right_rows(scenario: LiveBurst, load: Began, sink: Collect) -> int:
    """Number of output rows, after checking that they are right and complete up to the burst's end."""
    arrived = BurstLoad(scenario.query, scenario.shape, load.start_ms, load.first, scenario.seed)
    comparison = compared(arrived, sink.rows())
    if not comparison.right:
        raise WrongRows(f"{scenario.name}: {comparison}")
    if comparison.until_ms < load.start_ms + 1000 * (scenario.at_s + scenario.for_s):
        raise PenstockError(
            f"{scenario.name}: the run ended before all windows of the burst were out"
        )
    return comparison.rows


def _lent(scenario: LiveBurst, hosts: int, taken: Taken) -> dict[str, float]:
    """Cost in dollars if the standby hosts are functions, paid for while they owned slots."""
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
        f"live {outcome.query}, {outcome.side}, seed {outcome.settings['seed']}: "
        f"p99 {outcome.p99_stable_ms:.0f} ms, {outcome.p99_peak_ms:.0f} ms at the peak; "
        f"load {outcome.load_stable:.0%}, "
        f"epochs of {outcome.epoch_ms:.0f} ms{helped}"
    )
