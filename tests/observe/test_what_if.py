from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.control.treat.decision import Treatment
from penstock.errors import SettingError
from penstock.model import SLA, HostId, LatencyBound
from penstock.observe.moment import Moment, StepMoment
from penstock.observe.recorded_load import RecordedLoad
from penstock.observe.recording import KeptRecording
from penstock.observe.what_if import what_if
from tests.observe.made_up import START_MS, recording


def loaded(
    rates: Sequence[int], recorded: KeptRecording | None = None, **more: Any
) -> KeptRecording:
    """A recording in which each of the 8 slots has these records per second, one for each second."""
    recorded = recorded or recording(len(rates))
    moments = [
        replace(m, steps=tuple(_with(step, rate, more) for step in m.steps))
        for m, rate in zip(recorded.kept, rates, strict=True)
    ]
    return replace(recorded, kept=moments)


def _with(step: StepMoment, rate: int, more: dict[str, Any]) -> StepMoment:
    return replace(step, rates=(rate,) * 8, **more)


def changed(recorded: KeptRecording, **changes: Any) -> KeptRecording:
    """The recording with these changes to every moment."""
    return replace(recorded, kept=[replace(moment, **changes) for moment in recorded.kept])


BURST = [100] * 20 + [700] * 20 + [100] * 20
"""Two hosts can do 4,000 records/s. The burst has 5,600."""


def test_the_recorded_version_is_that_of_the_moments() -> None:
    recorded = recording(30, burst=range(10, 15))
    result = what_if(recorded)
    windows, kept = (sum(getattr(m, n) for m in recorded.kept) for n in ("windows", "kept"))
    assert kept < windows
    assert result.recorded.success == round(kept / windows, 4)
    assert (result.recorded.most_hosts, result.recorded.policy) == (3, "switch")
    assert result.recorded.hosts == round(2 + 5 / 30, 3)
    assert result.recorded.money == pytest.approx(0.029)  # a tenth of a cent for each second
    columns = (
        *(result.time_ms, result.rate_by_second),
        *(result.recorded.hosts_by_second, result.recorded.latency_by_second),
        *(result.what_if.hosts_by_second, result.what_if.latency_by_second),
    )
    assert {len(column) for column in columns} == {30}


def test_a_static_fleet_has_its_hosts_from_the_first_second_on() -> None:
    result = what_if(loaded(BURST), policy="static(3)")
    version, price = result.what_if, recording(1).facts.host_price
    assert (version.hosts, version.most_hosts) == (3.0, 3)
    assert version.money == pytest.approx(price.money(3 * 60), rel=1e-3)
    assert sum(version.treatments.values()) == 0


def test_too_few_hosts_miss_the_sla_and_autoscaling_keeps_more_of_it() -> None:
    recorded = loaded(BURST)
    few = what_if(recorded, policy="static(1)").what_if.success
    scaled = what_if(recorded, policy="switch").what_if
    assert few is not None
    assert scaled.success is not None
    assert few < 0.5 < scaled.success
    assert scaled.treatments["scale_out"] > 0
    assert scaled.most_hosts > 2


def test_as_it_was_uses_the_recorded_policy_and_sla() -> None:
    result = what_if(loaded(BURST), policy="static(2)", latency="5s", window="2s")
    assert result.as_it_was is not None
    assert (result.as_it_was.policy, result.as_it_was.latency_ms) == ("switch", 1000)
    assert (result.what_if.policy, result.what_if.latency_ms) == ("static(2)", 5000)
    assert result.what_if.window_ms == 2000


def test_without_autoscaling_the_recorded_hosts_stay() -> None:
    result = what_if(changed(loaded(BURST), policy=None))
    assert result.as_it_was is not None
    assert (result.as_it_was.policy, result.as_it_was.hosts) == ("static(2)", 2.0)


def test_a_lower_maximum_is_kept() -> None:
    assert what_if(loaded(BURST), at_most=2).what_if.most_hosts == 2


def test_a_margin_replaces_that_of_the_recorded_policy() -> None:
    recorded = changed(loaded(BURST), policy="switch(0.3)")
    little, much = (
        what_if(recorded, margin=margin, at_most=8).what_if.hosts for margin in (0.0, 0.8)
    )
    assert little < much


def test_a_longer_bound_is_kept_more_often() -> None:
    recorded = loaded(BURST)
    strict, lax = (
        what_if(recorded, policy="static(2)", latency=bound).what_if.success for bound in (0.2, 60)
    )
    assert strict is not None
    assert lax is not None
    assert strict < lax == 1.0


def test_seconds_before_the_first_and_after_the_last_rows_do_not_count() -> None:
    result = what_if(loaded([0] * 5 + [100] * 10 + [0] * 7))
    assert len(result.time_ms) == 10
    assert result.time_ms[0] == START_MS + 6_000


def test_the_newest_part_of_a_long_recording_is_simulated() -> None:
    live = recording(3_700)
    live = replace(live, facts=replace(live.facts, mode="live"))
    assert len(RecordedLoad.of(live).moments) == 3_600
    epochs = RecordedLoad.of(recording(3_700))
    assert epochs.epoch_ms is not None
    assert len(epochs.moments) == pytest.approx(10 * epochs.epoch_ms, abs=1)
    assert epochs.ends_ms[-1] == START_MS + 3_700_000


def test_a_new_host_takes_as_long_as_it_did() -> None:
    out = Treatment("scale_out", (1,), HostId("clicks/0"), HostId("clicks/2"), "")
    done = entries.done(At("clicks", START_MS + 9_000), [out], START_MS + 5_000, 100.0)
    result = what_if(replace(recording(10), journal=[done]))
    assert "a new host takes 3.7 s to start" in result.assumed


def test_a_live_flow_is_simulated_record_by_record() -> None:
    recorded = loaded(BURST)
    live = replace(recorded, facts=replace(recorded.facts, mode="live"))
    quick, slow = (what_if(one, policy="static(4)").what_if.mean_ms for one in (live, recorded))
    assert quick is not None
    assert slow is not None
    assert quick < 20 < 150 < slow


def test_steps_follow_each_other_with_the_records_that_each_had() -> None:
    recorded = loaded([200] * 30)
    second = [
        replace(m, steps=(*m.steps, replace(m.steps[0], step="top", rates=(20,) * 8)))
        for m in recorded.kept
    ]
    result = what_if(replace(recorded, kept=second), policy="static(2)")
    assert result.what_if.hosts == 4.0
    assert result.what_if.success == 1.0
    assert any("clicks -> top" in sentence for sentence in result.assumed)


def test_more_slots_than_are_simulated_one_by_one_keep_their_records() -> None:
    def wide(moment: Moment) -> Moment:
        step = replace(moment.steps[0], rates=(1,) * 3_000, owner=(0,) * 3_000)
        return replace(moment, steps=(step,))

    recorded = recording(10)
    result = what_if(replace(recorded, kept=[wide(m) for m in recorded.kept]), policy="static(2)")
    assert set(result.rate_by_second) == {3_000.0}


def test_the_result_is_json() -> None:
    plain = json.loads(json.dumps(what_if(recording(10), policy="ds2").as_json()))
    assert plain["what_if"]["policy"] == "ds2"
    assert len(plain["what_if"]["hosts_by_second"]) == len(plain["time_ms"])


def test_a_policy_object_of_the_users_own_needs_another_policy() -> None:
    own = changed(loaded(BURST), policy="MyPolicy")
    with pytest.raises(SettingError, match=r"MyPolicy is an object.*name a policy to try"):
        what_if(own)
    result = what_if(own, policy="switch")
    assert result.as_it_was is None
    assert result.recorded.policy == "MyPolicy"


def test_an_sla_may_be_tried_on_a_query_without_one() -> None:
    without = changed(recording(10), sla=None, windows=0, kept=0)
    with pytest.raises(SettingError, match=r"has no SLA to judge by.*name one"):
        what_if(without)
    result = what_if(without, latency="2s")
    assert (result.recorded.success, result.what_if.latency_ms) == (None, 2000)


@pytest.mark.parametrize(
    ("recorded", "changes", "fault"),
    [
        (recording(0), {}, "no second in which rows arrived"),
        (loaded([0] * 5), {}, "no second in which rows arrived"),
        (recording(5), {"policy": "magic"}, "unknown policy 'magic'.*use switch"),
        (recording(5), {"policy": "static(99)"}, "would start with 99 hosts"),
        (recording(5), {"latency": "soon"}, "'soon' is not a duration.*write for example"),
        (recording(5), {"window": -1}, "use durations above zero"),
        (recording(5), {"margin": 2.0}, "margin is 2.*less than 1"),
        (recording(5), {"at_most": 0}, "at_most is 0"),
        (
            replace(recording(5), facts=replace(recording(1).facts, slots={})),
            {},
            "has no keyed step",
        ),
    ],
)
def test_wrong_input_says_what_to_do(
    recorded: KeptRecording, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(SettingError, match=fault):
        what_if(recorded, **changes)


def test_a_recording_with_hot_keys_and_missing_seconds_can_be_simulated() -> None:
    hot = {"key": "user=42", "slot": 1, "rate": 900.0, "text": ""}
    recorded = loaded([100] * 12, hot_keys=(hot,))
    gap = replace(recorded.kept[8], seconds=4.0)
    holey = replace(recorded, kept=[*recorded.kept[:5], gap, *recorded.kept[9:]])
    assert len(what_if(holey).time_ms) == 12


def test_a_window_shorter_than_a_time_slot_can_be_judged() -> None:
    recorded = changed(loaded(BURST), sla=SLA(100, 60))
    assert what_if(recorded, policy="static(8)").what_if.success is not None


def test_a_bound_on_the_99th_percentile_is_replayed_as_one() -> None:
    live = loaded(BURST, recording(60, sla=SLA(300, 1_000, p99=True)))
    result = what_if(live, policy="static(2)")
    version = result.what_if
    assert [bound.p99 for bound in version.bounds] == [True]
    pairs = [
        (mean, p99)
        for mean, p99 in zip(version.latency_by_second, version.p99_by_second, strict=True)
        if mean is not None and p99 is not None
    ]
    between = (max(m for m, _ in pairs[:15]) + min(p for _, p in pairs[:15])) / 2
    assert max(m for m, _ in pairs[:15]) < between < min(p for _, p in pairs[:15])
    strict, lax = (
        what_if(
            replace(recorded, kept=recorded.kept[:15]), policy="static(2)", latency=between / 1000
        )
        for recorded in (live, changed(live, sla=SLA(300, 1_000)))
    )
    assert (strict.what_if.success, lax.what_if.success) == (0.0, 1.0)
    assert any("simulated p99" in sentence for sentence in strict.assumed)
    assert not any("p99" in sentence for sentence in lax.assumed)


def test_every_bound_is_judged_by_its_own_figure() -> None:
    more = (LatencyBound(9_000, 1_000, p99=True), LatencyBound(1, 1_000, step="clicks"))
    result = what_if(loaded([100] * 20, recording(20, sla=SLA(1_000, 1_000, more=more))))
    assert result.as_it_was is not None
    for version in (result.recorded, result.as_it_was, result.what_if):
        assert [(b.p99, b.step, b.latency_ms) for b in version.bounds] == [
            (False, None, 1_000),
            (True, None, 9_000),
            (False, "clicks", 1),
        ]
        assert [bound.success for bound in version.bounds] == [1.0, 1.0, 0.0]


def test_a_changed_latency_is_that_of_the_first_bound() -> None:
    more = (LatencyBound(9_000, 1_000, p99=True),)
    recorded = loaded([100] * 10, recording(10, sla=SLA(1_000, 1_000, more=more)))
    changed_ones = what_if(recorded, latency="3s").what_if.bounds
    assert [bound.latency_ms for bound in changed_ones] == [3_000, 9_000]


def test_the_99th_percentile_of_a_later_step_is_said_to_be_an_estimate() -> None:
    more = (LatencyBound(1, 1_000, p99=True, step="top"),)
    recorded = loaded([200] * 20, recording(20, sla=SLA(9_000, 1_000, more=more)))
    second = [
        replace(m, steps=(*m.steps, replace(m.steps[0], step="top", rates=(20,) * 8)))
        for m in recorded.kept
    ]
    result = what_if(replace(recorded, kept=second), policy="static(2)")
    assert [bound.step for bound in result.what_if.bounds] == [None, "top"]
    assert "the p99 of a later step alone is 2.0 times its average" in result.assumed
