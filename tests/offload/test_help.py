"""Burst workers under control: they take bursts, hosts are added if a burst lasts, without conflicts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.policy.flow import NO_ANSWER
from tests.offload.bursts import CAPACITY, STEP, bursting, offload_of
from tests.trials.ledger import CHAIN

STABLE = 1.2 * CAPACITY
"""Rows per second that load two hosts to 60 %."""
BURST = 4 * STABLE


def test_a_burst_goes_to_burst_workers_and_comes_back() -> None:
    with bursting() as trial:
        calm = trial.run(STABLE, 30)
        assert not any(offload_of(plan) for plan in calm)
        during = trial.run(BURST, 30)
        shares = [offload_of(plan) for plan in during]
        assert sum(share is None for share in shares) <= 3, "it takes two observations"
        assert trial.latency_ms[-1] < 1_000
        after = trial.run(STABLE, 20)
        assert offload_of(after[-1]) is None
        assert not trial.scaled_out
        entries = trial.entries("offload")
        assert entries[0].facts["functions"] > 0
        assert entries[-1].facts["functions"] == 0
        assert entries[-1].facts["money"]["functions"] > 0


def test_couriers_react_in_the_epoch_that_brings_a_burst() -> None:
    longest = {}
    for reacts in (False, True):
        with bursting(reacts=reacts) as trial:
            calm = trial.run(STABLE, 30)
            assert [offload_of(plan) for plan in calm] == [None] * len(calm)
            spent = trial.keeper.used.money
            assert spent == 0, "functions get no rows without need"
            trial.rates(BURST)
            assert (trial.keeper.used.money > 0) == reacts
            trial.run(BURST, 10)
            longest[reacts] = max(trial.latency_ms[len(calm) :])
            assert trial.offload is not None, "a lasting burst is handled by decision"
            assert not trial.scaled_out
    assert longest[True] < 0.6 * longest[False]


def test_hosts_are_added_when_a_burst_lasts_and_burst_workers_end() -> None:
    with bursting(patience="10s") as trial:
        trial.run(STABLE, 30)
        trial.run(BURST, 9)
        assert not trial.scaled_out
        assert trial.offload is not None
        trial.run(BURST, 40)
        assert trial.scaled_out
        assert len(trial.relocation.hosts(STEP)) >= 5
        assert trial.offload is None, "hosts take all rows"
        assert any(entry.facts["lasts"] for entry in trial.entries("offload"))
        assert trial.latency_ms[-1] < 1_000


def test_a_step_under_treatment_keeps_its_shares() -> None:
    with bursting(patience="5s", start_ms=20_000.0) as trial:
        trial.run(STABLE, 30)
        trial.run(BURST, 12)
        assert trial.relocation.waiting, "hosts are starting"
        trial.now_ms += 5_000
        trial.loop.wait_for_hosts()
        assert trial.relocation.waited_ms == [], "functions help meanwhile"
        assert all(offload_of(plan) for plan in trial.run(BURST, 5))


def test_a_dry_run_only_reports() -> None:
    with bursting(dry_run=True) as trial:
        trial.run(STABLE, 30)
        plans = trial.run(1.5 * STABLE, 10)
        assert not any(offload_of(plan) for plan in plans)
        first = trial.entries("offload")[0]
        assert first.facts["dry_run"]
        assert first.text.startswith("dry run, would be: functions carry")
        assert trial.started[0].warmed == []
        trial.steer(dry_run=False)
        trial.run(1.5 * STABLE, 10)
        assert trial.offload is not None


def test_burst_workers_are_kept_warm_for_some_times_the_stable_load() -> None:
    with bursting() as trial:
        trial.run(STABLE, 30)
        five_times = 5 * STABLE / CAPACITY
        assert 0.5 * five_times < trial.started[0].warmed[-1] < 2 * five_times
    with bursting(warm_for=0) as trial:
        trial.run(STABLE, 30)
        assert trial.started[0].warmed == []


def test_if_burst_workers_cannot_start_hosts_take_over() -> None:
    with bursting(starts=False) as trial:
        trial.broken = "no such region"
        trial.start()
        trial.run(STABLE, 30)
        trial.run(BURST, 20)
        assert not any(offload_of(plan) for plan in trial.plans)
        assert trial.scaled_out
        facts = trial.loop.facts()["functions"]
        assert (facts["state"], facts["trouble"]) == ("failed", "no such region")


def test_burst_workers_that_do_not_answer_are_replaced_and_paused() -> None:
    with bursting(start_ms=2_000.0) as trial:
        trial.run(STABLE, 30)
        trial.run(2 * STABLE, 5)
        assert trial.offload is not None
        trial.answers = False
        trial.run(2 * STABLE, 40)
        assert trial.scaled_out, "functions are not used, so hosts are added"
        assert trial.offload is None
        out = [entry for entry in trial.entries("offload") if NO_ANSWER in entry.facts["reasons"]]
        assert out[0].facts["functions"] == 0
        assert [workers.stopped for workers in trial.started] == [*([1] * len(out)), 0]


def test_burst_workers_that_fail_once_stay_in_use() -> None:
    with bursting() as trial:
        trial.run(STABLE, 30)
        trial.run(2 * STABLE, 5)
        trial.answers = False
        trial.rates(2 * STABLE)
        trial.answers = True
        trial.run(2 * STABLE, 5)
        assert trial.offload is not None
        assert len(trial.started) == 1


def test_steering_turns_burst_workers_off_and_on() -> None:
    with bursting() as trial:
        trial.run(STABLE, 30)
        trial.run(2 * STABLE, 5)
        assert trial.offload is not None
        facts = trial.steer(functions_at_most=0)
        assert facts["functions"]["at_most"] == 0
        trial.run(2 * STABLE, 3)
        assert trial.offload is None
        assert any(entry.facts["name"] == "functions_at_most" for entry in trial.entries("setting"))
        trial.steer(functions_at_most=3)
        trial.run(4 * STABLE, 8)
        assert trial.offload is not None
        assert trial.offload.workers <= 3


def test_couriers_wait_longer_if_burst_workers_get_more_rows() -> None:
    with bursting() as trial:
        trial.run(STABLE, 30)
        trial.run(BURST, 10)
        control, now_ms = trial.steps[STEP], trial.now_ms
        offloading = control.offloading
        assert offloading is not None
        assert trial.offload is not None
        assert trial.offload.deadline_ms >= 1_000
        trial.now_ms += 60_000
        patient = trial.planned(STEP)
        assert patient is not None
        least_ms = 60_000 * offloading.redirected / (offloading.workers * CAPACITY)
        assert patient.deadline_ms > least_ms
        trial.now_ms = now_ms


def test_projections_of_an_epoch_exclude_offloaded_rows() -> None:
    """Relieved hosts are not projected to be late, so no hosts are requested."""
    with bursting(patience="10 minutes", alert="900ms") as trial:
        trial.run(STABLE, 30)
        trial.run(BURST, 60)
        assert not trial.scaled_out


def test_cost_of_hosts_is_by_time_and_of_burst_workers_as_reported() -> None:
    with bursting() as trial:
        trial.run(STABLE, 30)
        assert trial.money.functions == 0
        assert trial.money.hosts == pytest.approx(2 * 30 * 3.6 / 3600, rel=0.1)
        trial.run(BURST, 10)
        assert trial.money.functions > 0
        facts = trial.loop.facts()
        assert facts["money"]["functions"] == pytest.approx(trial.money.functions, abs=1e-6)
        trial.bill.end()
        before, trial.now_ms = trial.money, trial.now_ms + 60_000
        assert trial.money == before


def test_facts_are_json_and_include_offloading() -> None:
    with bursting() as trial:
        json.dumps(trial.loop.facts(), allow_nan=False)
        trial.run(STABLE, 30)
        trial.run(BURST, 5)
        facts = json.loads(json.dumps(trial.loop.facts(), allow_nan=False))
        assert facts["functions"]["state"] == "up"
        assert facts["functions"]["used"]["invocations"] > 0
        offload = facts["steps"][STEP]["offload"]
        assert 0 < offload["redirected"] <= offload["rate"]
        assert offload["functions"] > 0


def test_steps_whose_state_does_not_merge_are_reported() -> None:
    with bursting(CHAIN, starts=False) as trial:
        [entry] = trial.entries("refused")
        assert (entry.step, entry.facts["wanted"]) == ("ledger", "functions")
        assert "does not merge" in entry.text
        assert trial.steps["ledger"]._offload is None
        assert trial.steps["by-op"]._offload is not None


def test_a_plan_names_burst_workers_only_where_there_are_some() -> None:
    with bursting(starts=False) as trial:
        plan = trial.run(STABLE, 10)[-1]
        assert plan.steps[0].offload is None
        assert plan.steps[0].offload is None


@pytest.mark.parametrize(
    "change", [{"patience": "soon"}, {"functions_at_most": -1}, {"merge_cost": -1.0}]
)
def test_invalid_steering_is_refused(change: dict[str, object]) -> None:
    with bursting() as trial:
        before = trial.loop.machine.elastic
        with pytest.raises(PenstockError):
            trial.steer(**change)
        assert trial.loop.machine.elastic == before


def test_the_limit_of_burst_workers_cannot_be_set_without_any() -> None:
    with (
        pytest.raises(PenstockError, match="no functions"),
        bursting(functions=None, functions_at_most=3),
    ):
        pass


def test_shares_reach_the_plan_as_they_were_decided() -> None:
    with bursting(functions=LocalFunctions(at_most=2)) as trial:
        trial.run(STABLE, 30)
        trial.run(BURST, 5)
        offloading = trial.steps[STEP].offloading
        assert offloading is not None
        planned = trial.planned(STEP)
        assert planned is not None
        assert np.array_equal(planned.shares, offloading.shares)
        assert planned.workers == offloading.workers <= 2


def test_with_few_burst_workers_some_couriers_offload_more_rows() -> None:
    """The other couriers would be refused, so their rows go to hosts. Hosts must not get more work by
    that."""
    with bursting(functions_at_most=2) as trial:
        trial.run(STABLE, 30)
        trial.run(2 * STABLE, 5)
        alone = trial.planned(STEP)
        among_four = trial.planned(STEP, 4)
        assert alone is not None
        assert among_four is not None
        assert sum(among_four.at_once(n, 4) for n in range(4)) == 2
        assert among_four.shares == pytest.approx(np.minimum(1.0, 2 * alone.shares))
