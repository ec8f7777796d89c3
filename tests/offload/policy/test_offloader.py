"""When burst workers help, how much, and when that ends."""

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
    found = follow(Offloader(_PLAIN), [0.3, 0.6, 0.79, 0.7, 0.2] * 10)
    assert not any(one.carries or one.reasons for one in found)
    assert all(one.load > 0.7 for one in found if one.holds)


def test_one_observation_above_is_not_enough() -> None:
    found = follow(Offloader(_PLAIN), [0.5, 2.0, 0.5, 2.0, 0.5, 0.5])
    assert not any(one.carries for one in found)


def test_two_in_a_row_bring_burst_workers_that_leave_hosts_below_the_target() -> None:
    offloader = Offloader(_PLAIN)
    found = follow(offloader, [0.5, 0.5, 3.0, 3.0])
    assert [one.carries for one in found] == [False, False, False, True]
    # 0, 2,000 and 2,000 beyond capacity, a second apart: (0 + 4 * 2,000 + 2,000) / 3 at each host.
    assert found[-1].backlog == pytest.approx(2 * 10_000 / 3)
    assert host_load(seen(even(6000.0, 2), 2), found[-1]).max() < 0.7
    assert found[-1].workers >= (6000 - 1400) / 700


def test_once_the_backlog_is_gone_hosts_are_at_the_target() -> None:
    found = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20)
    assert found[-1].backlog == 0.0
    assert found[-1].load == pytest.approx(0.7, abs=0.02)
    assert found[-1].load_without == pytest.approx(3.0)
    assert found[-1].workers == 7  # 4,600 records a second, 700 each


def test_after_the_burst_all_is_as_before() -> None:
    found = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20 + [0.5] * 5)
    assert found[24].carries
    assert found[25].carries  # one observation is not enough for this either
    assert not found[-1].carries
    assert found[27].holds  # what a window remembers is of the burst
    assert not found[-1].holds
    assert switches(found) == 1
    assert "would have been below 80 %" in " ".join(r for one in found[25:] for r in one.reasons)


def test_a_load_that_is_stable_but_high_takes_its_rows_back() -> None:
    found = follow(Offloader(_PLAIN), [0.78] * 5 + [2.0] * 10 + [0.78] * 30)
    assert not found[-1].carries


def test_looks_in_quick_succession_are_one_observation() -> None:
    found = follow(Offloader(_PLAIN), [0.5] + [3.0] * 3, every_ms=90.0)
    assert not any(one.carries for one in found)


def test_shares_follow_a_burst_that_grows() -> None:
    found = follow(Offloader(_PLAIN), [0.5] * 5 + [1.5] * 10 + [5.0] * 15)
    assert 0 < found[14].workers < found[-1].workers
    assert found[-1].load == pytest.approx(0.7, abs=0.1)


def test_only_the_host_that_has_too_much_is_relieved() -> None:
    offloader, rates = Offloader(_PLAIN), np.array([500.0] * 4 + [100.0] * 4)
    for second in range(3):
        found = offloader.decide(seen(rates, 2), BOUNDS, 1000.0 * second)
    assert np.all(found.shares[:4] > 0.5)
    assert not found.shares[4:].any()


def test_a_hot_slot_gives_first() -> None:
    offloader, rates = Offloader(_PLAIN), np.array([10.0] * 19 + [1500.0])
    for second in range(8):
        found = offloader.decide(seen(rates, 1), BOUNDS, 1000.0 * second)
    assert found.shares[19] > 0.5
    assert not found.shares[:19].any()


def test_burst_workers_are_slower_or_faster() -> None:
    slow = follow(Offloader(replace(_PLAIN, speed=0.5)), [0.5] * 5 + [3.0] * 20)[-1]
    fast = follow(Offloader(_PLAIN), [0.5] * 5 + [3.0] * 20)[-1]
    assert slow.workers == 14
    assert slow.shares == pytest.approx(fast.shares)


def test_with_dear_merging_more_rows_go() -> None:
    dear = follow(Offloader(replace(_PLAIN, partials_per_row=0.3)), [0.5] * 5 + [1.2] * 20)[-1]
    cheap = follow(Offloader(_PLAIN), [0.5] * 5 + [1.2] * 20)[-1]
    assert dear.shares.max() > cheap.shares.max()
    assert dear.load == pytest.approx(0.7, abs=0.05)


def test_measured_partials_count() -> None:
    offloader = Offloader(_PLAIN)
    for _ in range(60):
        offloader.merged(rows=1000, partials=250)
    assert offloader.merge == pytest.approx(0.25, abs=0.01)


def test_where_merging_costs_as_much_as_it_saves_hosts_do_it_all() -> None:
    offloader = Offloader(_PLAIN)
    assert follow(offloader, [0.5] * 3 + [3.0] * 5)[-1].carries
    for _ in range(100):
        offloader.merged(rows=10, partials=20)
    found = follow(offloader, [3.0] * 3, from_ms=8_000.0)
    assert not found[-1].carries
    assert not found[-1].holds
    assert found[-1].warm == 0


def test_too_few_burst_workers_do_not_hold_the_switch() -> None:
    found = follow(Offloader(replace(_PLAIN, at_most=1)), [0.5] * 3 + [3.0] * 10)
    assert found[-1].workers == 1
    assert found[-1].load > 0.8
    assert not found[-1].holds
    told = [one for one in found if one.reasons]
    assert len(told) <= 3  # nothing new is told while nothing changes
    assert "there are no more functions" in told[0].reasons[-1]


def test_burst_workers_are_kept_warm_for_five_times_the_stable_load() -> None:
    found = follow(Offloader(_PLAIN), [0.6] * 60, hosts=4)
    # 5 * 2,400 less 4 * 700, 700 each
    assert found[-1].warm == 14
    none = follow(Offloader(_PLAIN), [0.1] * 60, hosts=4)
    assert none[-1].warm == 0
    few = follow(Offloader(replace(_PLAIN, at_most=5)), [0.6] * 60, hosts=4)
    assert few[-1].warm == 5


def test_a_burst_does_not_change_what_is_stable() -> None:
    found = follow(Offloader(_PLAIN), [0.6] * 60 + [6.0] * 60, hosts=4)
    assert found[-1].warm == found[59].warm


def test_capacity_is_that_of_stable_times() -> None:
    offloader = Offloader(_PLAIN)
    follow(offloader, [0.6] * 30)
    slow = replace(seen(even(2.0 * 2 * CAPACITY, 2), 2), service_rate=np.full(2, 250.0))
    for second in range(30, 50):
        found = offloader.decide(slow, BOUNDS, 1000.0 * second)
    assert found.load_without == pytest.approx(2.0)


def test_patience_has_an_end() -> None:
    offloader = Offloader(replace(_PLAIN, patience_ms=20_000.0))
    found = follow(offloader, [0.5] * 5 + [3.0] * 40)
    first = next(n for n, one in enumerate(found) if one.carries)
    lasts = next(n for n, one in enumerate(found) if one.lasts)
    assert lasts - first == 21
    assert found[first].holds
    assert not found[lasts].holds
    assert all(one.lasts and one.carries for one in found[lasts:])
    assert "time for hosts" in found[lasts].reasons[-1]
    again = follow(offloader, [0.5] * 5, from_ms=45_000.0)
    assert not again[-1].lasts


def test_burst_workers_that_cost_more_than_hosts_would_are_reason_enough() -> None:
    costs = Costs(least_host_ms=20_000.0)
    found = follow(Offloader(replace(_PLAIN, costs=costs)), [0.5] * 5 + [3.0] * 60)
    lasts = next(n for n, one in enumerate(found) if one.lasts)
    # A function costs 1.65 times as much as a host, of which it is busy to 70 %.
    assert 15 <= lasts - 6 <= 25
    assert "cost more" in found[lasts].reasons[-1]


def test_what_burst_workers_really_cost_counts() -> None:
    offloader = Offloader(_PLAIN)
    for n, load in enumerate([0.5] * 3 + [3.0] * 10):
        vitals = seen(even(load * 2 * CAPACITY, 2), 2)
        found = offloader.decide(vitals, BOUNDS, 1000.0 * n, spent=5.0 if n < 10 else 500.0)
        assert found.lasts == (n >= 10)


def test_hosts_that_came_make_burst_workers_needless() -> None:
    offloader = Offloader(replace(_PLAIN, patience_ms=5_000.0))
    assert follow(offloader, [0.5] * 3 + [2.0] * 20)[-1].lasts
    found = follow(offloader, [0.5] * 4, hosts=8, from_ms=23_000.0)
    assert found[0].carries
    assert not found[-1].carries
    assert not found[-1].lasts


def test_nothing_is_decided_on_what_is_not_known() -> None:
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
        found = offloader.decide(vitals, half, 1000.0 * second)
    assert found.carries
    assert found.load_without == pytest.approx(1.2)


def test_the_deadline_is_the_interval_of_windows_but_no_later_than_the_sla() -> None:
    assert recovery_ms(250, SLA(1000, 2000)) == 250.0
    assert recovery_ms(60_000, SLA(1000, 2000)) == 2000.0
    quick = follow(Offloader(replace(_PLAIN, deadline_ms=500.0)), [0.5] * 3 + [3.0] * 2)[-1]
    slow = follow(Offloader(replace(_PLAIN, deadline_ms=10_000.0)), [0.5] * 3 + [3.0] * 2)[-1]
    assert quick.workers > slow.workers


@pytest.mark.parametrize(
    "wrong", [{"low": 0.7}, {"high": 1.2}, {"speed": 0.0}, {"at_most": -1}, {"deadline_ms": 0.0}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        replace(OffloadSettings(), **wrong)


def test_the_journal_is_told_with_figures_and_money() -> None:
    found = follow(Offloader(_PLAIN), [0.5] * 3 + [3.0] * 2)[-1]
    entry = offload(At(STEP, 5_000.0, 7), found, Money(0.5, 0.25))
    assert entry.event == "offload"
    assert entry.facts["functions"] == found.workers
    assert entry.facts["slots"] == "0-7"
    assert entry.facts["money"] == {"hosts": 0.5, "functions": 0.25, "total": 0.75}
    assert "sum/0 has been above 80 % for 2 observations" in entry.text
    nothing = offload(At(STEP, 5_000.0), Offloading(np.zeros(8), 0, 0))
    assert nothing.text == "functions carry nothing"
    assert nothing.facts["money"] is None


def test_burst_workers_that_were_of_no_help_get_another_chance_when_all_is_stable() -> None:
    offloader = Offloader(_PLAIN)
    follow(offloader, [0.5] * 3 + [3.0] * 5)
    for _ in range(100):
        offloader.merged(rows=10, partials=20)
    assert not offloader.able
    assert not follow(offloader, [3.0] * 3, from_ms=8_000.0)[-1].carries
    follow(offloader, [0.5] * 3, from_ms=11_000.0)
    assert offloader.able
    assert follow(offloader, [3.0] * 5, from_ms=14_000.0)[-1].carries


def test_what_was_let_go_of_must_be_decided_anew() -> None:
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
    """One epoch ends and the next is read at the same time: a burst must not be missed by it."""
    offloader = Offloader(OffloadSettings())
    for n in range(4):
        offloader.decide(seen(even(1_200.0, 2), 2), BOUNDS, 1_000.0 * n)
    found = offloader.decide(seen(even(6_000.0, 2), 2), BOUNDS, 3_000.0)
    assert found.holds, "one look is enough to keep hosts from being asked for"
    assert offloader.decide(seen(even(6_000.0, 2), 2), BOUNDS, 4_000.0).carries


def test_burst_workers_that_must_be_started_are_asked_for_and_used_when_they_are_there() -> None:
    slow = OffloadSettings(start_ms=500.0, warm_for=3.0, partials_per_row=0.0)
    offloader = Offloader(slow)
    found = follow(offloader, [0.6] * 20 + [3.0] * 12, every_ms=300.0)[20:]
    first = next(n for n, one in enumerate(found) if one.carries)
    ready = 4  # for 3 times the stable 1,200/s, less what two hosts take: 2,200/s at 70 %
    assert found[first].workers == ready
    assert found[first].warm > 2 * ready, "more are asked for"
    later = [one for n, one in enumerate(found) if 300.0 * (n - first) >= 500.0]
    assert later[0].workers > ready, "and used as soon as they are there"
    assert any("functions are ready" in reason for one in later for reason in one.reasons)
    assert all(one.holds for one in found), "no host is asked for because functions start"


def test_who_has_none_that_are_ready_waits_for_them() -> None:
    """Half a second is less than hosts alone would need for an epoch of seconds."""
    offloader = Offloader(OffloadSettings(start_ms=500.0, warm_for=0.0))
    found = follow(offloader, [0.6] * 5 + [6.0] * 2, every_ms=1_000.0)
    assert found[-1].workers > 10


def test_what_other_steps_take_of_the_time_is_not_there_for_a_host() -> None:
    """At 60 % a host is as it should be; not if others take half of the time it works in."""
    vitals = replace(seen(even(1_200.0, 2), 2), epoch_cost_ms=100.0)
    wide, narrow = replace(BOUNDS, share=0.5, left=0.95), replace(BOUNDS, share=0.5, left=0.55)
    for bounds, carried in ((wide, False), (narrow, True)):
        offloader = Offloader(_PLAIN)
        found = [offloader.decide(vitals, bounds, 1_000.0 * n) for n in range(5)]
        assert found[-1].carries == carried
    # A share that leaves the host at 70 % of what is its part of the time; a little has piled up.
    assert 0.0 <= found[-1].shares.max() - (1.0 - 0.7 * 0.55 / 0.6) < 0.15


def test_no_more_burst_workers_than_are_ready_are_told_to_couriers() -> None:
    slow, quick = Offloader(OffloadSettings(start_ms=500.0)), Offloader(OffloadSettings())
    for offloader in (slow, quick):
        follow(offloader, [0.6] * 3)
    assert quick.limits.at_most == 200
    assert slow.limits.at_most == slow.decide(seen(even(1_200.0, 2), 2), BOUNDS, 5_000.0).warm < 20
