"""The offloader of a step: when burst workers help, how much, and when that ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.control.journal.entries import offload
from penstock.control.journal.entry import At
from penstock.control.money import Costs, Money
from penstock.control.treat.offloading import Offloading, OffloadSettings, recovery_ms
from penstock.errors import SettingError
from penstock.model import SLA
from penstock.offload.policy.offloader import Offloader
from tests.offload.policy.loop import (
    BOUNDS,
    CAPACITY,
    STEP,
    even,
    follow,
    host_load,
    seen,
    switches,
)

_PLAIN = OffloadSettings(partials_per_row=0.0)


def test_a_stable_load_needs_no_burst_workers() -> None:
    decisions = follow(Offloader(_PLAIN), [0.3, 0.6, 0.79, 0.7, 0.2] * 10)
    assert not any(decision.carries or decision.reasons for decision in decisions)
    assert all(decision.load > 0.7 for decision in decisions if decision.holds)


def test_one_observation_above_is_not_enough() -> None:
    decisions = follow(Offloader(_PLAIN), [0.5, 2.0, 0.5, 2.0, 0.5, 0.5])
    assert not any(decision.carries for decision in decisions)


def test_two_in_a_row_bring_burst_workers_that_leave_hosts_below_the_target() -> None:
    offloader = Offloader(_PLAIN)
    decisions = follow(offloader, [0.5, 0.5, 3.0, 3.0])
    assert [decision.carries for decision in decisions] == [False, False, False, True]
    # 0, 2,000 and 2,000 beyond capacity, a second apart: (0 + 4 * 2,000 + 2,000) / 3 at each host.
    assert decisions[-1].backlog == pytest.approx(2 * 10_000 / 3)
    assert host_load(seen(even(6000.0, 2), 2), decisions[-1]).max() < 0.7
    assert decisions[-1].workers >= (6000 - 1400) / 700


def test_once_the_backlog_is_gone_hosts_are_at_the_target() -> None:
    decisions = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20)
    assert decisions[-1].backlog == 0.0
    assert decisions[-1].load == pytest.approx(0.7, abs=0.02)
    assert decisions[-1].load_without == pytest.approx(3.0)
    assert decisions[-1].workers == 7  # 4,600 records a second, 700 each


def test_after_the_burst_hosts_take_all_rows_again() -> None:
    decisions = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20 + [0.5] * 5)
    assert decisions[24].carries
    assert decisions[25].carries  # one observation is not enough for this either
    assert not decisions[-1].carries
    assert decisions[27].holds  # the window still contains the burst
    assert not decisions[-1].holds
    assert switches(decisions) == 1
    assert "would have been below 80 %" in " ".join(
        r for decision in decisions[25:] for r in decision.reasons
    )


def test_a_load_that_is_stable_but_high_takes_its_rows_back() -> None:
    decisions = follow(Offloader(_PLAIN), [0.78] * 5 + [2.0] * 10 + [0.78] * 30)
    assert not decisions[-1].carries


def test_observations_in_quick_succession_count_as_one() -> None:
    decisions = follow(Offloader(_PLAIN), [0.5] + [3.0] * 3, every_ms=90.0)
    assert not any(decision.carries for decision in decisions)


def test_shares_follow_a_burst_that_grows() -> None:
    decisions = follow(Offloader(_PLAIN), [0.5] * 5 + [1.5] * 10 + [5.0] * 15)
    assert 0 < decisions[14].workers < decisions[-1].workers
    assert decisions[-1].load == pytest.approx(0.7, abs=0.1)


def test_only_the_host_that_has_too_much_is_relieved() -> None:
    offloader, rates = Offloader(_PLAIN), np.array([500.0] * 4 + [100.0] * 4)
    for second in range(3):
        decision = offloader.decide(seen(rates, 2), BOUNDS, 1000.0 * second)
    assert np.all(decision.shares[:4] > 0.5)
    assert not decision.shares[4:].any()


def test_a_hot_slot_is_offloaded_first() -> None:
    offloader, rates = Offloader(_PLAIN), np.array([10.0] * 19 + [1500.0])
    for second in range(8):
        decision = offloader.decide(seen(rates, 1), BOUNDS, 1000.0 * second)
    assert decision.shares[19] > 0.5
    assert not decision.shares[:19].any()


def test_burst_workers_are_slower_or_faster() -> None:
    slow = follow(Offloader(replace(_PLAIN, speed=0.5)), [0.5] * 5 + [3.0] * 20)[-1]
    fast = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20)[-1]
    assert slow.workers == 14
    assert slow.shares == pytest.approx(fast.shares)


def test_with_expensive_merging_more_rows_are_offloaded() -> None:
    dear = follow(Offloader(replace(_PLAIN, partials_per_row=0.3)), [0.5] * 5 + [1.2] * 20)[-1]
    cheap = follow(Offloader(_PLAIN), [0.5] * 5 + [1.2] * 20)[-1]
    assert dear.shares.max() > cheap.shares.max()
    assert dear.load == pytest.approx(0.7, abs=0.05)


def test_measured_partials_count() -> None:
    offloader = Offloader(_PLAIN)
    for _ in range(60):
        offloader.merged(rows=1000, partials=250)
    assert offloader.merge == pytest.approx(0.25, abs=0.01)


def test_if_merging_costs_as_much_as_it_saves_hosts_take_all_rows() -> None:
    offloader = Offloader(_PLAIN)
    assert follow(offloader, [0.5] * 3 + [3.0] * 5)[-1].carries
    for _ in range(100):
        offloader.merged(rows=10, partials=20)
    decisions = follow(offloader, [3.0] * 3, from_ms=8_000.0)
    assert not decisions[-1].carries
    assert not decisions[-1].holds
    assert decisions[-1].warm == 0


def test_too_few_burst_workers_do_not_hold_the_switch() -> None:
    decisions = follow(Offloader(replace(_PLAIN, at_most=1)), [0.5] * 3 + [3.0] * 10)
    assert decisions[-1].workers == 1
    assert decisions[-1].load > 0.8
    assert not decisions[-1].holds
    explained = [decision for decision in decisions if decision.reasons]
    assert len(explained) <= 3  # no new reasons while nothing changes
    assert "there are no more functions" in explained[0].reasons[-1]


def test_burst_workers_are_kept_warm_for_five_times_the_stable_load() -> None:
    decisions = follow(Offloader(_PLAIN), [0.6] * 60, hosts=4)
    # 5 * 2,400 less 4 * 700, 700 each
    assert decisions[-1].warm == 14
    none = follow(Offloader(_PLAIN), [0.1] * 60, hosts=4)
    assert none[-1].warm == 0
    few = follow(Offloader(replace(_PLAIN, at_most=5)), [0.6] * 60, hosts=4)
    assert few[-1].warm == 5


def test_a_burst_does_not_change_what_is_stable() -> None:
    decisions = follow(Offloader(_PLAIN), [0.6] * 60 + [6.0] * 60, hosts=4)
    assert decisions[-1].warm == decisions[59].warm


def test_capacity_is_that_of_stable_times() -> None:
    offloader = Offloader(_PLAIN)
    follow(offloader, [0.6] * 30)
    slow = replace(seen(even(2.0 * 2 * CAPACITY, 2), 2), service_rate=np.full(2, 250.0))
    for second in range(30, 50):
        decision = offloader.decide(slow, BOUNDS, 1000.0 * second)
    assert decision.load_without == pytest.approx(2.0)


def test_patience_has_an_end() -> None:
    offloader = Offloader(replace(_PLAIN, patience_ms=20_000.0))
    decisions = follow(offloader, [0.5] * 5 + [3.0] * 40)
    first = next(n for n, decision in enumerate(decisions) if decision.carries)
    lasts = next(n for n, decision in enumerate(decisions) if decision.lasts)
    assert lasts - first == 21
    assert decisions[first].holds
    assert not decisions[lasts].holds
    assert all(decision.lasts and decision.carries for decision in decisions[lasts:])
    assert "time for hosts" in decisions[lasts].reasons[-1]
    again = follow(offloader, [0.5] * 5, from_ms=45_000.0)
    assert not again[-1].lasts


def test_burst_workers_that_cost_more_than_hosts_would_are_reason_enough() -> None:
    costs = Costs(least_host_ms=20_000.0)
    decisions = follow(Offloader(replace(_PLAIN, costs=costs)), [0.5] * 5 + [3.0] * 60)
    lasts = next(n for n, decision in enumerate(decisions) if decision.lasts)
    # A function costs 1.65 times as much as a host, and is 70 % busy.
    assert 15 <= lasts - 6 <= 25
    assert "cost more" in decisions[lasts].reasons[-1]


def test_what_burst_workers_really_cost_counts() -> None:
    offloader = Offloader(_PLAIN)
    for n, load in enumerate([0.5] * 3 + [3.0] * 10):
        vitals = seen(even(load * 2 * CAPACITY, 2), 2)
        decision = offloader.decide(vitals, BOUNDS, 1000.0 * n, spent=5.0 if n < 10 else 500.0)
        assert decision.lasts == (n >= 10)


def test_new_hosts_end_the_use_of_burst_workers() -> None:
    offloader = Offloader(replace(_PLAIN, patience_ms=5_000.0))
    assert follow(offloader, [0.5] * 3 + [2.0] * 20)[-1].lasts
    decisions = follow(offloader, [0.5] * 4, hosts=8, from_ms=23_000.0)
    assert decisions[0].carries
    assert not decisions[-1].carries
    assert not decisions[-1].lasts


def test_without_valid_vitals_nothing_changes() -> None:
    offloader = Offloader(_PLAIN)
    unknown = replace(seen(even(5000.0, 2), 2), service_rate=np.full(2, np.nan))
    invalid = replace(seen(even(5000.0, 2), 2), valid=False)
    for n in range(6):
        assert not offloader.decide(unknown, BOUNDS, 1000.0 * n).carries
        assert not offloader.decide(invalid, BOUNDS, 1000.0 * n + 500).carries


def test_a_step_has_only_its_share_of_an_epoch() -> None:
    half = replace(BOUNDS, share=0.5)
    offloader = Offloader(_PLAIN)
    for second in range(5):
        vitals = replace(seen(even(1200.0, 2), 2), epoch_cost_ms=50.0)
        decision = offloader.decide(vitals, half, 1000.0 * second)
    assert decision.carries
    assert decision.load_without == pytest.approx(1.2)


def test_the_deadline_is_the_interval_of_windows_but_no_later_than_the_sla() -> None:
    assert recovery_ms(250, SLA(1000, 2000)) == 250.0
    assert recovery_ms(60_000, SLA(1000, 2000)) == 2000.0
    quick = follow(Offloader(replace(_PLAIN, deadline_ms=500.0)), [0.5] * 3 + [3.0] * 2)[-1]
    slow = follow(Offloader(replace(_PLAIN, deadline_ms=10_000.0)), [0.5] * 3 + [3.0] * 2)[-1]
    assert quick.workers > slow.workers


@pytest.mark.parametrize(
    "wrong", [{"low": 0.7}, {"high": 1.2}, {"speed": 0.0}, {"at_most": -1}, {"deadline_ms": 0.0}]
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        replace(OffloadSettings(), **wrong)


def test_the_journal_entry_has_figures_and_cost() -> None:
    decision = follow(Offloader(_PLAIN), [0.5] * 3 + [3.0] * 2)[-1]
    entry = offload(At(STEP, 5_000.0, 7), decision, Money(0.5, 0.25))
    assert entry.event == "offload"
    assert entry.facts["functions"] == decision.workers
    assert entry.facts["slots"] == "0-7"
    assert entry.facts["money"] == {"hosts": 0.5, "functions": 0.25, "total": 0.75}
    assert "sum/0 has been above 80 % for 2 observations" in entry.text
    nothing = offload(At(STEP, 5_000.0), Offloading(np.zeros(8), 0, 0))
    assert nothing.text == "functions carry nothing"
    assert nothing.facts["money"] is None


def test_burst_workers_that_could_not_help_are_tried_again_when_the_load_is_stable() -> None:
    offloader = Offloader(_PLAIN)
    follow(offloader, [0.5] * 3 + [3.0] * 5)
    for _ in range(100):
        offloader.merged(rows=10, partials=20)
    assert not offloader.able
    assert not follow(offloader, [3.0] * 3, from_ms=8_000.0)[-1].carries
    follow(offloader, [0.5] * 3, from_ms=11_000.0)
    assert offloader.able
    assert follow(offloader, [3.0] * 5, from_ms=14_000.0)[-1].carries


def test_after_a_stop_offloading_must_be_decided_again() -> None:
    offloader = Offloader(_PLAIN)
    assert follow(offloader, [0.5] * 3 + [3.0] * 5)[-1].carries
    offloader.let_go(8_000.0)
    first, second = follow(offloader, [3.0] * 2, from_ms=8_500.0)
    assert not first.carries
    assert second.carries


def test_other_settings_hold_from_the_next_decision_on() -> None:
    offloader = Offloader(_PLAIN)
    assert follow(offloader, [0.5] * 3 + [3.0] * 5)[-1].workers > 2
    offloader.steer(replace(_PLAIN, at_most=0))
    none = follow(offloader, [3.0], from_ms=8_000.0)[-1]
    assert not none.carries
    assert none.reasons[0] == "functions were turned off"
    offloader.steer(replace(_PLAIN, at_most=2))
    assert follow(offloader, [3.0] * 3, from_ms=9_000.0)[-1].workers == 2


def test_arrivals_that_change_within_a_moment_are_an_observation() -> None:
    """One epoch ends and the next is read at the same time. A burst must not be missed because of that."""
    offloader = Offloader(OffloadSettings())
    for n in range(4):
        offloader.decide(seen(even(1_200.0, 2), 2), BOUNDS, 1_000.0 * n)
    decision = offloader.decide(seen(even(6_000.0, 2), 2), BOUNDS, 3_000.0)
    assert decision.holds, "one observation is enough to stop requests for hosts"
    assert offloader.decide(seen(even(6_000.0, 2), 2), BOUNDS, 4_000.0).carries


def test_burst_workers_with_a_start_time_are_requested_and_used_when_ready() -> None:
    slow = OffloadSettings(start_ms=500.0, warm_for=3.0, partials_per_row=0.0)
    offloader = Offloader(slow)
    decisions = follow(offloader, [0.6] * 20 + [3.0] * 12, every_ms=300.0)[20:]
    first = next(n for n, decision in enumerate(decisions) if decision.carries)
    ready = 4  # for 3 times the stable 1,200/s, minus the part of two hosts: 2,200/s at 70 %
    assert decisions[first].workers == ready
    assert decisions[first].warm > 2 * ready, "more are requested"
    later = [decision for n, decision in enumerate(decisions) if 300.0 * (n - first) >= 500.0]
    assert later[0].workers > ready, "and used as soon as they are ready"
    assert any("functions are ready" in reason for decision in later for reason in decision.reasons)
    assert all(decision.holds for decision in decisions), (
        "no host is requested while functions start"
    )


def test_without_ready_burst_workers_rows_wait_for_their_start() -> None:
    """Half a second is less than hosts alone would need for an epoch that takes seconds."""
    offloader = Offloader(OffloadSettings(start_ms=500.0, warm_for=0.0))
    decisions = follow(offloader, [0.6] * 5 + [6.0] * 2, every_ms=1_000.0)
    assert decisions[-1].workers > 10


def test_a_host_has_only_the_time_that_other_steps_leave() -> None:
    """A host at 60 % load is fine, but not if other steps take half of its time."""
    vitals = replace(seen(even(1_200.0, 2), 2), epoch_cost_ms=100.0)
    wide, narrow = replace(BOUNDS, share=0.5, left=0.95), replace(BOUNDS, share=0.5, left=0.55)
    for bounds, carried in ((wide, False), (narrow, True)):
        offloader = Offloader(_PLAIN)
        decisions = [offloader.decide(vitals, bounds, 1_000.0 * n) for n in range(5)]
        assert decisions[-1].carries == carried
    # The share leaves the host at 70 % of its part of the time; a small backlog has built up.
    assert 0.0 <= decisions[-1].shares.max() - (1.0 - 0.7 * 0.55 / 0.6) < 0.15


def test_couriers_may_use_no_more_burst_workers_than_are_ready() -> None:
    slow, quick = Offloader(OffloadSettings(start_ms=500.0)), Offloader(OffloadSettings())
    for offloader in (slow, quick):
        follow(offloader, [0.6] * 3)
    assert quick.limits.at_most == 200
    assert slow.limits.at_most == slow.decide(seen(even(1_200.0, 2), 2), BOUNDS, 5_000.0).warm < 20
