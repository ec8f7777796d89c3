"""Static and AutoFlow, and the common behaviour of all policies except switch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.diagnose.diagnosis import observed
from penstock.control.policies.autoflow import AutoFlow
from penstock.control.policies.drs import Drs, DrsLb
from penstock.control.policies.ds2 import Ds2
from penstock.control.policies.moves import moves
from penstock.control.policies.static import Static
from penstock.control.treat.decision import Policy, after, new_host
from penstock.errors import SettingError
from tests.control.made_vitals import BOUNDS, counts, done, named, over, vitals_of

# -- health ------------------------------------------------------------------------------------------


def test_health_is_that_of_the_worst_host() -> None:
    vitals = vitals_of([900, 900, 100, 100], hosts=4)
    late = replace(vitals, latency_ms=np.array([600.0, 10.0, 600.0, 10.0]))
    decision = observed(late, BOUNDS)
    assert [host.health for host in decision.hosts] == ["severe", "moderate", "moderate", "good"]
    assert decision.health == "severe"
    worst = decision.hosts[0]
    assert (worst.rate, worst.projected_ms, worst.slots) == (900.0, np.inf, 1)
    assert decision.hot_slots == (0, 1)


@pytest.mark.parametrize("policy", [Drs(), DrsLb(), Ds2(settle_ms=0), Static(2), AutoFlow(1.0)])
def test_nothing_is_done_before_a_host_has_worked(policy: Policy) -> None:
    vitals = replace(vitals_of([900.0] * 4), service_rate=np.full(2, np.nan))
    decision = policy.decide(vitals, BOUNDS)
    assert (decision.health, decision.treatments) == ("moderate", ())
    assert "service rates are unknown" in decision.reasons[0]


# -- moves -------------------------------------------------------------------------------------------


@given(st.data())
def test_moves_bring_slots_to_their_wanted_owners(data: st.DataObject) -> None:
    slots, present = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    wanted = data.draw(st.integers(1, 8))
    owner = st.lists(st.integers(0, present - 1), min_size=slots, max_size=slots)
    vitals = replace(
        vitals_of([1.0] * slots, hosts=present), owner=np.array(data.draw(owner), dtype=np.int64)
    )
    new = tuple(new_host(n + 1) for n in range(wanted - present))
    hosts = vitals.hosts[:wanted] + new
    target = np.array(
        data.draw(st.lists(st.integers(0, wanted - 1), min_size=slots, max_size=slots))
    )
    treatments = moves(vitals, hosts, target, "because")
    then = after(vitals, treatments)
    assert [then.hosts[n] for n in then.owner] == [hosts[n] for n in target]
    assert set(then.hosts) == set(vitals.hosts[:wanted]) | {hosts[n] for n in target}
    assert all(treatment.source in vitals.hosts for treatment in treatments)
    kinds = [treatment.kind for treatment in treatments]
    assert kinds.count("scale_in") == max(0, present - wanted)
    assert kinds.count("scale_out") == len(set(then.hosts) - set(vitals.hosts))
    moved = [slot for treatment in treatments for slot in treatment.slots]
    assert len(moved) == len(set(moved))


# -- static ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("present", "wanted"), [(1, 4), (3, 7), (7, 3), (5, 1), (1, 16)])
def test_static_reaches_its_number_at_once_and_stays(present: int, wanted: int) -> None:
    rng = np.random.default_rng(7)
    vitals = vitals_of(rng.integers(1, 100, 64).tolist(), hosts=present)
    decision = Static(wanted).decide(vitals, BOUNDS)
    then = named(after(vitals, decision.treatments))
    assert len(then.hosts) == wanted
    assert min(counts(then)) > 0
    assert f"the step has {present} host" in decision.reasons[0]
    assert Static(wanted).decide(then, BOUNDS) == observed(then, BOUNDS)


def test_static_halves_the_arrivals() -> None:
    vitals = vitals_of([100.0, 10.0, 10.0, 10.0, 10.0, 10.0, 25.0, 25.0], hosts=1)
    then = after(vitals, Static(2).decide(vitals, BOUNDS).treatments)
    assert then.host_rate.tolist() == [100.0, 100.0]


def test_static_distributes_slots_without_arrivals() -> None:
    vitals = vitals_of([0.0] * 64, hosts=1)
    then = after(vitals, Static(4).decide(vitals, BOUNDS).treatments)
    assert counts(then) == [16] * 4


def test_static_gives_slots_to_an_idle_host_or_removes_it() -> None:
    vitals = replace(vitals_of([1.0] * 8, hosts=3), owner=np.repeat([0, 2], 4))
    (treatment,) = Static(3).decide(vitals, BOUNDS).treatments
    assert (treatment.kind, treatment.target, len(treatment.slots)) == ("balance", "sum/1", 2)
    (treatment,) = Static(2).decide(vitals, BOUNDS).treatments
    assert (treatment.kind, treatment.source, treatment.slots) == ("scale_in", "sum/1", ())
    assert after(vitals, [treatment]).hosts == ("sum/0", "sum/2")


def test_static_keeps_to_the_limits_and_says_so() -> None:
    decision = Static(9).decide(vitals_of([1.0] * 8, hosts=4), replace(BOUNDS, at_most=4))
    assert not decision.treatments
    assert decision.reasons == ("static(9) is limited to 4: 1 to 4 hosts are allowed for 8 slots",)
    with pytest.raises(SettingError):
        Static(0)


def test_static_never_balances() -> None:
    vitals = vitals_of([5_000.0, 1.0], hosts=2, latency_ms=9_000.0)
    decision = Static(2).decide(vitals, BOUNDS)
    assert (decision.health, decision.treatments) == ("severe", ())


# -- autoflow ----------------------------------------------------------------------------------------


def test_autoflow_decides_at_the_end_of_each_window() -> None:
    policy = AutoFlow(window_ms=1_000, factor=0.2)
    decisions = over(policy, vitals_of([60.0, 30.0, 20.0, 10.0]), until_ms=2_500)
    assert [n for n, decision in enumerate(decisions) if decision.treatments] == [10, 20]
    treatment = decisions[10].treatments[0]
    assert (treatment.kind, treatment.slots, treatment.source) == ("balance", (1,), "sum/0")
    assert decisions[10].reasons == ("in 1.0 s sum/0 got 90 records, sum/1 30: a gap of 67 %",)


def test_autoflow_packs_half_of_the_gap_largest_first() -> None:
    policy = AutoFlow(window_ms=1_000)
    vitals = vitals_of([50, 30, 18, 15, 4, 0, 5, 2, 0, 0, 0, 0])
    # 117 against 7 leaves room for 55 records: 50 fit, then 4, but none of 30, 18 and 15 in between.
    (treatment,) = done(over(policy, vitals, until_ms=1_000))
    assert treatment.slots == (0, 4)


def test_autoflow_uses_the_whole_window() -> None:
    policy = AutoFlow(window_ms=1_000)
    before, later = vitals_of([90.0, 0.0, 10.0, 10.0]), vitals_of([10.0, 10.0, 60.0, 60.0])
    over(policy, before, until_ms=800)
    decisions = over(policy, replace(later, now_ms=900.0), until_ms=1_000)
    # 75 records against 28, although the present rates are the other way round. Slot 0 has 74 of
    # them and does not fit.
    assert done(decisions)[0].source == "sum/0"
    assert done(decisions)[0].slots == (1,)


def test_autoflow_leaves_small_gaps_alone() -> None:
    nearly = vitals_of([50.0, 50.0, 41.0, 41.0])
    assert not done(over(AutoFlow(1_000, factor=0.2), nearly, until_ms=3_000))
    assert done(over(AutoFlow(1_000, factor=0.15), nearly, until_ms=3_000)) == []
    assert not done(over(AutoFlow(1_000), vitals_of([0.0] * 4), until_ms=3_000))


def test_autoflow_says_when_no_slot_fits() -> None:
    policy = AutoFlow(window_ms=1_000)
    decision = over(policy, vitals_of([90.0, 0.0, 1.0, 1.0]), until_ms=1_000)[-1]
    assert not decision.treatments
    assert "no slot fits into half of the gap: the smallest had 90" in decision.reasons[0]


def test_autoflow_levels_a_hotspot_and_then_stops() -> None:
    rng = np.random.default_rng(3)
    rates = np.concatenate([rng.uniform(20, 40, 16), rng.uniform(2, 4, 48)])
    vitals, policy = vitals_of(rates.tolist(), hosts=4), AutoFlow(window_ms=1_000, factor=0.2)
    for window in range(30):
        at = replace(vitals, now_ms=1_000.0 * window)
        vitals = after(at, policy.decide(at, BOUNDS).treatments)
    load = vitals.host_rate
    assert len(load) == 4
    assert load.max() - load.min() < 0.2 * load.max()
    assert not done(over(policy, replace(vitals, now_ms=30_000.0), until_ms=40_000))
