from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock import codec
from penstock.control.diagnose.hot_keys import HotKey
from penstock.control.examine.vitals import Vitals
from penstock.control.journal import entries
from penstock.control.journal.entries import decided
from penstock.control.journal.entry import At, Entry
from penstock.control.journal.journal import REMIND_MS, Journal, worth_telling
from penstock.control.treat.decision import (
    Bounds,
    Decision,
    Health,
    HostHealth,
    Treatment,
    new_host,
)
from penstock.model import SLA, HostId, StepId

STEP = StepId("sum")
BOUNDS = Bounds(SLA(1000, 1000))
OUT = Treatment("scale_out", (2, 3), HostId("sum/0"), new_host(1), "sum/0 is severe")


def vitals_at(now_ms: float) -> Vitals:
    made = Vitals.even(STEP, [30.0, 20.0, 20.0, 20.0], hosts=1, service_rate=100.0)
    return replace(made, now_ms=now_ms)


def host(name: str, health: Health = "good", rate: float = 90.0) -> HostHealth:
    return HostHealth(HostId(name), health, 4, rate, 100.0, 640.0, math.inf)


def said(now_ms: float, health: Health = "good", **parts: Any) -> Entry:
    decision = Decision(health, (host("sum/0", health),), **parts)
    return decided(vitals_at(now_ms), BOUNDS, decision, epoch=int(now_ms / 250))


def hot(key: str, rate: float) -> HotKey:
    return HotKey(STEP, 3, key, rate, 1.3, merges=True, two_stage=True)


def every_event() -> list[Entry]:
    return [
        said(0.0, "severe", treatments=(OUT,), reasons=("sum/0 is severe: 640 ms.",)),
        said(0.0, "severe", hot_slots=(0,)),
        entries.refused(At(STEP, 1.0), "at most 4 hosts are allowed", wanted=str(OUT)),
        entries.began(At(STEP, 2.0, 4), [OUT], 640.0),
        entries.done(
            At(STEP, 1_502.0), [OUT], 2.0, math.nan, hosts=[HostId("sum/0"), HostId("sum/1")]
        ),
        entries.failed(At(STEP, 3.0), [OUT], "no core is free"),
        entries.outcome(At(STEP, 4.0), 640.0, 120.0, BOUNDS, expected_ms=90.0),
        entries.host_lost(At(STEP, 5.0), HostId("sum/0"), [0, 1], "its process ended"),
        entries.setting(At(STEP, 6.0), "latency_ms", 1000, 500),
        entries.hot_key(At(STEP, 7.0), hot("user=42", 5_000.0)),
    ]


# -- entries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", every_event(), ids=lambda entry: entry.event)
def test_every_entry_survives_strict_json(entry: Entry) -> None:
    text = json.dumps(codec.to_plain(entry), allow_nan=False)
    assert codec.decode(text, Entry) == entry
    assert "\n" not in entry.line()
    assert entry.text in entry.line()


def test_a_decision_entry_contains_all_its_inputs() -> None:
    entry = said(250.0, "severe", treatments=(OUT,), reasons=("sum/0 is severe: 640 ms.",))
    assert (entry.time_ms, entry.epoch, entry.step, entry.event) == (250.0, 1, "sum", "decided")
    assert entry.text.startswith(
        "severe. scale out: slots 2-3 from sum/0 to new/1. sum/0 is severe: 640 ms. expected: 2 hosts"
    )
    facts = entry.facts
    assert facts["hosts"][0] == {
        "host": "sum/0", "health": "severe", "slots": 4, "rate": 90.0, "service_rate": 100.0,
        "latency_ms": 640.0, "projected_ms": None,
    }  # fmt: skip
    assert facts["treatments"][0]["reason"] == "sum/0 is severe"
    assert facts["bounds"]["alert_ms"] == 500
    assert facts["now"] == {"hosts": 1, "load": 0.9, "latency_ms": None}
    assert facts["expected"] == {"hosts": 2, "load": 0.5, "latency_ms": pytest.approx(33.3)}


def test_a_decision_on_unknown_service_rates_expects_nothing() -> None:
    vitals = replace(vitals_at(0.0), service_rate=np.array([math.nan]))
    entry = decided(vitals, BOUNDS, Decision("moderate", (), (OUT,)))
    assert entry.text.endswith("expected: 2 hosts instead of 1")
    assert entry.facts["expected"] == {"hosts": 2, "load": None, "latency_ms": None}


def test_a_dry_run_says_so() -> None:
    decision = Decision("severe", (), (OUT,))
    entry = decided(vitals_at(0.0), BOUNDS, decision, dry_run=True)
    assert "dry run, would do: scale out" in entry.text
    assert entry.facts["dry_run"] is True


def test_only_the_most_loaded_hosts_are_listed() -> None:
    hosts = tuple(host(f"sum/{n}", rate=float(n)) for n in range(1_000))
    entry = decided(vitals_at(0.0), BOUNDS, Decision("good", hosts))
    listed = entry.facts["hosts"]
    assert (len(listed), listed[0]["host"], entry.facts["hosts_left_out"]) == (64, "sum/999", 936)
    assert entry.lines()[-1].endswith("and 936 more with less load")


def test_an_outcome_says_whether_the_bound_is_kept() -> None:
    late = entries.outcome(At(STEP, 0.0), 900.0, 1_100.0, BOUNDS)
    assert late.text == "latency 1,100 ms instead of 900 ms, not within the bound of 1,000 ms"
    unknown = entries.outcome(At(STEP, 0.0), 900.0, math.nan, BOUNDS, expected_ms=math.inf)
    assert unknown.text == "latency unknown instead of 900 ms; expected ∞"


# -- lines -------------------------------------------------------------------------------------------


def test_lines_are_aligned() -> None:
    starts = {entry.line().index(entry.text) for entry in every_event()}
    assert len(starts) == 1
    later = replace(every_event()[0], time_ms=1_750_000_000_250.0, epoch=123_456)
    assert later.line().startswith("15:06:40.250  epoch 123456  sum           decided    severe.")
    assert {later.line().index(later.text)} == starts


def test_below_a_decision_each_host_has_a_line() -> None:
    first, host_line = said(0.0, "severe").lines()
    assert first == said(0.0, "severe").line()
    assert host_line.split("  ", 7)[7].startswith("sum/0  severe")
    assert "latency     640 ms" in host_line
    assert host_line.endswith("cannot keep up")
    known = host("sum/0")._replace(projected_ms=1_234.4)
    fresh = host("sum/1")._replace(projected_ms=math.nan, service_rate=math.nan)
    entry = decided(vitals_at(0.0), BOUNDS, Decision("good", (known, fresh)))
    assert entry.lines()[1].endswith("would settle at 1,234 ms")
    assert entry.lines()[2].endswith("service       -/s  latency     640 ms  is not known")


# -- worth telling -----------------------------------------------------------------------------------


def test_a_repeated_entry_is_left_out() -> None:
    calm = said(0.0)
    assert worth_telling(None, calm)
    assert not worth_telling(calm, said(250.0))
    assert not worth_telling(calm, said(10 * REMIND_MS))


def test_other_figures_are_a_repetition_but_another_host_is_not() -> None:
    first = said(0.0, "severe", reasons=("sum/0 is severe: 640.5 ms, at most 4 hosts",))
    again = said(250.0, "severe", reasons=("sum/0 is severe: 1,712 ms, at most 4 hosts",))
    other = said(250.0, "severe", reasons=("sum/1 is severe: 640.5 ms, at most 4 hosts",))
    assert not worth_telling(first, again)
    assert worth_telling(first, other)


def test_a_lasting_problem_is_repeated_after_a_while() -> None:
    first = said(0.0, "severe", reasons=("no host more",))
    later = said(REMIND_MS, "severe", reasons=("no host more",))
    assert worth_telling(first, later)
    assert not worth_telling(first, replace(later, time_ms=REMIND_MS - 1))


def test_changes_are_journalled_and_wavering_is_damped() -> None:
    assert worth_telling(said(0.0), said(250.0, "severe"))
    assert worth_telling(said(0.0, "severe"), said(250.0))
    assert worth_telling(said(0.0), said(250.0, hot_slots=(3,)))
    assert worth_telling(said(0.0, treatments=(OUT,)), said(250.0))
    assert not worth_telling(said(0.0), said(250.0, "moderate"))
    assert worth_telling(said(0.0), said(20_000.0, "moderate"))


def test_treatments_are_always_journalled_but_in_a_dry_run_only_new_ones() -> None:
    first, again = said(0.0, treatments=(OUT,)), said(250.0, treatments=(OUT,))
    assert worth_telling(first, again)
    dry = replace(again, facts=again.facts | {"dry_run": True})
    assert not worth_telling(first, dry)
    other = said(250.0, treatments=(replace(OUT, kind="balance", target=HostId("sum/7")),))
    assert worth_telling(first, replace(other, facts=other.facts | {"dry_run": True}))


# -- the journal -------------------------------------------------------------------------------------


def test_entries_are_kept_and_passed_on_once() -> None:
    entries: list[Entry] = []
    journal = Journal(sink=entries.append)
    for now in range(0, 60_000, 250):
        assert journal.decided(vitals_at(now), BOUNDS, Decision("good", ())) is (now == 0)
    for entry in every_event():
        journal.add(entry)
    assert entries == journal.last(1_000)
    assert [entry.event for entry in entries] == [
        "decided", "decided", "decided", "refused", "began", "done", "failed", "outcome",
        "host lost", "setting", "hot key",
    ]  # fmt: skip


def test_only_the_newest_are_kept() -> None:
    journal = Journal(most=3)
    for n in range(10):
        journal.add(entries.setting(At(STEP, float(n)), "at_most", n, n + 1))
    assert [entry.time_ms for entry in journal.last(2)] == [8.0, 9.0]
    assert (len(journal), len(journal.last(99)), journal.last(0)) == (3, 3, [])


def test_steps_and_hot_keys_are_distinguished() -> None:
    journal = Journal()
    for step in (STEP, StepId("count")):
        for key in ("user=1", "user=2"):
            for now in (0.0, 250.0, 500.0):
                journal.add(entries.hot_key(At(step, now), hot(key, 5_000.0 + now)))
    assert [(entry.step, entry.facts["key"]) for entry in journal.last(99)] == [
        ("sum", "user=1"), ("sum", "user=2"), ("count", "user=1"), ("count", "user=2"),
    ]  # fmt: skip


def test_a_healthy_decision_costs_almost_nothing() -> None:
    journal, vitals = Journal(), vitals_at(0.0)
    calm = Decision("good", tuple(host(f"sum/{n}") for n in range(10)))
    journal.decided(vitals, BOUNDS, calm)
    start = time.perf_counter()
    for _ in range(10_000):
        journal.decided(vitals, BOUNDS, calm)
    assert time.perf_counter() - start < 0.5
    assert len(journal) == 1
