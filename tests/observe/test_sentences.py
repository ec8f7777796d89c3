from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.diagnose.hot_keys import HotKey
from penstock.control.examine.vitals import Vitals
from penstock.control.journal import entries
from penstock.control.journal.entry import At, Entry
from penstock.control.money import Money
from penstock.control.treat.decision import Bounds, Decision, HostHealth, Treatment
from penstock.control.treat.offloading import Offloading
from penstock.model import SLA, HostId, StepId
from penstock.observe.sentences import is_important, sentence, story

BOUNDS = Bounds(SLA(1000, 1000))
ONE, TWO = HostId("clicks/0"), HostId("clicks/1")


def at(second: float) -> At:
    return At("clicks", 1000 * second, 7)


def decision(*treatments: Treatment, health: str = "severe", **more: object) -> Entry:
    vitals = Vitals.even(StepId("clicks"), [970.0] * 4, hosts=2, service_rate=2_010.0)
    hosts = (
        HostHealth(ONE, health, 2, 1_940.0, 2_010.0, 800.0, float("inf")),  # type: ignore[arg-type]
        HostHealth(TWO, "good", 2, 200.0, 2_010.0, 90.0, 95.0),
    )
    decided = Decision(health, hosts, treatments, **more)  # type: ignore[arg-type]
    return entries.decided(replace(vitals, now_ms=1000.0), BOUNDS, decided)


MOVE = Treatment("balance", (1, 3), ONE, TWO, "")
OUT = Treatment("scale_out", (1, 2), ONE, HostId("new/1"), "")
STARTED = replace(OUT, target=HostId("clicks/2"))


def test_a_treatment_is_one_sentence_from_its_decision_to_its_outcome() -> None:
    told = story([
        decision(MOVE),
        entries.began(at(1.1), [MOVE], 800.0),
        entries.done(at(2), [MOVE], 1_100.0, 700.0),
        entries.outcome(at(3), 800.0, 520.0, BOUNDS),
    ])  # fmt: skip
    assert len(told) == 1
    assert told[0].important
    assert (told[0].time_ms, told[0].kind) == (1000.0, "decided")
    assert told[0].text.startswith(
        "host clicks/0 severe: 1,940 records/s arriving, 2,010 possible; moved slots 1 and 3 to host "
        "clicks/1"
    )
    assert told[0].text.endswith(", a window later it was 0.5 s")


def test_a_new_host_has_its_name_as_soon_as_it_is_known() -> None:
    assert "slots 1-2 to a new host" in story([decision(OUT)])[0].text
    told = story([decision(OUT), entries.began(at(2), [STARTED], 800.0)])
    assert "; moves slots 1-2 to the new host clicks/2" in told[0].text


def test_an_outcome_above_the_bound_says_so() -> None:
    told = story([decision(MOVE), entries.outcome(at(3), 800.0, 1_500.0, BOUNDS)])
    assert told[0].text.endswith("it was 1.5 s, above the bound of 1.0 s")


def test_a_treatment_that_was_given_up_says_why() -> None:
    told = story([decision(OUT), entries.failed(at(9), [STARTED], "no core is free for a host")])
    assert "; wanted to move slots 1-2 to a new host" in told[0].text
    assert told[0].text.endswith("; given up: no core is free for a host")


def test_a_treatment_of_another_step_does_not_end_this_one() -> None:
    other = entries.done(At("views", 2_000.0), [MOVE], 1_000.0, 10.0)
    told = story([decision(MOVE), other])
    assert [item.step for item in told] == ["clicks", "views"]
    assert told[1].text == "step views: moved slots 1 and 3 to host clicks/1 within 1.0 s"


def test_scaling_in_says_that_a_host_is_not_needed() -> None:
    into = Treatment("scale_in", (2, 3), TWO, ONE, "")
    assert sentence(decision(into, health="good")).startswith(
        "host clicks/1 no longer needed; moves slots 2-3 to host clicks/0"
    )


def test_many_moves_are_counted() -> None:
    moves = [
        Treatment("scale_out", (2 * n, 2 * n + 1), ONE, HostId(f"new/{n}"), "") for n in range(6)
    ]
    entry = decision(OUT)
    facts = entry.facts | {"treatments": [move.facts() for move in moves]}
    assert "moves 12 slots to 6 hosts, 6 of them new" in sentence(replace(entry, facts=facts))


def test_health_without_treatment_is_told_and_not_important() -> None:
    entry = decision(health="moderate")
    assert not is_important(entry)
    assert sentence(entry) == (
        "step clicks is close to its limits; its busiest host clicks/0 has 1,940 records/s arriving, "
        "2,010 possible"
    )


def test_a_step_whose_hosts_have_not_worked_says_so() -> None:
    facts = decision(health="moderate").facts
    idle = {"hosts": [], "reasons": ["no host of clicks has worked yet."]}
    entry = Entry(0.0, 1, "clicks", "decided", "moderate", facts | idle)
    assert sentence(entry) == "step clicks: no host of clicks has worked yet"


def test_a_severe_step_that_cannot_be_treated_says_why() -> None:
    why = ("clicks/0 is severe: latency", "the step has its maximum of 2 hosts")
    assert sentence(decision(reasons=why)).endswith(
        "; nothing can be done yet: the step has its maximum of 2 hosts"
    )


SENTENCES = [
    (
        entries.host_lost(at(1), TWO, [4, 5, 6], "its process ended"),
        "host clicks/1 with slots 4-6 was lost: its process ended",
    ),
    (
        entries.host_leaves(at(1), ONE, [4], TWO),
        "host clicks/0 must go: its executor is being decommissioned; host clicks/1 takes its place "
        "with slot 4",
    ),
    (entries.setting(at(1), "at_most", 4, 8), "the maximum number of hosts is 8, was 4"),
    (entries.setting(at(1), "dry_run", False, True), "the controller was paused"),
    (
        entries.setting(at(1), "share", 0.5, 0.25),
        "step clicks may use 25 % of the SLA's latency, was 50 %",
    ),
    (
        entries.refused(at(1), "at most 4 hosts are allowed", "a fifth host"),
        "step clicks: not done: a fifth host: at most 4 hosts are allowed",
    ),
    (
        entries.couriers_changed(at(1), 2, 3, "courier 1 was busy for 85 % of its time"),
        "3 couriers read the input, before 2: courier 1 was busy for 85 % of its time",
    ),
    (
        entries.offload(
            at(1),
            Offloading(
                np.array([0.5, 0.5]), 4, 9, rate=2e3, redirected=1e3, load=0.7, load_without=1.4
            ),
            Money(0.02, 0.001),
        ),
        "functions carry 1,000 of 2,000 records/s of step clicks, 4 at a time; the busiest host is at "
        "70 % of what it can do instead of 140 %",
    ),
]


@pytest.mark.parametrize(("entry", "text"), SENTENCES, ids=[e.event for e, _ in SENTENCES])
def test_each_kind_of_entry_has_its_sentence(entry: Entry, text: str) -> None:
    assert sentence(entry) == text
    assert is_important(entry) == (entry.facts.get("name") != "share")
    assert [told.text for told in story([entry])] == [text]


def test_a_hot_key_says_what_can_be_done() -> None:
    hot = HotKey(StepId("clicks"), 12, "user=42", 5_200.0, 1.3, merges=False)
    text = sentence(entries.hot_key(at(1), hot))
    assert text.startswith("key user=42 of step clicks is hot: 5,200 records/s in slot 12, 130 %")
    assert "Divide it into several keys" in text


def test_entries_of_other_releases_keep_their_text() -> None:
    odd = Entry(0.0, 1, "clicks", "rebalanced", "slots are even now")
    old = Entry(0.0, 1, "clicks", "decided", "severe", {"treatments": [{"kind": "split"}]})
    assert [sentence(odd), sentence(old)] == ["slots are even now", "severe"]
    assert [told.text for told in story([odd, old])] == ["slots are even now", "severe"]
