"""Success rates of steps and slots, over a simulated data plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.model import SLA, HostId, LatencyBound
from penstock.wire.report import Seen
from tests.driver.pretence import LOAD, PARTITIONS, Pretence, pretending
from tests.trials.control_trial import Watchful

A, B = HostId("sums/0"), HostId("sums/1")
P99 = LatencyBound(400, 1000, p99=True, step="sums")
ONLY_P99 = SLA(400, 1000, p99=True, step="sums")
BOTH = SLA(600, 3000, more=(P99,))


def epoch_of(on: Pretence, late: int, applied_ms: dict[HostId, float]) -> None:
    """An epoch of a second. Of 1,000 rows of each partition, `late` had arrived a second before it began."""
    plan, now_ms = on.begin(), on.now_ms
    times = (int(now_ms) - 1_000, int(now_ms) - 10)
    seen = [Seen(1_000, times, (late, 1_000 - late), loads={"sums": LOAD})] * PARTITIONS
    on.report(seen=seen)
    closed_ms = {
        host: dict.fromkeys(range(PARTITIONS), now_ms + ms) for host, ms in applied_ms.items()
    }
    on.end(plan, seen, dict.fromkeys((A, B), (100, 10.0)), now_ms + 1_000, closed_ms)


def test_a_p99_bound_of_a_step_is_judged_by_its_slowest_rows_and_not_by_their_mean() -> None:
    """The mean is far below the bound either way."""
    for late, kept in ((10, 1.0), (20, 0.0)):
        with pretending(Watchful(), sla=ONLY_P99) as on:
            for _ in range(5):
                epoch_of(on, late, {A: 100.0, B: 100.0})
            assert set(on.loop.success()) == {"sums: p99"}
            assert on.loop.success()["sums: p99"].minute == kept


def test_slots_are_judged_by_the_time_at_which_their_host_applied_them() -> None:
    with pretending(Watchful(), sla=BOTH) as on:
        for _ in range(7):
            epoch_of(on, 0, {A: 100.0, B: 500.0})
        success, slots = on.loop.success(), on.loop.slot_success()
    half = len(LOAD) // 2
    assert [slot.hour for slot in slots["sums: p99"]] == [1.0] * half + [0.0] * half
    assert success["sums: p99"].run == pytest.approx(0.5)
    assert [slot.run for slot in slots["sums: average"]] == [1.0] * len(LOAD)
    assert on.steps["sums"]._meters[True].counts.windows == 6, "one for each second"
    assert on.steps["sums"]._meters[False].counts.windows == 2, "one for each three seconds"


def test_channels_without_a_time_of_their_own_are_done_with_the_epoch() -> None:
    with pretending(Watchful(), sla=BOTH) as on:
        for _ in range(3):
            epoch_of(on, 0, {A: 100.0})
        assert on.loop.success()["sums: p99"].run == pytest.approx(0.5)


def test_a_loop_that_decides_nothing_measures_the_same(caplog: pytest.LogCaptureFixture) -> None:
    policy, rates = Watchful(), list[Any]()
    for decides in (True, False):
        with caplog.at_level("INFO"), pretending(policy, sla=BOTH, decides=decides) as on:
            for _ in range(7):
                epoch_of(on, 0, {A: 100.0, B: 900.0})
            rates.append(on.loop.slot_success())
            assert on.loop.machine.orders.steps["sums"].watched == ()
            if not decides:
                assert on.steps["sums"].decision is None
                assert not on.relocation.treated
    assert rates[0] == rates[1]


def test_steps_without_a_bound_have_no_rate() -> None:
    of_another = SLA(1000, 1000, step="others")
    with pretending(Watchful(), sla=of_another) as on:
        for _ in range(3):
            epoch_of(on, 0, {A: 100.0, B: 100.0})
        assert (on.loop.success(), on.loop.slot_success()) == ({}, {})


def test_slots_that_complete_nothing_are_judged_by_how_long_their_rows_wait() -> None:
    with pretending(Watchful()) as on:
        control = on.steps["sums"]
        for second in range(3):
            control.completed_in_all(np.full(len(LOAD), 10.0 * second), np.full(len(LOAD), 100.0))
            control.judge(1_000.0 * second)
        assert control.success["average"].rates().run == 1.0
        control.completed_in_all(np.full(len(LOAD), -1.0), np.full(len(LOAD), -1.0))
        control.examiner.arriving(4_000.0, np.full((1, len(LOAD)), 5.0), 1)
        control.judge(4_000.0)
        assert control.success["average"].rates().run == pytest.approx(2 / 4)


def test_a_steered_bound_is_the_one_that_slots_are_judged_by() -> None:
    with pretending(Watchful(), sla=BOTH) as on:
        for p99, kept in (("2s", 1.0), ("0.1s", 0.5)):
            on.steer(p99=p99, step="sums")
            for _ in range(5):
                epoch_of(on, 0, {A: 200.0, B: 200.0})
            assert on.loop.success()["sums: p99"].run == pytest.approx(kept, abs=0.1)
        assert (
            on.entries("setting")[-1]
            .facts["now"]
            .endswith("p99 latency <= 100 ms over any 1000 ms")
        )
        with pytest.raises(SettingError, match="no keyed step 'other'"):
            on.steer(latency="1s", step="other")
