from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At, Entry
from penstock.control.money import Money
from penstock.model import SLA, HostId, LatencyBound, StepId
from penstock.observe.recording import KeptRecording
from penstock.observe.report.summary import most_important, summary
from penstock.observe.sentences import Told, story
from penstock.plan.placement import Handover
from tests.observe.made_up import START_MS, recording

LOST = entries.host_lost(
    At("clicks", START_MS + 12_000), HostId("clicks/1"), [4, 5], "its process ended"
)


def changed(recorded: KeptRecording, **changes: Any) -> KeptRecording:
    return replace(recorded, kept=[replace(moment, **changes) for moment in recorded.kept])


def test_a_run_with_a_burst_is_summed_up() -> None:
    told = summary(recording(60, burst=range(20, 30), entries=[LOST]))
    assert (told.rows, told.epochs, told.seconds) == (50 * 100 + 10 * 500, 60, 60.0)
    assert told.hosts == pytest.approx(2 + 10 / 60)
    assert (told.most_hosts, told.lost, told.moved_slots) == (3, 1, 1)
    assert told.latency is not None
    assert (told.latency.worst_ms, told.latency.worst_at_ms) == (1500.0, START_MS + 20_000)
    assert told.latency.mean_ms == pytest.approx((5_000 * 200 + 5_000 * 1500) / 10_000)
    assert told.success is not None
    assert 0.8 < told.success < 0.9


def test_the_summary_says_it_in_words() -> None:
    said = summary(recording(60, burst=range(20, 30), entries=[LOST])).sentences()
    assert list(said) == ["Run", "SLA", "Hosts", "Moves", "Faults", "Cost"]
    assert "clicks ran in micro-batches for 60 s" in said["Run"]
    assert "10,000 rows in 60 epochs, 167 rows/s on average" in said["Run"]
    assert (
        "Kept in 82.8 % of 58 windows: average latency of at most 1.0 s over 1.0 s" in said["SLA"]
    )
    assert "worst second ended at 14:13:40, with 1.5 s on average" in said["SLA"]
    assert said["Hosts"] == "2.2 on average, 3 at most; scaled by the policy switch."
    assert "1 slot went to another host. 5 entries (700 B) followed" in said["Moves"]
    assert said["Faults"] == "1 host lost."


def test_the_cost_is_compared_with_a_fleet_for_the_peak() -> None:
    recorded = recording(60, burst=range(20, 30))
    peak = recorded.facts.host_price.money(3 * 60)
    told = summary(changed(recorded, money=Money(peak * 0.75, 0.0)))
    assert told.static_money == pytest.approx(peak)
    assert "25 % less than 3 hosts for the peak" in told.sentences()["Cost"]


def test_a_run_without_autoscaling_and_sla_has_a_summary() -> None:
    bare = changed(recording(20), sla=None, policy=None, windows=0, kept=0)
    said = summary(bare).sentences()
    assert said["SLA"].startswith("No SLA. Rows took 0.2 s on average.")
    assert said["Hosts"].endswith("autoscaling was off.")
    assert said["Faults"] == "None."


def test_a_run_that_was_shorter_than_a_window_says_so() -> None:
    said = summary(changed(recording(1), windows=0, kept=0)).sentences()
    assert said["SLA"].startswith(
        "No window has ended: average latency of at most 1.0 s over 1.0 s."
    )
    assert "100 rows in 1 epoch," in said["Run"]


def test_a_flow_without_keyed_steps_has_no_hosts() -> None:
    recorded = changed(recording(5), steps=())
    said = summary(replace(recorded, facts=replace(recorded.facts, slots={}))).sentences()
    assert set(said) == {"Run", "SLA", "Faults"}


def test_a_failed_run_says_why() -> None:
    recorded = recording(5)
    last = replace(recorded.kept[-1], state="failed", message="the disk is full")
    told = summary(replace(recorded, kept=[*recorded.kept[:-1], last]))
    assert told.sentences()["Run"].endswith("It failed: the disk is full.")


def test_a_run_that_ended_before_its_first_second_has_zeros() -> None:
    told = summary(recording(0))
    assert (told.rows, told.seconds, told.success, told.latency) == (0, 0, None, None)
    assert told.sentences()["SLA"] == "No row came out, so there is no latency."


def test_faults_are_counted_where_there_is_no_journal() -> None:
    recorded = recording(10)
    third = recorded.kept[2]
    handover = Handover(StepId("clicks"), (1,), None, HostId("clicks/0"), "host lost")
    again = replace(third.epochs[0], runs=2)
    hurt = replace(third, epochs=(again,), moves=replace(third.moves, handovers=(handover,)))
    kept = [*recorded.kept[:2], replace(hurt, dead_letters=2), *recorded.kept[3:]]
    told = summary(replace(recorded, kept=kept))
    assert told.sentences()["Faults"] == (
        "1 host lost, 1 epoch run again, 2 rows set aside because it failed."
    )


def test_each_kind_of_event_has_its_first_before_any_has_its_second() -> None:
    kinds = ["setting"] * 6 + ["host lost"] * 2 + ["decided", "hot key", "refused"]
    told = [Told(float(n), "clicks", kind, kind, important=True) for n, kind in enumerate(kinds)]
    chosen = most_important([*told, Told(99.0, "clicks", "decided", "good", important=False)])
    assert [item.kind for item in chosen] == [
        "setting",
        "host lost",
        "decided",
        "hot key",
        "refused",
    ]
    assert [item.time_ms for item in most_important(told[:8])] == [0.0, 1.0, 2.0, 6.0, 7.0]


def test_a_journal_of_another_release_does_no_harm() -> None:
    odd = Entry(START_MS + 500, 1, "clicks", "rebalanced", "slots are even now")
    told = summary(recording(5, entries=[odd]))
    assert told.decisions == tuple(story([odd]))


def test_what_is_left_of_a_longer_run_has_its_own_begin_and_its_own_cost() -> None:
    whole = recording(60)
    price = whole.facts.host_price.money(1)  # of a host for a second
    costs = [replace(m, money=Money(100 + 2 * price * n, 0.0)) for n, m in enumerate(whole.kept)]
    hour = replace(whole.facts, started_ms=START_MS - 7_200_000.0)
    told = summary(replace(whole, facts=hour, kept=costs))
    assert told.money is not None
    assert told.money.hosts == pytest.approx(2 * price * 59)
    said = told.sentences()
    assert "ran in micro-batches for 60 s from 14:13:20 UTC on" in said["Run"]
    assert "It had begun 2 h 0 min earlier, which is not recorded any more." in said["Run"]
    assert "2 % less than 2 hosts for the peak" in said["Cost"]


def test_a_gap_in_the_recording_is_told() -> None:
    whole = recording(300)
    told = summary(replace(whole, kept=[*whole.kept[:50], *whole.kept[200:]]))
    assert (told.seconds, told.missing) == (300.0, 150.0)
    assert "2 min of it are not recorded." in told.sentences()["Run"]


MORE = SLA(
    1000,
    1000,
    more=(
        LatencyBound(2_500, 1000, p99=True),
        LatencyBound(100, 1000, step="clicks"),
        LatencyBound(500, 2000, p99=True, step="clicks"),
    ),
)


def test_each_bound_has_a_row_with_its_own_figure() -> None:
    said = summary(recording(60, burst=range(20, 30), sla=MORE)).sentences()
    assert said["SLA"].startswith("Kept in 82.8 % of 58 windows: average latency of at most 1.0 s")
    assert said["SLA 2"] == (
        "Kept in 82.8 % of 58 windows: p99 latency of at most 2.5 s over 1.0 s. The highest p99 latency was "
        "3.0 s, in the second that ended at 14:13:40."
    )
    assert said["SLA 3"].startswith(
        "Kept in 0.0 % of 58 windows: average latency of step clicks of at most 0.1 s over 1.0 s. The "
        "highest average latency of step clicks was 0.1 s"
    )
    assert "Kept in 100.0 % of 29 windows: p99 latency of step clicks" in said["SLA 4"]
    assert "The highest p99 latency of step clicks was about 0.2 s" in said["SLA 4"]


def test_a_bound_on_the_99th_percentile_alone_is_compared_with_it() -> None:
    slow = SLA(2_500, 1000, p99=True)
    said = summary(recording(60, burst=range(20, 30), sla=slow)).sentences()
    assert said["SLA"].startswith(
        "Kept in 82.8 % of 58 windows: p99 latency of at most 2.5 s over 1.0 s. The highest p99 latency was "
        "3.0 s"
    )


def test_a_bound_of_a_step_without_autoscaling_is_said_to_be_unknown() -> None:
    bare = changed(recording(10, sla=MORE), policy=None)
    unknown = [replace(b, reached_ms=None, windows=0, kept=0) for b in bare.kept[-1].bounds]
    said = summary(changed(bare, bounds=tuple(unknown))).sentences()
    assert said["SLA 3"].endswith(
        "The average latency of step clicks was not measured: autoscaling was off."
    )
