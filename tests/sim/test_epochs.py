from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision
from penstock.model import SLA, StepId
from penstock.sim.epochs import SimSource
from penstock.sim.plane import Following, Plane
from penstock.sim.run import simulate, simulate_flow
from penstock.sim.trace import Trace
from tests.sim.exact import then_quiet

BOUNDS = Bounds(SLA(1000, 1000))


def test_epochs_settle_where_their_cost_and_load_say() -> None:
    """A cost of 200 ms and a load of 50 % give epochs of 200 / (1 - 0.5) ms, and a latency of 1.5 epochs."""
    trace = Trace.of_rates(np.full((3000, 4), 125.0), 100.0)
    plane = Plane(service_rate=1000.0, engine="epochs", epoch_cost_ms=200.0)
    outcome = simulate(trace, "static(1)", BOUNDS, plane)
    assert np.nanmean(outcome.series.mean_ms[20:]) == pytest.approx(600.0, rel=0.02)
    assert np.nanmean(outcome.series.p99_ms[20:]) == pytest.approx(800.0, rel=0.1)
    assert outcome.success > 0.99


def test_a_load_above_the_service_rate_ends_in_ever_longer_epochs() -> None:
    trace = Trace.of_rates(np.full((600, 4), 300.0), 100.0)
    plane = Plane(service_rate=1000.0, engine="epochs", epoch_cost_ms=200.0)
    outcome = simulate(trace, "static(1)", BOUNDS, plane)
    means = outcome.series.mean_ms
    assert np.nanmax(means[-15:]) > 1.5 * np.nanmax(means[15:30])
    assert outcome.success < 0.1


class Watch:
    """A policy that does nothing but record its vitals, in the class, since a run uses a copy."""

    seen: ClassVar[list[Vitals]] = []

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        self.seen.append(vitals)
        return Decision("good", ())


def test_an_epoch_that_brings_too_much_is_noticed_before_it_is_done() -> None:
    rates = np.concatenate([np.full((100, 2), 100.0), np.full((10, 2), 2000.0)])
    plane = Plane(service_rate=1000.0, engine="epochs", epoch_cost_ms=200.0)
    Watch.seen.clear()
    simulate(then_quiet(Trace.of_rates(rates, 100.0), 10), Watch(), BOUNDS, plane)
    worst = [float(np.nan_to_num(vitals.latency_ms).max()) for vitals in Watch.seen]
    noticed = next(n for n, latency_ms in enumerate(worst) if latency_ms > 1000.0)
    early, end = Watch.seen[noticed], Watch.seen[noticed + 1]
    assert early.now_ms < end.now_ms - 500.0, "when it began, not when it was done"
    assert np.nanmax(early.measured_ms) < 600.0, "none of its records has completed"
    assert np.nanmax(end.measured_ms) == pytest.approx(worst[noticed], rel=0.2)


def test_every_record_is_taken_once_whenever_epochs_begin() -> None:
    trace = Trace.of_rates(np.full((200, 3), 37.0), 100.0, seed=2)
    source, random = SimSource(trace.counts, 100.0), np.random.default_rng(2)
    taken, now_ms = np.zeros_like(trace.counts), 0.0
    while now_ms < trace.duration_ms:
        now_ms += random.uniform(1, 700)
        intake = source.take(now_ms)
        assert intake.records.min(initial=0) >= 0
        assert np.all(intake.arrival_ms <= now_ms)
        taken[intake.first : intake.first + len(intake.records)] += intake.records.astype(np.int32)
    assert np.array_equal(taken, trace.counts)
    assert source.take(now_ms + 1000).records.sum() == 0


def test_all_records_complete_in_both_steps() -> None:
    trace = then_quiet(Trace.of_rates(np.full((300, 4), 50.0), 100.0, seed=4), 5)
    count = Following(StepId("count"), slots=6, fan_out=3.0, weights=(1, 2, 3, 4, 5, 6), hosts=2)
    plane = Plane(service_rate=1000.0, engine="epochs", epoch_cost_ms=100.0)
    outcome = simulate_flow(trace, [count], "static(2)", Bounds(SLA(2000, 1000)), plane, hosts=2)
    first, second = outcome.steps.values()
    assert first.arrived == first.completed == trace.total
    assert second.arrived == second.completed
    assert second.completed == pytest.approx(3 * trace.total, abs=6)
    assert outcome.success == 1.0
    # All records of an epoch complete together, so both steps end with the same latency.
    assert np.allclose(first.series.mean_ms[:25], second.series.mean_ms[:25], rtol=0.05)
