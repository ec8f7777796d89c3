"""The switch policy: health of hosts, treatments, reasons, and when it does nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.policies.switch import Switch
from penstock.control.treat.decision import Bounds, Decision, after
from penstock.model import SLA, StepId

_BOUNDS = Bounds(SLA(1000, 1000))
_STEP = StepId("sum")


def _vitals(rates: object, hosts: int, latency_ms: object, served: float = 1000.0) -> Vitals:
    vitals = Vitals.even(_STEP, np.asarray(rates, dtype=float), hosts, served)
    return replace(vitals, latency_ms=np.broadcast_to(np.asarray(latency_ms, float), hosts).copy())


def _kinds(decision: Decision) -> list[str]:
    return [treatment.kind for treatment in decision.treatments]


def _rates(vitals: Vitals, decision: Decision) -> Floats:
    return after(vitals, decision.treatments).host_rate


def _in_time(switch: Switch, vitals: Vitals, bounds: Bounds = _BOUNDS) -> Decision:
    """The first decision with treatments if these vitals stay the same for 40 seconds."""
    for second in range(41):
        decision = switch.decide(replace(vitals, now_ms=vitals.now_ms + 1000.0 * second), bounds)
        if decision.treatments:
            break
    return decision


def test_health_depends_on_present_and_projected_latency() -> None:
    vitals = _vitals([700.0, 700.0, 900.0, 900.0], 4, [400.0, 600.0, 400.0, 600.0])
    decision = Switch().decide(vitals, _BOUNDS)
    assert [host.health for host in decision.hosts] == ["good", "moderate", "moderate", "severe"]
    assert decision.health == "severe"
    assert decision.hosts[0].projected_ms == pytest.approx(10.0)
    assert decision.hosts[3].projected_ms == np.inf


def test_a_moderate_step_is_left_alone() -> None:
    decision = Switch().decide(_vitals([10.0, 10.0], 2, [600.0, 10.0]), _BOUNDS)
    assert (decision.health, decision.treatments, decision.reasons) == ("moderate", (), ())


def test_a_balance_is_preferred_if_it_is_enough() -> None:
    vitals = _vitals([300.0, 300.0, 300.0, 100.0, 50.0, 50.0], 2, [700.0, 10.0])
    decision = Switch().decide(vitals, _BOUNDS)
    assert _kinds(decision) == ["balance"]
    assert _rates(vitals, decision).tolist() == [600.0, 500.0]
    assert decision.reasons == (
        "sum/0 is severe: latency 700 ms is above the alert of 500 ms and would grow without limit "
        "(arrivals 900/s, service 1,000/s less a margin of 20 %)",
    )
    assert decision.treatments[0].reason.startswith("sum/0 would settle at 5 ms instead of ")
    assert decision.treatments[0].reason.endswith(", sum/1 at 3 ms")


def test_otherwise_a_host_is_added() -> None:
    vitals = _vitals([450.0, 450.0, 350.0, 350.0], 2, [700.0, 10.0])
    decision = Switch().decide(vitals, _BOUNDS)
    assert _kinds(decision) == ["scale_out"]
    assert _rates(vitals, decision).tolist() == [450.0, 700.0, 450.0]


def test_the_paper_s_switch_does_one_thing_at_a_time() -> None:
    vitals = _vitals(np.full(16, 300.0), 2, 800.0)
    assert len(Switch(unit=True, memory=False).decide(vitals, _BOUNDS).treatments) == 1


def test_a_decision_adds_all_needed_hosts_at_once() -> None:
    vitals = _vitals(np.full(40, 125.0), 1, 800.0)
    decision = Switch().decide(vitals, _BOUNDS)
    rates = _rates(vitals, decision)
    assert (rates < 800.0).all()
    assert len(rates) <= 8  # 5,000/s need 6.25 hosts of 800/s
    # Each slot moves once, from its present owner: chains of moves are merged into one.
    moved = [slot for treatment in decision.treatments for slot in treatment.slots]
    assert len(moved) == len(set(moved))
    assert {treatment.source for treatment in decision.treatments} == {vitals.hosts[0]}
    names = [treatment.target for treatment in decision.treatments]
    assert names == [f"new/{n}" for n in range(1, len(names) + 1)]


def test_a_backlog_calls_for_hosts_after_the_burst() -> None:
    quiet = _vitals(np.full(8, 75.0), 1, 2000.0)
    assert Switch().decide(quiet, _BOUNDS).health == "moderate"
    burst = replace(quiet, backlog=np.full(8, 700.0))
    decision = Switch().decide(burst, _BOUNDS)
    # 600/s, and an excess of 5,000 of 5,600 in 2 s: 3,100/s.
    assert len(_rates(burst, decision)) >= 4
    assert "excess backlog of 5,000 records" in decision.reasons[0]


def test_a_backlog_that_goes_away_by_itself_needs_no_hosts() -> None:
    vitals = replace(_vitals(np.full(8, 75.0), 1, 700.0), backlog=np.full(8, 95.0))
    assert Switch().decide(vitals, _BOUNDS).treatments == ()


def test_a_host_without_completions_is_judged_by_its_backlog() -> None:
    vitals = replace(
        _vitals([100.0, 900.0, 0.0], 3, [10.0, np.nan, np.nan]), backlog=np.array([0.0, 800.0, 0.0])
    )
    decision = Switch().decide(vitals, _BOUNDS)
    assert [host.health for host in decision.hosts] == ["good", "severe", "good"]


def test_at_the_maximum_of_hosts_it_balances_and_reports_the_rest() -> None:
    bounds = replace(_BOUNDS, at_most=2)
    vitals = _vitals([700.0, 700.0, 700.0, 100.0, 100.0, 700.0], 2, [900.0, 700.0])
    first = Switch().decide(vitals, bounds)
    assert _kinds(first) == ["balance"]
    then = after(vitals, first.treatments)
    assert then.host_rate.max() == 1600.0
    second = Switch().decide(then, bounds)
    assert second.treatments == ()
    assert any("its maximum of 2 hosts" in reason for reason in second.reasons)


def test_the_others_are_moved_away_from_a_slot_that_no_host_can_take() -> None:
    vitals = _vitals([1500.0, 50.0, 50.0, 10.0, 10.0, 10.0], 2, [900.0, 20.0])
    decision = Switch().decide(vitals, _BOUNDS)
    assert decision.hot_slots == (0,)
    assert [(t.kind, t.slots) for t in decision.treatments] == [("balance", (1, 2))]
    again = Switch().decide(after(vitals, decision.treatments), _BOUNDS)
    assert again.treatments == ()
    assert (
        "sum/0 cannot be relieved: slot 0 alone has arrivals of 1,500/s, more than the capacity "
        in (again.reasons[-1])
    )


def test_an_sla_that_no_host_could_keep_does_not_call_for_more_and_more() -> None:
    vitals = replace(_vitals(np.full(8, 30.0), 1, 900.0), epoch_cost_ms=900.0)
    assert Switch().decide(vitals, _BOUNDS).treatments == ()


def test_scale_in_when_all_are_good() -> None:
    vitals = _vitals([300.0, 100.0, 100.0], 3, 10.0)
    assert Switch().decide(vitals, _BOUNDS).treatments == (), (
        "it has not observed arrivals for 30 s yet"
    )
    decision = _in_time(Switch(), vitals)
    assert _kinds(decision) == ["scale_in"]
    assert sorted(_rates(vitals, decision).tolist()) == [200.0, 300.0]
    assert "is not needed: the step is good" in decision.reasons[0]


def test_scale_in_considers_the_recent_peak() -> None:
    low, high = _vitals([300.0, 200.0], 2, 10.0), _vitals([500.0, 300.0], 2, 10.0)
    switch, went = Switch(), []
    for second in range(60):
        now = replace(high if second == 15 else low, now_ms=1000.0 * second)
        if switch.decide(now, _BOUNDS).treatments:
            went.append(second)
    assert went[0] == 15 + 30
    assert Switch(memory=False).decide(low, _BOUNDS).treatments


def test_a_host_s_slots_may_be_divided_among_several_so_that_it_can_go() -> None:
    vitals = _vitals(np.full(12, 150.0), 4, 10.0)
    decision = _in_time(Switch(), vitals)
    assert _kinds(decision) == ["balance", "balance", "scale_in"]
    assert _rates(vitals, decision).tolist() == [600.0, 600.0, 600.0]
    assert _in_time(Switch(unit=True), vitals).treatments == ()


@pytest.mark.parametrize(("hosts", "at_least", "at_most"), [(2, 5, 8), (5, 1, 4), (3, 3, 3)])
def test_the_limits_on_hosts_are_kept(hosts: int, at_least: int, at_most: int) -> None:
    bounds = replace(_BOUNDS, at_least=at_least, at_most=at_most)
    vitals = _vitals(np.full(20, 10.0), hosts, [600.0] + [10.0] * (hosts - 1))
    decision = Switch().decide(vitals, bounds)
    assert at_least <= len(after(vitals, decision.treatments).hosts) <= at_most
    assert bool(decision.treatments) == bool(decision.reasons) == (hosts != 3)


def test_a_step_grows_by_dividing_hosts_with_several_slots() -> None:
    vitals = _vitals([700.0, 10.0, 10.0], 2, 10.0)
    vitals = replace(vitals, owner=np.array([0, 1, 1]))
    decision = Switch().decide(vitals, replace(_BOUNDS, at_least=5))
    assert [(t.kind, t.source) for t in decision.treatments] == [("scale_out", vitals.hosts[1])]
    assert decision.reasons == (
        "the step has 2 hosts; the minimum is 5; its slots can be divided among 3 for now",
    )


def test_never_below_the_minimum() -> None:
    vitals = _vitals(np.full(8, 1.0), 2, 10.0)
    assert Switch().decide(vitals, replace(_BOUNDS, at_least=2)).treatments == ()


def test_nothing_is_decided_before_a_host_has_worked() -> None:
    vitals = _vitals([900.0, 900.0], 2, 900.0)
    vitals.service_rate[:] = np.nan
    decision = Switch().decide(vitals, _BOUNDS)
    assert (decision.treatments, decision.hosts) == ((), ())
    assert "service rates are unknown" in decision.reasons[0]


def test_a_new_host_is_assumed_to_be_as_fast_as_the_others() -> None:
    vitals = _vitals([400.0, 400.0, 10.0, 10.0], 2, [700.0, np.nan])
    vitals.service_rate[1] = np.nan
    assert _kinds(Switch().decide(vitals, _BOUNDS)) == ["balance"]
