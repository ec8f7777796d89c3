"""Burst workers in the simulated data plane: their load, their speed and their cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.money import FunctionPrice, HostPrice
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError
from penstock.model import SLA, StepId
from penstock.offload.policy.reflexes import Reflexes
from penstock.sim.burst_workers import SimWorkers, WorkerPlane
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Following, Plane
from penstock.sim.run import simulate, simulate_flow
from penstock.sim.trace import Trace

BOUNDS = Bounds(SLA(2000, 1000), at_least=2, at_most=20)
FUNCTIONS = WorkerPlane(at_most=40, partials_per_row=0.05)
PLANE = Plane(
    service_rate=5000.0,
    engine="epochs",
    epoch_cost_ms=100.0,
    start_host_ms=30_000.0,
    revises=True,
    burst_workers=FUNCTIONS,
)


def burst(factor: float, seconds: int = 20, rest: int = 30, at: int = 150) -> Trace:
    """A burst that begins at time slot `at`, over a base of 6,000 records per second.

    The base is 60 % of the capacity of two hosts. A time slot takes 100 ms.
    """
    rates = [6000.0] * at + [6000.0 * factor] * (10 * seconds) + [6000.0] * (10 * rest)
    return Trace.of_rates(np.outer(rates, np.full(16, 1 / 16)), 100.0, seed=3)


def run(trace: Trace, plane: Plane = PLANE, policy: str = "switch") -> Outcome:
    return simulate(trace, policy, BOUNDS, plane, hosts=2)


def worst(outcome: Outcome, first: int = 15, last: int | None = None) -> float:
    return float(np.nanmax(outcome.series.p99_ms[first:last]))


@pytest.mark.parametrize("factor", [3.0, 5.0])
def test_burst_workers_carry_a_burst_that_hosts_alone_cannot(factor: float) -> None:
    trace = burst(factor)
    helped, alone = run(trace), run(trace, replace(PLANE, burst_workers=None), "static(2)")
    assert worst(helped) < 0.25 * worst(alone)
    assert worst(helped, 20, 35) < 1500, "well within the burst, latency is the same as before it"
    assert helped.completed == pytest.approx(helped.arrived, abs=6000)
    assert helped.series.hosts.max() == 2
    assert 0 < helped.series.workers.max() <= 40
    assert helped.series.workers[-5:].max() == 0, "no rows go to them afterwards"
    beyond = helped.arrived - 0.7 * 10_000 * trace.duration_ms / 1000
    assert 0.8 * beyond < helped.worker_rows < helped.arrived


def test_couriers_react_in_the_epoch_that_brings_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain depends on when in an epoch the burst begins, so the worst case counts."""
    traces = [burst(5.0, seconds=5, rest=10, at=at) for at in (150, 151, 152, 153)]
    with_reflex = max(worst(run(trace)) for trace in traces)
    monkeypatch.setattr(Reflexes, "reflex", lambda *_: None)
    assert with_reflex < 0.8 * max(worst(run(trace)) for trace in traces)


def test_a_load_that_hosts_can_take_costs_nothing_for_burst_workers() -> None:
    outcome = run(burst(1.0))
    assert outcome.used is not None
    assert outcome.used.invocations == outcome.worker_rows == 0
    assert outcome.money.functions == 0.0
    without = run(burst(1.0), replace(PLANE, burst_workers=None))
    assert outcome.series.p99_ms.tolist() == without.series.p99_ms.tolist()


def test_money_is_that_of_hosts_by_time_and_of_burst_workers_by_use() -> None:
    trace = burst(5.0)
    outcome = run(trace)
    assert outcome.used is not None
    seconds = trace.duration_ms / 1000
    assert outcome.money.hosts == pytest.approx(HostPrice().money(2 * seconds))
    used = outcome.used
    assert outcome.money.functions == pytest.approx(
        FunctionPrice().money(used.invocations, used.seconds)
    )
    assert outcome.series.worker_money.sum() == pytest.approx(outcome.money.functions)
    assert outcome.series.worker_money[:14].sum() == 0.0
    # Their working time is at least the time for their rows.
    assert used.seconds > outcome.worker_rows / PLANE.service_rate
    figures = outcome.figures()
    assert figures["functions"]["rows"] == outcome.worker_rows
    assert figures["money"]["total"] == pytest.approx(outcome.money.total, abs=1e-6)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(burst(4.0)), run(burst(4.0))
    assert [str(entry) for entry in first.journal] == [str(entry) for entry in second.journal]
    assert (first.used, first.worker_rows) == (second.used, second.worker_rows)


def test_partial_states_of_burst_workers_must_be_merged() -> None:
    """With 0.05 partial states per row, hosts have little to merge. With 0.9, burst workers hardly help."""
    trace = burst(5.0)
    cheap, dear = (
        run(trace, replace(PLANE, burst_workers=replace(FUNCTIONS, partials_per_row=part)))
        for part in (0.05, 0.9)
    )
    assert worst(dear) > 3 * worst(cheap)


def test_cold_burst_workers_are_later_than_warm_ones() -> None:
    trace = burst(5.0)
    slow = replace(FUNCTIONS, start_ms=2000.0)
    warm = run(trace, replace(PLANE, burst_workers=slow))
    cold = run(trace, replace(PLANE, burst_workers=replace(slow, warm_for=0.0)))
    assert worst(cold) > worst(warm) + 500
    assert warm.used is not None
    assert warm.used.cold_starts == 0, "enough are warm for 5 times the stable load"


def test_a_burst_that_lasts_goes_to_hosts() -> None:
    impatient = replace(FUNCTIONS, patience_ms=10_000.0)
    plane = replace(PLANE, burst_workers=impatient, start_host_ms=10_000.0)
    outcome = run(burst(3.0, seconds=60, rest=10), plane)
    hosts, functions = outcome.series.hosts, outcome.series.workers
    assert hosts[:20].max() == 2
    assert hosts[70] >= 5
    assert functions[30] > 0, "functions help while hosts start"
    assert functions[65:75].max() == 0
    assert worst(outcome, 25, 75) < 2000


class Asks:
    """A policy that adds a host after 10 s and moves a slot at once, so that it cannot be revised."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        hosts = vitals.hosts
        treatments: tuple[Treatment, ...] = ()
        if vitals.now_ms >= 10_000 and len(hosts) == 2 and vitals.owner[0] == 0:
            out = Treatment("scale_out", (7,), hosts[0], new_host(1), "time to come")
            treatments = (Treatment("balance", (0,), hosts[0], hosts[1], "now"), out)
        return Decision("good", (), treatments)


def test_a_burst_that_comes_while_hosts_start_is_carried_too() -> None:
    outcome = simulate(burst(4.0), Asks(), BOUNDS, PLANE, hosts=2)
    story = [(e.event, e.time_ms / 1000) for e in outcome.journal if e.event in ("began", "done")]
    assert [event for event, _ in story] == ["began", "done"]
    assert story[0][1] < 12, "before the burst"
    assert story[1][1] > 40, "after it"
    assert outcome.series.workers[15:35].max() > 5
    assert worst(outcome) < 3000


def test_a_join_behind_leaves_hosts_less_of_the_time() -> None:
    """Steps take turns, so the more time a second step takes, the more rows go to burst workers."""
    trace, plane = burst(3.0), PLANE
    rows = []
    for fan_out in (0.01, 0.12):
        join = Following(StepId("join"), 16, fan_out, hosts=2, policy="static(2)")
        outcome = simulate_flow(
            trace, [join], "switch", BOUNDS, plane, hosts=2, shares=(0.8, 0.2), delta_ms=100.0
        )
        first, second = outcome.steps.values()
        assert second.used is None, "burst workers do not help the join"
        assert worst(second, 22, 35) < 3000
        rows.append(first.worker_rows)
    assert rows[1] > 1.05 * rows[0]


def test_a_pool_ends_workers_that_were_idle_for_long() -> None:
    pool = SimWorkers(
        WorkerPlane(start_ms=100.0, overhead_ms=0.0, idle_ms=1000.0), host_rate=1000.0
    )
    pool.keep(0.0, 1)
    assert pool.work(500.0, 300.0, 3) == 200.0
    assert (len(pool), pool.usage.cold_starts) == (3, 2)
    pool.keep(1500.0, 1)
    assert len(pool) == 3
    pool.keep(1800.0, 1)
    assert len(pool) == 1


def test_a_pool_stays_within_its_limit() -> None:
    pool = SimWorkers(WorkerPlane(at_most=2, start_ms=0.0, overhead_ms=10.0), host_rate=1000.0)
    assert pool.work(0.0, 400.0, 8) == 210.0
    assert (len(pool), pool.usage.invocations) == (2, 2)
    assert pool.work(0.0, 0.0, 8) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"at_most": -1}, {"speed": 0.0}, {"start_ms": -1.0}, {"partials_each": -0.1}]
)
def test_invalid_burst_workers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        WorkerPlane(**wrong)  # type: ignore[arg-type]


def test_burst_workers_need_the_epochs_engine() -> None:
    with pytest.raises(SettingError, match="engine"):
        Plane(burst_workers=WorkerPlane())


def test_a_wrong_assumption_about_their_speed_is_corrected_by_measuring() -> None:
    slow = replace(FUNCTIONS, speed=0.4)
    known, assumed = (
        run(burst(4.0), replace(PLANE, burst_workers=replace(slow, assumed_speed=speed)))
        for speed in (None, 1.0)
    )
    assert worst(assumed, 25, 35) < 1.5 * worst(known, 25, 35)
    assert assumed.series.workers.max() >= 0.8 * known.series.workers.max()
