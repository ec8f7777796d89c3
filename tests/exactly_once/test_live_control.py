"""Hosts of a live flow follow the load: nothing is lost, and decisions can be replayed."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from penstock.control.elastic import Elastic
from penstock.control.instructions import Tell
from penstock.control.journal.entry import Entry
from penstock.control.treat.decision import Bounds
from penstock.faults import Fault, armed
from penstock.live.sources.rate import Keyed, rate
from penstock.model import SLA
from penstock.offload.policy.flow import machine_of
from penstock.operators.aggregate.aggregates import AggregatePlan, count
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.shapes import shape
from penstock.sim.trace import Trace
from penstock.testing import Pace
from tests.exactly_once.test_live import live_trial
from tests.trials.control_trial import Obedient, Restless, gather, spread
from tests.trials.ledger import SUMS
from tests.trials.live_cluster import LiveCluster

STEP = SUMS.keyed[0].id


def entries(cluster: LiveCluster, event: str) -> list[Entry]:
    return [entry for entry in cluster.journal if entry.event == event]


def replayed(cluster: LiveCluster) -> list[Entry]:
    """The journal that another control machine writes for the same events."""
    opening, *events = cluster.recorded
    assert cluster.elastic is not None
    machine = machine_of(opening, cluster.elastic)
    instructions = [instruction for event in events for instruction in machine.handle(event)]
    return [instruction.entry for instruction in instructions if isinstance(instruction, Tell)]


def test_treatments_are_done_in_the_middle_of_the_stream(tmp_path: Path) -> None:
    policy = Obedient()
    with live_trial(tmp_path, elastic=Elastic(policy, at_most=4)) as trial:
        on = trial.cluster
        trial.give()
        policy.orders[STEP] = spread
        trial.give()
        on.until(lambda: len(entries(on, "done")) == 1, "slots have moved to two new hosts")
        assert len(on.relocation.hosts(STEP)) == 4
        trial.give()
        policy.orders[STEP] = gather
        on.until(lambda: len(entries(on, "done")) == 2, "and back")
        assert len(on.relocation.hosts(STEP)) == 2
        trial.give()
        trial.check()
        assert [entry.event for entry in on.journal][:2] == ["decided", "began"]


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_nothing_is_lost_whatever_is_ordered_and_whoever_dies(tmp_path: Path, seed: int) -> None:
    policy, pick = Restless(seed, eager=0.3), random.Random(seed)
    with live_trial(tmp_path, seed, elastic=Elastic(policy, at_most=4)) as trial:
        on = trial.cluster
        for _ in range(6):
            trial.give(batches=4)
            kill = pick.choice(("host", "courier", "nobody"))
            if kill == "host" and on.jobs.live:
                on.jobs.kill(pick.choice(sorted(on.jobs.live)))
            elif kill == "courier":
                on.courier_jobs.kill(f"courier/{pick.randrange(2)}")
            on.pass_epochs(2)
        policy.calm = True
        trial.give()
        trial.check()
        assert policy.ordered, "nothing was ordered"


def test_a_lost_host_is_told(tmp_path: Path) -> None:
    policy = Obedient()
    with live_trial(tmp_path, elastic=Elastic(policy)) as trial:
        on = trial.cluster
        trial.give()
        on.pass_epochs(1)
        on.jobs.kill(f"{STEP}/1")
        on.until(lambda: entries(on, "host lost"), "it was told")
        trial.give()
        trial.check()


@pytest.mark.parametrize("point", ["driver.message", "driver.told", "driver.committed"])
def test_a_driver_that_dies_under_a_treatment_is_followed_by_another(
    tmp_path: Path, point: str
) -> None:
    policy = Obedient()
    with live_trial(tmp_path, elastic=Elastic(policy, at_most=4)) as trial:
        on = trial.cluster
        trial.give()
        on.pass_epochs(1)
        policy.orders[STEP] = spread
        with armed(Fault(point, do="raise", hits=(4,))):
            trial.give()
            on.until(lambda: on.deaths["driver"], "the driver died")
        policy.orders.pop(STEP, None)
        trial.give()
        trial.check()


def paced(
    load: str, rows: int | None, store: Path, elastic: Elastic, hosts: int = 1
) -> LiveCluster:
    """A flow of counts by key on hosts with a set pace."""
    source = rate(shape(load), rows=rows, keys=3_000, partitions=2)
    plan = AggregatePlan(source.schema, ["key"], {"n": count()})
    flow = FlowPlan(
        (SourcePlan(source.schema, arrival="arrival"),), (KeyedStep("count", 32, plan),)
    )
    return LiveCluster(
        flow,
        (source,),
        str(store),
        hosts=hosts,
        elastic=elastic,
        sla=SLA(200, 1_000),
        warm_slots=5,
        checkpoint_ms=300,
    )


def test_live_control_and_the_simulator_agree(tmp_path: Path) -> None:
    """For the same load both reach about the same number of hosts, and both then keep the SLA."""
    host_rate, load = 300.0, "steps(150 for 5s, 700 for 60s)"
    seconds = np.arange(400) / 10
    rates = np.repeat(shape(load).rate_at(seconds)[:, np.newaxis] / 32, 32, axis=1)
    bounds = Bounds(SLA(200, 1_000), at_most=6)
    plane = Plane(service_rate=host_rate)
    simulated = simulate(Trace.of_rates(rates), "switch", bounds, plane, hosts=1)
    with armed(Fault("host.work", Pace(host_rate), hits=())):
        on = paced(load, None, tmp_path, Elastic(at_most=6))
        try:
            on.until(lambda: len(on.relocation.hosts("count")) >= 3, "there are enough hosts")
            on.until(lambda: mean_ms(on) < 200, "the SLA is kept")
            assert on.control is not None
            hosts = len(on.relocation.hosts("count"))
            assert abs(hosts - simulated.series.hosts[-1]) <= 2
        finally:
            on.close()
        assert replayed(on) == on.journal


def mean_ms(on: LiveCluster) -> float:
    """Mean latency of the newest epoch in milliseconds."""
    latency = on.progress[-1].latency if on.progress else None
    return math.inf if latency is None else latency.mean_ms


def test_a_dry_run_only_tells(tmp_path: Path) -> None:
    policy = Obedient()
    with live_trial(tmp_path, elastic=Elastic(policy, at_most=4, dry_run=True)) as trial:
        on = trial.cluster
        policy.orders[STEP] = spread
        trial.give()
        on.until(lambda: entries(on, "decided"), "something was decided")
        on.pass_epochs(2)
        assert (entries(on, "began"), len(on.relocation.hosts(STEP))) == ([], 2)
        trial.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_records_that_wait_for_slow_hosts_are_counted_once(tmp_path: Path, seed: int) -> None:
    """Twice as many rows arrive as hosts can process; slots move with waiting rows, and processes die."""
    policy, pick, rows = Restless(seed, eager=0.2), random.Random(seed), 6_000
    with armed(Fault("host.work", Pace(600.0), hits=())):
        on = paced("steady(2500)", rows, tmp_path, Elastic(policy, at_most=4), hosts=2)
        try:
            for part, kill in enumerate(("host", "courier"), 1):
                on.until(lambda least=part * rows / 4: sum(counted(on).values()) > least)  # type: ignore[misc]
                if kill == "host":
                    on.jobs.kill(pick.choice(sorted(on.jobs.live)))
                else:
                    on.courier_jobs.kill("courier/0")
            on.until(lambda: on.outcome == "finished", "all input has ended")
        finally:
            on.close()
    assert counted(on) == Counter(keys_of(rows))
    assert policy.ordered, "nothing was ordered"


def counted(on: LiveCluster) -> dict[int, int]:
    """Count of each key."""
    newest: dict[int, int] = {}
    for row in on.sink.all_rows():
        newest[row["key"]] = max(row["n"], newest.get(row["key"], 0))
    return newest


def keys_of(rows: int) -> list[int]:
    keys: list[int] = Keyed(3_000).rows(np.arange(rows), np.arange(rows))[0].to_pylist()
    return keys
