from __future__ import annotations

import pytest

from penstock.control.elastic import Elastic
from penstock.control.treat.decision import Bounds
from penstock.control.treat.sharing import SharedBound
from penstock.model import SLA, LatencyBound, StepId
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.workload import workload

AVERAGE = LatencyBound(1000, 1000)
P99 = LatencyBound(1200, 5000, p99=True)
OF_COUNT = LatencyBound(150, 2000, step="count")


def test_the_tightest_bound_counts() -> None:
    sla = SLA(1000, 1000, more=(P99,))
    assert Bounds(sla, tail=1.1).latency_ms == 1000
    assert Bounds(sla, tail=4.0).latency_ms == 300
    assert Bounds(sla, tail=4.0).alert_ms == 150


def test_a_bound_of_a_step_is_not_shared() -> None:
    sla = SLA(1000, 1000, more=(OF_COUNT,))
    steps = [StepId("split"), StepId("count")]
    shared = SharedBound({step: Bounds(sla, step=step) for step in steps})
    split, count = (shared.of(step) for step in steps)
    assert (split.latency_ms, split.window_ms) == (500, 1000)
    assert count.latency_ms == pytest.approx(150)
    assert count.window_ms == 1000, (
        "the shortest: what keeps it in each second keeps it in each two"
    )
    assert count.alert_ms <= count.latency_ms


def test_slots_are_judged_by_every_kind_of_bound_in_its_own_window() -> None:
    sla = SLA(1000, 1000, more=(P99, OF_COUNT))
    count, split = (Bounds(sla, share=0.25, step=step) for step in ("count", "split"))
    assert count.judged(own_latency=False) == {False: OF_COUNT, True: P99}
    assert split.judged(own_latency=False) == {False: AVERAGE, True: P99}
    assert split.judged(own_latency=True)[True] == LatencyBound(300, 5000, p99=True)
    assert count.judged(own_latency=True)[False] == OF_COUNT


def test_a_step_without_any_bound_is_never_late() -> None:
    sla = SLA(150, 2000, step="count")
    assert Bounds(sla, step="split").judged(own_latency=True) == {}
    assert Bounds(sla, step="count").latency_ms == 150
    assert Bounds(sla, step="split").latency_ms > 1e12


def test_a_bound_replaces_one_of_the_same_kind_and_step() -> None:
    sla = SLA(1000, 1000).with_bound(P99).with_bound(OF_COUNT).with_bound(LatencyBound(2000, 1000))
    assert sla.bounds == (LatencyBound(2000, 1000), P99, OF_COUNT)
    assert str(sla).split("; ")[2] == "step count: average latency <= 150 ms over any 2000 ms"


def test_new_settings_keep_the_steps_own_bounds() -> None:
    steps = [StepId("split"), StepId("count")]
    shared = SharedBound({step: Bounds(SLA(900, 900), step=step) for step in steps})
    shared.set_tail(3.0)
    shared.steer(Elastic(at_most=3).bounds(SLA(1000, 1000, more=(OF_COUNT,))))
    assert [shared.of(step).latency_ms for step in steps] == [500, pytest.approx(150)]
    assert shared.of(steps[0]).tail == 3.0


def test_a_p99_bound_takes_more_hosts_than_the_same_average() -> None:
    load = workload("sine(6000, 3000, 120s)", slots=32, seconds=240)
    plane = Plane(service_rate=1_500.0, engine="epochs", epoch_cost_ms=150)
    hosts = {}
    for p99 in (False, True):
        bounds = Bounds(SLA(700, 1000, p99=p99), at_most=16, tail=2.5)
        hosts[p99] = simulate(load.trace, "switch", bounds, plane, hosts=4).hosts
    assert hosts[True] > hosts[False]
