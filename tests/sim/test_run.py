from __future__ import annotations

import numpy as np
import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError
from penstock.model import SLA
from penstock.sim.plane import Engine, Plane
from penstock.sim.run import simulate
from penstock.sim.trace import Trace

BOUNDS = Bounds(SLA(1000, 1000))
ENGINES: tuple[Engine, ...] = ("continuous", "epochs")


class Idle:
    """A policy that does nothing."""

    last: Vitals | None = None
    """Vitals of the last decision of any object, since a run uses a copy."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        Idle.last = vitals
        return Decision("good", ())


class There:
    """A policy that scales out at 10 s and in again at 20 s."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        hosts = vitals.hosts
        treatments: tuple[Treatment, ...] = ()
        if vitals.now_ms >= 20_000 and len(hosts) == 2:
            slots = tuple(vitals.slots_of(1).tolist())
            treatments = (Treatment("scale_in", slots, hosts[1], hosts[0], "time to go"),)
        elif 10_000 <= vitals.now_ms < 20_000 and len(hosts) == 1:
            treatments = (Treatment("scale_out", (0, 1), hosts[0], new_host(1), "time to come"),)
        return Decision("good", (), treatments)


def load(seconds: int = 60, rate: float = 100.0, slots: int = 4) -> Trace:
    return Trace.of_rates(np.full((seconds * 10, slots), rate), 100.0, seed=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_run(engine: Engine) -> None:
    plane = Plane(service_rate=300.0, alpha=0.5, beta=0.5, engine=engine)
    if engine == "continuous":
        plane = Plane(service_rate=300.0, alpha=0.5, beta=0.5, lost_samples=0.02)
    runs = [simulate(load(), "switch", BOUNDS, plane, seed=seed) for seed in (1, 1, 2)]
    results = [(run.success_by_slot.tolist(), run.hosts, run.journal) for run in runs]
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_watching_changes_nothing(engine: Engine) -> None:
    plane = Plane(service_rate=500.0, engine=engine)
    watched = simulate(load(), Idle(), BOUNDS, plane, hosts=2)
    left_alone = simulate(load(), "static(2)", BOUNDS, plane)
    assert watched.success_by_slot.tolist() == left_alone.success_by_slot.tolist()
    assert np.array_equal(watched.series.mean_ms, left_alone.series.mean_ms, equal_nan=True)
    assert watched.hosts == left_alone.hosts == 2.0
    assert watched.decisions > 100
    assert left_alone.decisions == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_control_sees_the_true_figures(engine: Engine) -> None:
    plane = Plane(service_rate=500.0, engine=engine)
    run = simulate(load(rate=200.0), Idle(), BOUNDS, plane, hosts=2)
    seen = Idle.last
    assert seen is not None
    assert seen.service_rate == pytest.approx([500.0, 500.0])
    assert seen.host_rate == pytest.approx([400.0, 400.0], rel=0.2)
    assert seen.epoch_cost_ms == (250.0 if engine == "epochs" else 0.0)
    mean_ms = float(np.nanmean(run.series.mean_ms[-2:]))
    assert np.mean(seen.measured_ms) == pytest.approx(mean_ms, abs=100.0)
    assert np.mean(seen.latency_ms) == pytest.approx(float(np.mean(seen.measured_ms)), abs=100.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_treatments_take_their_time(engine: Engine) -> None:
    plane = Plane(
        service_rate=2000.0, start_host_ms=3000, switch_ms=500, engine=engine, epoch_cost_ms=100
    )
    run = simulate(load(), There(), BOUNDS, plane, step="sum")
    assert run.treatments == {"scale_out": 1, "scale_in": 1, "balance": 0}
    hosts = run.series.hosts
    assert hosts[:9].tolist() == [1.0] * 9
    # A host is paid for from its request to its removal.
    assert hosts[11:20].tolist() == [2.0] * 9
    assert hosts[22:].tolist() == [1.0] * 38
    assert run.hosts == pytest.approx(1 + 10.5 / 60, abs=0.01)
    story = [(e.event, e.time_ms) for e in run.journal if e.event in ("began", "done")]
    assert [event for event, _ in story] == ["began", "done", "began", "done"]
    out_ms, in_ms = story[1][1] - story[0][1], story[3][1] - story[2][1]
    # With the epochs engine, changes that are due wait for the end of an epoch.
    late_ms = 1100 if engine == "epochs" else 0
    assert 3500 <= out_ms <= 3500 + late_ms
    assert 500 <= in_ms <= 500 + late_ms
    began_s = int(story[0][1] / 1000)
    pause = float(np.nanmax(run.series.p99_ms[began_s + 2 : began_s + 6]))
    assert 400 < pause < 900


def test_lost_samples_hold_decisions_up_but_do_not_end_them() -> None:
    planes = (Plane(service_rate=900.0, lost_samples=lost) for lost in (0.0, 0.3))
    complete, gaps = (simulate(load(), There(), BOUNDS, plane, hosts=2) for plane in planes)
    assert complete.treatments == gaps.treatments == {"scale_out": 0, "scale_in": 1, "balance": 0}
    began_ms = [
        next(entry.time_ms for entry in run.journal if entry.event == "began")
        for run in (complete, gaps)
    ]
    assert began_ms[0] == 20_000
    assert 20_000 <= began_ms[1] <= 22_000


@pytest.mark.parametrize(("delta_ms", "looks"), [(20.0, 3000), (100.0, 600), (500.0, 120)])
def test_control_evaluates_at_the_set_interval(delta_ms: float, looks: int) -> None:
    plane = Plane(service_rate=250.0)
    run = simulate(load(), Idle(), BOUNDS, plane, hosts=2, delta_ms=delta_ms)
    assert run.decisions == looks
    every_100 = simulate(load(), Idle(), BOUNDS, plane, hosts=2, delta_ms=100.0)
    assert run.success == pytest.approx(every_100.success, abs=0.02)


def test_records_that_do_not_complete_are_reported() -> None:
    run = simulate(load(seconds=30), "static(1)", BOUNDS, Plane(service_rate=100.0))
    assert run.completed == pytest.approx(3000, abs=1)
    assert run.arrived == load(seconds=30).total
    assert run.success < 0.2


def test_the_warm_up_does_not_count() -> None:
    burst = np.concatenate([np.full((100, 4), 500.0), np.full((500, 4), 50.0)])
    trace = Trace.of_rates(burst, 100.0)
    plane = Plane(service_rate=1000.0)
    whole = simulate(trace, "static(1)", BOUNDS, plane)
    later = simulate(trace, "static(1)", BOUNDS, plane, warm_up_ms=30_000)
    assert whole.success < 0.8
    assert later.success == 1.0
    with pytest.raises(SettingError, match="the warm-up takes 60 s of a run of 60 s"):
        simulate(trace, "static(1)", BOUNDS, plane, warm_up_ms=60_000)


def test_the_switch_keeps_a_bound_that_one_host_does_not() -> None:
    trace = Trace.of_rates(np.full((1800, 16), 100.0), 100.0, seed=1)
    plane = Plane(service_rate=500.0)
    bounds = Bounds(SLA(1000, 1000), alert=100.0)
    switch = simulate(trace, "switch", bounds, plane)
    assert switch.success > 0.95
    assert 3.5 < switch.hosts < 6
    assert simulate(trace, "static(1)", bounds, plane).success < 0.05


def test_more_hosts_than_slots_are_refused() -> None:
    with pytest.raises(SettingError, match="4 slots and would start with 5 hosts"):
        simulate(load(), "static(5)", BOUNDS)
