"""DRS and DS2: the number of hosts, and when it changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.policies.drs import Drs, DrsLb
from penstock.control.policies.ds2 import Ds2
from penstock.control.treat.decision import after, is_new
from penstock.errors import SettingError
from tests.control.made_vitals import BOUNDS, counts, done, named, over, vitals_of

# -- drs ---------------------------------------------------------------------------------------------


def test_drs_scales_out_one_at_a_time_until_there_are_enough() -> None:
    vitals, policy = vitals_of([100.0] * 32, hosts=1), Drs()
    for present in (1, 2, 3, 4):
        decision = policy.decide(vitals, BOUNDS)
        (treatment,) = decision.treatments
        assert (treatment.kind, is_new(treatment.target)) == ("scale_out", True)
        assert "need 5 hosts for 1,000 ms" in decision.reasons[0]
        vitals = named(after(vitals, decision.treatments))
        assert len(vitals.hosts) == present + 1
    assert policy.decide(vitals, BOUNDS).treatments == ()


def test_drs_scales_out_all_at_once_if_asked_to() -> None:
    vitals, policy = vitals_of([100.0] * 32, hosts=1), Drs(unit=False)
    decision = policy.decide(vitals, BOUNDS)
    assert {treatment.source for treatment in decision.treatments} == {"sum/0"}
    then = named(after(vitals, decision.treatments))
    assert len(then.hosts) == 5
    assert then.host_rate.max() < 3_200 / 2
    assert policy.decide(then, BOUNDS).treatments == ()


def test_drs_needs_more_hosts_with_a_greater_margin() -> None:
    vitals = vitals_of([100.0] * 32, hosts=1)
    hosts = []
    for margin in (0.1, 0.3, 0.5):
        bounds = replace(BOUNDS, margin=margin)
        hosts.append(len(after(vitals, Drs(unit=False).decide(vitals, bounds).treatments).hosts))
    assert hosts == [4, 5, 7]


def test_drs_scales_in_only_when_fewer_are_enough_for_a_while() -> None:
    quiet, busy = vitals_of([10.0] * 32, hosts=4), vitals_of([95.0] * 32, hosts=4)
    policy = Drs(patience=3)
    assert not policy.decide(quiet, BOUNDS).treatments
    assert not policy.decide(quiet, BOUNDS).treatments
    policy.decide(busy, BOUNDS)
    assert not policy.decide(quiet, BOUNDS).treatments
    assert not policy.decide(quiet, BOUNDS).treatments
    (treatment,) = policy.decide(quiet, BOUNDS).treatments
    assert treatment.kind == "scale_in"
    assert len(after(quiet, [treatment]).hosts) == 3
    assert not policy.decide(quiet, BOUNDS).treatments


def test_drs_does_not_flap_on_a_steady_load_with_noise() -> None:
    """A load for which 4 hosts are sometimes just enough and sometimes not causes only a few changes."""
    rng = np.random.default_rng(11)
    vitals, policy, changes = vitals_of([50.0] * 64, hosts=4), Drs(patience=20), 0
    for _ in range(2_000):
        noisy = replace(vitals, rate=rng.poisson(np.full(64, 49.5)).astype(np.float64))
        decision = policy.decide(noisy, BOUNDS)
        changes += len(decision.treatments)
        vitals = named(after(vitals, decision.treatments))
    assert changes <= 2


def test_drs_stays_within_the_limits_and_reports_missing_hosts() -> None:
    bounds = replace(BOUNDS, at_most=2)
    decision = Drs().decide(vitals_of([1_000.0] * 4, hosts=2), bounds)
    assert not decision.treatments
    assert "need more than 2 hosts" in decision.reasons[0]
    few = Drs(patience=1).decide(vitals_of([1.0] * 4, hosts=2), replace(BOUNDS, at_least=2))
    assert not few.treatments
    more = Drs().decide(vitals_of([1.0] * 4, hosts=1), replace(BOUNDS, at_least=2))
    assert [treatment.kind for treatment in more.treatments] == ["scale_out"]


def test_drs_divides_another_host_if_the_busiest_has_one_slot_only() -> None:
    vitals = replace(vitals_of([900.0] + [80.0] * 9), owner=np.array([0] + [1] * 9))
    (treatment,) = Drs().decide(vitals, BOUNDS).treatments
    assert (treatment.kind, treatment.source) == ("scale_out", "sum/1")


def test_drs_says_when_no_host_can_be_divided() -> None:
    decision = Drs().decide(vitals_of([900.0], hosts=1), BOUNDS)
    assert not decision.treatments
    assert "need more than 1 host for 1,000 ms" in decision.reasons[0]
    decision = Drs().decide(vitals_of([900.0, 0.0], hosts=1), BOUNDS)
    assert not decision.treatments
    assert decision.reasons[0].endswith(
        "need 2 hosts for 1,000 ms; there is 1, and none can be divided"
    )


def test_drs_lb_balances_also_while_it_waits_to_scale_in() -> None:
    vitals = vitals_of([700.0, 150.0, 10.0, 10.0, 1.0, 1.0], hosts=3, latency_ms=900.0)
    policy = DrsLb(patience=2)
    assert [treatment.kind for treatment in policy.decide(vitals, BOUNDS).treatments] == ["balance"]
    assert [treatment.kind for treatment in policy.decide(vitals, BOUNDS).treatments] == [
        "scale_in"
    ]


def test_drs_is_blind_to_skew_and_drs_lb_is_not() -> None:
    vitals = vitals_of([400.0, 400.0, 150.0, 10.0, 10.0, 10.0], latency_ms=900.0)
    assert not Drs().decide(vitals, BOUNDS).treatments
    (treatment,) = DrsLb().decide(vitals, BOUNDS).treatments
    assert (treatment.kind, treatment.source) == ("balance", "sum/0")
    then = after(vitals, [treatment])
    assert then.host_rate.max() < vitals.host_rate.max()
    calm = replace(vitals, latency_ms=np.full(2, 50.0))
    assert not DrsLb().decide(calm, BOUNDS).treatments


# -- ds2 ---------------------------------------------------------------------------------------------


def test_ds2_scales_to_the_target_utilisation() -> None:
    vitals = vitals_of([100.0] * 64, hosts=1)
    decision = over(Ds2(target=0.7), vitals, until_ms=5_000)[-1]
    then = after(vitals, decision.treatments)
    assert len(then.hosts) == int(np.ceil(6_400 / 700))
    assert counts(then) == [7, 6, 7, 6, 6, 7, 6, 7, 6, 6]
    assert np.all(np.diff(then.owner) >= 0)


def test_ds2_settles_after_the_start_and_after_a_change() -> None:
    policy, vitals = Ds2(settle_ms=5_000), vitals_of([25.0] * 64, hosts=1)
    decisions = over(policy, vitals, until_ms=17_000, every_ms=1_000)
    assert [n for n, decision in enumerate(decisions) if decision.treatments] == [5, 10, 15]


def test_ds2_does_nothing_near_the_target() -> None:
    for rate in (61.0, 70.0, 79.0):
        vitals = vitals_of([rate] * 40, hosts=4)
        assert not done(over(Ds2(), vitals, until_ms=200_000, every_ms=1_000))


def test_ds2_scales_in_after_a_while_to_the_most_that_was_needed() -> None:
    policy = Ds2(scale_in_ms=60_000)
    low, mid = vitals_of([10.0] * 40, hosts=4), vitals_of([33.0] * 40, hosts=4)
    assert not done(over(policy, low, until_ms=30_000, every_ms=1_000))
    assert not done(over(policy, replace(mid, now_ms=31_000.0), until_ms=40_000, every_ms=1_000))
    decisions = over(policy, replace(low, now_ms=41_000.0), until_ms=61_000, every_ms=1_000)
    first = next(decision for decision in decisions if decision.treatments)
    assert len(after(low, first.treatments).hosts) == 2
    assert "2 were enough for the last 60 s" in first.reasons[0]


def test_ds2_cancels_a_scale_in_when_the_load_returns() -> None:
    policy = Ds2(scale_in_ms=60_000, window_ms=2_000)
    low, high = vitals_of([10.0] * 40, hosts=4), vitals_of([70.0] * 40, hosts=4)
    for now in range(0, 300_000, 1_000):
        vitals = high if now % 50_000 < 5_000 else low
        assert not policy.decide(replace(vitals, now_ms=float(now)), BOUNDS).treatments


def test_ds2_adds_hosts_for_a_backlog() -> None:
    vitals = replace(vitals_of([70.0] * 20, hosts=2), backlog=np.full(20, 3_000.0))
    decision = over(Ds2(catch_up_ms=30_000), vitals, until_ms=5_000)[-1]
    assert len(after(vitals, decision.treatments).hosts) == 5
    assert "2,000/s for the backlog" in decision.reasons[0]


def test_ds2_is_blind_to_latency_and_skew() -> None:
    vitals = vitals_of([1_300.0, 100.0], hosts=2, latency_ms=60_000.0)
    assert not done(over(Ds2(), vitals, until_ms=100_000, every_ms=1_000))


def test_ds2_keeps_to_the_limits_at_once() -> None:
    many, few = vitals_of([10.0] * 40, hosts=4), vitals_of([10.0] * 40, hosts=1)
    decision = Ds2(settle_ms=0).decide(many, replace(BOUNDS, at_most=3))
    assert len(after(many, decision.treatments).hosts) == 1
    decision = Ds2(settle_ms=0).decide(few, replace(BOUNDS, at_least=2))
    assert len(after(few, decision.treatments).hosts) == 2
    full = vitals_of([100.0] * 40, hosts=3)
    decision = Ds2(settle_ms=0).decide(full, replace(BOUNDS, at_most=3))
    assert not decision.treatments
    assert "70 % needs 6, 1 to 3 are allowed" in decision.reasons[0]


def test_ds2_refuses_targets_that_make_no_sense() -> None:
    with pytest.raises(SettingError, match="target of 0"):
        Ds2(target=0)
    with pytest.raises(SettingError, match="a boundary below it"):
        Ds2(target=0.3, boundary=0.3)
