"""Burst workers for a flow without hosts: they help couriers as they help hosts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock import codec
from penstock.control.couriers import CourierControl
from penstock.control.journal.journal import Journal
from penstock.control.treat.decision import Bounds
from penstock.errors import PenstockError
from penstock.model import SLA, StepId
from penstock.offload.policy.flow import NO_ANSWER
from penstock.plan.epoch import EpochPlan, Offload
from tests.offload.bursts import CAPACITY, SEGMENT, mapping
from tests.offload.bursts import offload_of as carried

STABLE = (0.6 * CAPACITY, 0.6 * CAPACITY)
BURST = (4 * STABLE[0], 4 * STABLE[1])


def test_a_burst_goes_to_burst_workers_and_comes_back() -> None:
    with mapping() as trial:
        assert not any(map(carried, trial.run(STABLE, 10)))
        during = trial.run(BURST, 30)
        assert sum(carried(plan) is None for plan in during) <= 3, "it takes two observations"
        busy_ms = trial.now_ms - trial._since_ms
        assert busy_ms < 500, "epochs stay short"
        after = trial.run(STABLE, 20)
        assert carried(after[-1]) is None
        entries = trial.entries("offload")
        assert entries[0].step == SEGMENT
        assert entries[0].facts["functions"] > 0
        assert entries[-1].facts["functions"] == 0


def test_an_epoch_that_is_too_long_is_shortened_at_once() -> None:
    """A reflex limits the work: no courier is busy for as long as all its rows would take."""
    with mapping() as trial:
        trial.run(STABLE, 10)
        plan = trial.rates(*BURST)
        assert carried(plan) is None, "no decision has been made yet"
        plain_ms = 1000 * BURST[0] * 0.25 / CAPACITY
        assert trial.busy_ms[-1] < 0.5 * plain_ms


def test_couriers_are_reported_like_hosts() -> None:
    with mapping() as trial:
        json.dumps(trial.loop.facts(), allow_nan=False)
        trial.run(STABLE, 10)
        trial.run(BURST, 5)
        facts = json.loads(json.dumps(trial.loop.facts(), allow_nan=False))
        assert facts["functions"]["state"] == "up"
        couriers = facts["steps"][SEGMENT]
        assert [host["host"] for host in couriers["hosts"]] == [f"{SEGMENT}/0", f"{SEGMENT}/1"]
        assert (couriers["at_least"], couriers["at_most"]) == (2, 2)
        assert 0 < couriers["offload"]["redirected"] <= couriers["offload"]["rate"]
        vitals = trial.control.vitals
        assert vitals is not None
        assert vitals.service_rate == pytest.approx([CAPACITY, CAPACITY], rel=0.01)
        assert vitals.rate == pytest.approx(BURST, rel=0.2), "rows of functions are included"


def test_only_burst_workers_can_help_however_long_a_burst_lasts() -> None:
    with mapping(patience="5s") as trial:
        trial.run(STABLE, 10)
        assert all(map(carried, trial.run(BURST, 60)[5:]))
        assert not any(entry.facts["lasts"] for entry in trial.entries("offload"))
        assert trial.entries("began") == trial.entries("refused") == []


def test_only_the_couriers_with_too_much_are_relieved_and_they_get_the_burst_workers() -> None:
    with mapping() as trial:
        trial.run(STABLE, 10)
        trial.run((5 * CAPACITY, 0.3 * CAPACITY), 30)
        offload = trial.offload
        assert offload is not None
        assert offload.shares[0] > 0.7
        assert offload.shares[1] == 0
        assert offload.at_once(0, 2) == offload.workers > 4


def test_all_burst_workers_are_used_if_partitions_are_uneven() -> None:
    """With the same number for all couriers, the largest partition would take longest."""
    rates = (4 * CAPACITY, CAPACITY, CAPACITY, CAPACITY)
    with mapping() as trial:
        trial.run([0.5 * CAPACITY] * 4, 10)
        trial.run(rates, 30)
        offload = trial.offload
        assert offload is not None
        each = [offload.at_once(n, 4) for n in range(4)]
        assert each[0] > 2 * each[1]
        rows = np.array(rates) * offload.shares
        waits = rows / each
        assert waits.max() < 2 * rows.sum() / offload.workers


@pytest.mark.parametrize("functions", range(1, 12))
def test_no_more_burst_workers_are_requested_than_the_limit(functions: int) -> None:
    """The limit is on concurrent requests, but each courier may always use one."""
    offload = Offload(np.ones(1), functions, 500)
    for partitions in range(1, 9):
        each = [offload.at_once(n, partitions) for n in range(partitions)]
        assert sum(each) == max(functions, partitions)
        assert max(each) - min(each) <= 1


def test_couriers_that_run_one_after_the_other_count_as_one() -> None:
    """There are twenty partitions, and Spark has task slots for two of them."""
    with mapping(together=2) as trial:
        trial.run([STABLE[0] / 10] * 20, 10)
        assert trial.couriers == (f"{SEGMENT}/0", f"{SEGMENT}/1")
        trial.run([BURST[0] / 10] * 20, 20)
        offload = trial.offload
        assert offload is not None
        assert len(offload.shares) == 20
        each = [offload.at_once(n, 20) for n in range(20)]
        assert 2 * each[0] >= offload.workers - 1 >= 3, "two at a time keep all of them busy"
        vitals = trial.control.vitals
        assert vitals is not None
        assert vitals.service_rate == pytest.approx([CAPACITY, CAPACITY], rel=0.01)


@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_the_number_of_partitions_may_change(partitions: int) -> None:
    """The first plan after the change uses the earlier decision: one share for all."""
    total = 4.8 * CAPACITY
    with mapping() as trial:
        trial.run([STABLE[0] / 2] * 4, 10)
        trial.run([total / 4] * 4, 10)
        before = trial.offload
        assert before is not None
        plan = trial.rates(*[total / partitions] * partitions)
        [(_, offload)] = plan.map_offloads
        assert offload.shares == pytest.approx([before.shares.mean()])
        trial.run([total / partitions] * partitions, 20)
        assert len(trial.couriers) == partitions
        relieved = total > 0.8 * partitions * CAPACITY
        assert (trial.offload is not None) == relieved
        trial.run([STABLE[0] / partitions] * partitions, 20)
        assert trial.offload is None
        assert trial.entries("refused") == []


def test_an_epoch_without_reports_of_all_couriers_is_skipped() -> None:
    with mapping() as trial:
        trial.run(STABLE, 10)
        plan = trial.plans[-1]
        trial.loop.begin(plan)
        trial.loop.sealed(plan, [], [], trial.now_ms, trial.now_ms)
        assert trial.entries("refused") == []
        assert len(trial.couriers) == 2


def test_burst_workers_that_do_not_answer_are_paused() -> None:
    with mapping() as trial:
        trial.run(STABLE, 10)
        trial.run(BURST, 5)
        trial.answers = False
        for _ in range(3):
            trial.rates(*BURST)
        assert trial.offload is None
        [out] = [entry for entry in trial.entries("offload") if NO_ANSWER in entry.facts["reasons"]]
        assert out.step == SEGMENT


def test_a_dry_run_only_reports() -> None:
    with mapping(dry_run=True) as trial:
        trial.run(STABLE, 10)
        plans = trial.run([0.95 * CAPACITY] * 2, 20)
        assert not any(plan.map_offloads for plan in plans)
        first = trial.entries("offload")[0]
        assert first.text.startswith("dry run, would be: functions carry")
        trial.steer(dry_run=False)
        trial.run([0.95 * CAPACITY] * 2, 20)
        assert trial.offload is not None


def test_steering_turns_burst_workers_off_and_changes_no_number_of_couriers() -> None:
    with mapping() as trial:
        trial.run(STABLE, 10)
        trial.run(BURST, 5)
        facts = trial.steer(functions_at_most=0, at_most=3, policy="static(3)")
        assert facts["steps"][SEGMENT]["at_most"] == 2
        trial.run([0.95 * CAPACITY] * 2, 3)
        assert trial.offload is None
        assert trial.entries("began") == []
        with pytest.raises(PenstockError):
            trial.steer(functions_at_most=-1)


def test_burst_workers_are_kept_warm_for_couriers_too() -> None:
    with mapping() as trial:
        trial.run(STABLE, 10)
        five_times = 5 * sum(STABLE) / CAPACITY
        offloading = trial.control.offloading
        assert offloading is not None
        assert 0.5 * five_times < offloading.warm < 2 * five_times


def test_burst_workers_are_ended_when_the_query_ends() -> None:
    with mapping() as trial:
        assert trial.loop.facts()["functions"]["state"] == "up"
        trial.keeper.stop()
        assert trial.loop.facts()["functions"]["state"] == "ended"


def test_a_plan_round_trips_with_its_offloads() -> None:
    offload = Offload(np.array([0.0, 1.0]), 3, 500, per_courier=(1, 2))
    plan = EpochPlan(7, 0, 2, (), "", "there", ((SEGMENT, offload),), (SEGMENT,))
    decoded = codec.decode(codec.encode(plan), EpochPlan)
    [(name, decoded_offload)] = decoded.map_offloads
    assert (name, decoded.timed) == (SEGMENT, (SEGMENT,))
    assert [decoded_offload.at_once(n, 2) for n in range(2)] == [1, 2]
    assert [decoded_offload.share_of(n, 2) for n in range(2)] == [0.0, 1.0]
    assert decoded_offload.share_of(0, 3) == 0.5, "it was made for another number of partitions"


def test_couriers_of_a_flow_with_keyed_steps_get_their_part_of_an_epoch() -> None:
    bounds = Bounds(SLA(1000, 1000))
    own = CourierControl(StepId("behind"), bounds, journal=Journal(), part=1 / 3).bounds
    assert own.share == pytest.approx(1 / 3)
    assert own.alert_ms == pytest.approx(bounds.alert_ms), "latency is measured end to end"


def test_with_few_burst_workers_the_couriers_with_most_rows_get_them() -> None:
    with mapping(functions_at_most=1) as trial:
        trial.run(STABLE, 10)
        trial.run((3 * CAPACITY, 2 * CAPACITY), 10)
        offload = trial.offload
        assert offload is not None
        assert [offload.at_once(n, 2) for n in range(2)] == [1, 0]
