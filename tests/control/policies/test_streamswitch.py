"""StreamSwitch as published: `streamswitch(0.2)`, beside `switch(0.2)`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.policies.parse import parse
from penstock.control.treat.decision import Bounds, Decision, Policy, after
from penstock.model import SLA, StepId
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock.sim.workload import shaped

_BOUNDS = Bounds(SLA(1000, 1000))


def _vitals(rates: list[float], hosts: int, latency_ms: float, epoch_ms: float = 0.0) -> Vitals:
    return Vitals.even(
        StepId("sum"), rates, hosts, 1000.0, latency_ms=latency_ms, epoch_cost_ms=epoch_ms
    )


def _both() -> tuple[Policy, Policy]:
    return parse("streamswitch(0.2)")[0], parse("switch(0.2)")[0]


def _decided(vitals: Vitals) -> tuple[Decision, Decision]:
    published, ours = _both()
    return published.decide(vitals, _BOUNDS), ours.decide(vitals, _BOUNDS)


def test_one_host_is_treated_in_each_decision_until_none_is_severe() -> None:
    vitals = _vitals([450.0] * 8, 4, latency_ms=900.0)  # 900 records a second for each host
    published, ours = _decided(vitals)
    assert [treatment.kind for treatment in published.treatments] == ["scale_out"]
    assert len({treatment.source for treatment in ours.treatments}) == 4
    policy, sources = _both()[0], set[str]()
    for _ in range(4):
        (one,) = policy.decide(vitals, _BOUNDS).treatments
        sources.add(one.source)
        vitals = after(vitals, [one])
        calm = np.where(vitals.host_rate < 800.0, 10.0, vitals.latency_ms)
        vitals = replace(vitals, latency_ms=calm)
    assert len(sources) == 4
    assert policy.decide(vitals, _BOUNDS).health != "severe"


def test_latency_is_projected_by_mm1_even_where_there_are_epochs() -> None:
    published, ours = _decided(_vitals([300.0, 300.0], 1, latency_ms=400.0, epoch_ms=200.0))
    assert published.hosts[0].projected_ms == pytest.approx(1000 / (0.8 * 1000 - 600))
    assert ours.hosts[0].projected_ms == pytest.approx(1.5 * 200 / (1 - 600 / 800))


def test_a_backlog_does_not_count() -> None:
    vitals = _vitals([300.0, 300.0], 1, latency_ms=600.0)
    waiting = replace(vitals, backlog=np.array([2_000.0, 2_000.0]))
    published, ours = _decided(waiting)
    assert (published.health, published.treatments) == ("moderate", ())
    assert ours.health == "severe"


def test_a_host_leaves_in_the_first_good_decision() -> None:
    vitals = _vitals([100.0, 100.0, 100.0], 3, latency_ms=10.0)
    published, ours = _decided(vitals)
    assert [treatment.kind for treatment in published.treatments] == ["scale_in"]
    assert ours.treatments == (), "peaks are not known yet"


def test_a_peak_of_a_moment_ago_keeps_no_host() -> None:
    published, ours = _both()
    for second in range(40):
        peak = 1_900.0 if second == 38 else 300.0
        vitals = replace(_vitals([peak / 3] * 3, 3, 10.0), now_ms=1000.0 * second)
        last = published.decide(vitals, _BOUNDS), ours.decide(vitals, _BOUNDS)
    assert [[t.kind for t in one.treatments] for one in last] == [["scale_in"], []]


def test_it_changes_hosts_more_often_than_the_switch_in_a_simulation() -> None:
    load = shaped(shape("sine(3000, 2000, 60s)"), skew("uniform"), 32, 100.0, 180.0, 1)
    runs = {
        policy: simulate(load, policy, Bounds(SLA(1000, 1000), 100.0), Plane(1_000.0), hosts=4)
        for policy in ("streamswitch(0.2)", "switch(0.2)")
    }
    published, ours = (run.figures() for run in runs.values())
    moves = [sum(figures["treatments"].values()) for figures in (published, ours)]
    assert moves[0] > moves[1]
    assert published["hosts"] <= ours["hosts"]
    assert published["success"] <= ours["success"]
    begun = [entry for entry in runs["streamswitch(0.2)"].journal if entry.event == "began"]
    assert {len(entry.facts["treatments"]) for entry in begun} == {1}
