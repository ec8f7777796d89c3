"""Loads and speeds that were measured, in the decisions of burst workers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.control.events import StepPlacement, TimeSlotEnded
from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Work
from penstock.control.journal.entries import offload
from penstock.control.journal.entry import At
from penstock.control.record import event_line, event_of
from penstock.control.treat.offloading import Offloading, OffloadSettings
from penstock.model import HostId, StepId
from penstock.offload.policy.offloader import Offloader
from penstock.wire.cpu import CpuMeter, cores_allowed
from tests.offload.policy.loop import BOUNDS, CAPACITY, even, follow, seen


def observed(offloader: Offloader, load: float, cpu: float | None, times: int = 3) -> Offloading:
    """The decision after some observations with this load by working time, and this measured one."""
    for second in range(times):
        vitals = seen(even(load * 2 * CAPACITY, 2), 2)
        if cpu is not None:
            vitals = replace(vitals, cpu=np.full(2, cpu))
        decision = offloader.decide(vitals, BOUNDS, 1_000.0 * second)
    return decision


@pytest.mark.parametrize("cpu", [0.6, 0.35])
def test_equation_2_divides_by_cpu_that_was_measured(cpu: float) -> None:
    decision = observed(Offloader(), load=0.4, cpu=cpu)
    # if 400 records per second take 60 % of a core, a core takes 667
    assert decision.load == pytest.approx(cpu)
    assert (decision.by_cpu, decision.cpu) == (True, cpu)


def test_a_host_that_waits_while_it_works_is_relieved_although_it_needs_little_cpu() -> None:
    offloader = Offloader(OffloadSettings(partials_per_row=0.0))
    for second, load in enumerate((0.5, 0.5, 0.95, 0.95, 0.95)):
        vitals = replace(seen(even(load * 2 * CAPACITY, 2), 2), cpu=np.full(2, 0.7 * load))
        decision = offloader.decide(vitals, BOUNDS, 1_000.0 * second)
    assert decision.carries
    told = offload(At("sum", 0.0), decision)
    assert told.facts["load_by"] == "working time"
    assert "by working time, since CPU is only 66 %" in told.text


@pytest.mark.parametrize("cpu", [None, 0.1, 0.3, float("nan")])
def test_working_time_counts_where_cpu_is_unknown_or_does_not_explain_it(cpu: float | None) -> None:
    decision = observed(Offloader(), load=0.4, cpu=cpu)
    assert decision.load == pytest.approx(0.4)
    assert not decision.by_cpu


def test_the_cpu_of_an_idle_process_says_nothing_about_its_records() -> None:
    decision = observed(Offloader(), load=0.001, cpu=0.05)
    assert decision.load == pytest.approx(0.001)


def test_burst_workers_come_earlier_if_hosts_have_more_to_do_than_their_records() -> None:
    loads, settings = [0.4, 0.4, 0.4, 0.7, 0.7, 0.7], OffloadSettings(partials_per_row=0.0)
    plain, measured = Offloader(settings), Offloader(settings)
    assert not follow(plain, loads)[-1].carries
    for second, load in enumerate(loads):
        vitals = replace(seen(even(load * 2 * CAPACITY, 2), 2), cpu=np.full(2, 1.5 * load))
        decision = measured.decide(vitals, BOUNDS, 1_000.0 * second)
    assert decision.carries


def test_twice_as_many_burst_workers_are_used_if_each_turns_out_half_as_fast() -> None:
    settings = OffloadSettings(partials_per_row=0.0)
    loads = [0.5, 0.5, 2.0, 2.0]
    assumed, measured = Offloader(settings), Offloader(settings)
    measured.profiled(here_ms=4.0, workers_ms=8.0)
    one, other = follow(assumed, loads)[-1], follow(measured, loads)[-1]
    assert other.workers == pytest.approx(2 * one.workers, abs=1)
    assert (one.speed, one.speed_measured) == (1.0, False)
    assert (other.speed, other.speed_measured) == (0.5, True)


def test_a_measured_speed_survives_a_change_of_settings_and_follows_new_profiles() -> None:
    offloader = Offloader(OffloadSettings(speed=3.0))
    offloader.profiled(0.0, 5.0)
    assert offloader.speed == 3.0
    for _ in range(10):
        offloader.profiled(5.0, 10.0)
    offloader.steer(OffloadSettings(speed=2.0))
    assert offloader.speed == pytest.approx(0.5)
    offloader.profiled(1e9, 1.0)
    assert offloader.speed < 20.0


def test_the_journal_says_what_was_measured_and_what_assumed() -> None:
    plain = Offloading(np.array([0.5]), 2, 2, rate=2e3, redirected=1e3)
    entry = offload(At("sum", 0.0), plain)
    assert "(by working time; a function is as fast as 1.00 hosts, assumed)" in entry.text
    assert (entry.facts["load_by"], entry.facts["speed_by"]) == ("working time", "assumed")
    told = replace(plain, by_cpu=True, cpu=0.64, speed=0.8, speed_measured=True)
    entry = offload(At("sum", 0.0), told)
    assert "(by CPU, measured at 64 %; a function is as fast as 0.80 hosts, measured)" in entry.text
    assert (entry.facts["load_by"], entry.facts["cpu"]) == ("cpu", 0.64)
    assert (entry.facts["speed_by"], entry.facts["speed"]) == ("measured", 0.8)


def test_events_that_were_recorded_without_cpu_can_still_be_read() -> None:
    host, one = HostId("sum/0"), np.ones(1)
    work = {host: Work(3, 2.0, cpu=0.5)}
    owner = np.zeros(1, np.int64)
    place = StepPlacement((host,), owner)
    event = TimeSlotEnded(1.0, 1, StepId("sum"), one, one, (host,), owner, work, one, place)
    line = event_line(event)
    again, old = event_of(line), event_of(line.replace(b',"cpu":0.5', b""))
    assert isinstance(again, TimeSlotEnded)
    assert isinstance(old, TimeSlotEnded)
    assert again.work == work
    assert old.work == {host: Work(3, 2.0)}


def test_the_newest_cpu_load_of_each_host_is_in_its_vitals() -> None:
    a, b = HostId("sum/0"), HostId("sum/1")
    examiner = Examiner(StepId("sum"), 2, 1_000.0, 100.0)
    for m, cpu in enumerate([0.4, 0.6], start=1):
        work = {a: Work(1, 1.0, cpu), b: Work(1, 1.0)}
        examiner.sample(m, [m, m], [m, m], [0, 1], [a, b], work)
    loads = examiner.vitals(200.0, [a, b], [0, 1]).cpu
    assert loads is not None
    assert loads[0] == 0.6
    assert np.isnan(loads[1])


def test_cores_are_limited_by_the_quota_of_a_container(tmp_path: Path) -> None:
    whole = cores_allowed(tmp_path)
    assert whole >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cores_allowed(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores_allowed(tmp_path) == whole


def test_the_cpu_of_a_busy_process_is_measured() -> None:
    meter, until = CpuMeter(cores=1), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert meter.load() > 0
