"""The control loop over a simulated data plane."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock import codec
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Treatment, new_host
from penstock.control.treat.sharing import SHARE_EPOCHS
from penstock.driver.relocation import LostHost
from penstock.errors import PenstockError
from penstock.model import SLA, HostId
from penstock.settings import Settings
from tests.driver.pretence import LOAD, PARTITIONS, pretending
from tests.trials.control_trial import Obedient, Watchful
from tests.trials.ledger import CHAIN

A, B = HostId("sums/0"), HostId("sums/1")
MOVE = Treatment("balance", (0, 1), A, B, "")
OUT = Treatment("scale_out", (2, 3), A, new_host(1), "")


def ordered(*treatments: Treatment) -> Obedient:
    policy = Obedient()
    policy.orders = {"sums": lambda vitals, bounds: treatments}
    return policy


def test_an_epoch_is_looked_at_when_all_have_reported_and_when_it_is_done() -> None:
    policy = Watchful()
    with pretending(policy) as on:
        on.pass_epoch()
        before = policy.asked["sums"]
        plan = on.begin()
        on.report(partitions=1)
        assert policy.asked["sums"] == before, "decided before all have reported"
        on.report()
        assert policy.asked["sums"] == before + 1
        on.report()
        assert policy.asked["sums"] == before + 1, "a courier that was tried again counts once"
        on.seal(plan)
        assert policy.asked["sums"] == before + 2


def test_nothing_is_decided_on_the_first_epochs() -> None:
    policy = Watchful()
    with pretending(policy, warm_epochs=3) as on:
        on.pass_epoch()
        on.pass_epoch()
        assert not policy.asked
        on.pass_epoch()
        assert policy.asked


def test_a_flow_that_is_overloaded_from_its_start_is_not_left_alone() -> None:
    """Its epochs are long: the warm-up ends with the second one, or with the first if that is very long."""
    for first_ms in (100.0, 6_000.0):
        policy = Watchful()
        with pretending(policy, warm_epochs=5) as on:
            on.pass_epoch({"sums": first_ms})
            assert bool(policy.asked) == (first_ms == 6_000.0)
            on.pass_epoch({"sums": 2_000.0})
            assert policy.asked
            # the rate of the short epoch of the warm-up does not count: 100 rows in 2 s
            if first_ms == 100.0:
                assert on.vitals().service_rate.tolist() == [50.0, 50.0]


def test_hosts_are_lent_in_an_uneven_epoch_only() -> None:
    with pretending(Watchful()) as on:
        on.pass_epoch()
        on.pass_epoch()
        assert not on.relocation.lent, "hosts take 10 ms for 100 rows"
        for _ in range(60):
            on.pass_epoch({"sums": 100_000.0})
        (busy, helpers), *_ = on.relocation.lent[on.epoch - 1].items()
        assert busy not in helpers


def test_what_is_expected_of_an_epoch_is_known_while_it_is_worked_on() -> None:
    """No rows are late yet, but hosts have more rows than they can process."""
    with pretending(Watchful()) as on:
        on.pass_epoch()
        on.pass_epoch({"sums": 4_000.0})
        on.begin()
        on.report()
        records = PARTITIONS * np.array([LOAD[:4].sum(), LOAD[4:].sum()])
        work_ms = 1000 * records / on.vitals().service_rate
        assert (on.vitals().latency_ms >= work_ms + 50).all()


def test_a_run_that_is_repeated_does_not_count_its_arrivals_twice() -> None:
    with pretending(Watchful()) as once, pretending(Watchful()) as again:
        for on in (once, again):
            on.pass_epoch()
            plan = on.begin()
            on.report()
            if on is again:
                plan = on.begin(run=1)
                on.report()
                plan = on.begin(run=2)
            on.seal(plan)
            on.pass_epoch()
        assert again.vitals().rate.tolist() == once.vitals().rate.tolist()
        assert again.vitals().latency_ms.tolist() == once.vitals().latency_ms.tolist()
        assert again.vitals().rate.any()
        assert not again.vitals().backlog.any()


def test_reports_of_a_run_that_was_given_up_are_not_looked_at() -> None:
    policy = Watchful()
    with pretending(policy) as on:
        on.pass_epoch()
        before = policy.asked["sums"]
        busy = threading.Event()
        on.loop._early.submit(busy.wait)
        on.begin()
        on.loop.reported(on.seen())
        on.begin(run=1)
        busy.set()
        on.loop._early.submit(lambda: None).result()
        assert policy.asked["sums"] == before


def test_the_end_of_a_treatment_is_noticed_with_the_next_epoch() -> None:
    policy = ordered(MOVE)
    with pretending(policy) as on:
        on.pass_epoch()
        assert on.relocation.treated == [MOVE]
        asked = policy.asked["sums"]
        on.pass_epoch()
        assert on.journalled() == [("began", 0)]
        assert policy.asked["sums"] == asked, "asked while a treatment is under way"
        on.relocation.pending.clear()
        on.pass_epoch()
        assert on.journalled() == [("began", 0), ("done", 2)]
        assert policy.asked["sums"] == asked + 1


def test_more_hosts_can_be_asked_for_until_slots_move() -> None:
    more = (OUT, Treatment("scale_out", (0,), A, new_host(2), ""))
    policy = ordered(OUT)
    with pretending(policy) as on:
        on.pass_epoch()
        policy.orders = {"sums": lambda vitals, bounds: (MOVE,)}
        on.pass_epoch()
        assert on.journalled() == [("began", 0)], "a balance takes no order's place"
        policy.orders = {"sums": lambda vitals, bounds: more}
        on.pass_epoch()
        began = on.loop.journal.last(10)
        assert [e.facts["revised"] for e in began if e.event == "began"] == [False, True]
        on.relocation.pending["sums"] -= 1
        on.relocation.owner["sums"][0] = HostId("sums/9")
        policy.orders = {"sums": lambda vitals, bounds: more}
        on.pass_epoch()
        assert on.journalled() == [("began", 0), ("began", 2)], "slots have begun to move"


def test_nothing_is_decided_while_slots_are_on_their_way_for_another_reason() -> None:
    policy = Watchful()
    with pretending(policy) as on:
        on.relocation.pending["sums"] = 3
        on.pass_epoch()
        assert not policy.asked
        on.relocation.pending.clear()
        on.pass_epoch()
        assert policy.asked["sums"]
        assert on.journalled() == []


def test_a_new_host_is_journalled_under_its_name_and_nothing_is_known_of_it() -> None:
    onward = Treatment("balance", (3,), new_host(1), B, "")
    with pretending(ordered(OUT, onward)) as on:
        control = on.steps["sums"]
        control.examiner._service._rates[HostId("sums/7")] = 5.0  # Of a host that left long ago.
        on.pass_epoch()
        assert control.course.treating is not None
        assert control.course.treating.treatments == (
            replace(OUT, target=HostId("sums/7")),
            replace(onward, source=HostId("sums/7")),
        )
        on.relocation.pending.clear()
        on.pass_epoch()
        assert on.vitals().hosts == (A, B, "sums/7")
        assert np.isnan(on.vitals().service_rate).tolist() == [False, False, True]


def test_what_the_data_plane_refuses_is_told_and_the_policy_is_asked_again() -> None:
    policy = ordered(MOVE)
    with pretending(policy) as on:
        on.relocation.refuses = "no core is free"
        on.pass_epoch()
        assert on.journalled() == [("refused", 0)]
        asked = policy.asked["sums"]
        on.pass_epoch()
        assert policy.asked["sums"] > asked


@pytest.mark.parametrize("treated", [True, False])
def test_slots_that_do_not_move_for_long_stay_where_they_are(treated: bool) -> None:
    """The limit is the time that a host may take to start, since the last slot moved."""
    policy = ordered(MOVE) if treated else Watchful()
    with pretending(policy, settings=Settings(host_start_ms=4_000)) as on:
        on.pass_epoch()
        for pending in (3, 3, 3, 3, 2, 2, 2, 2, 2):
            on.relocation.pending["sums"] = pending
            on.pass_epoch()
            assert not on.relocation.stayed
        on.pass_epoch()
        assert on.relocation.stayed == ["sums"]
        assert on.journalled() == ([("began", 0), ("failed", 10)] if treated else [("refused", 10)])
        asked = policy.asked["sums"]
        on.pass_epoch()
        assert policy.asked["sums"] > asked


def test_a_host_that_cannot_be_had_is_not_asked_for_again_and_again() -> None:
    """A cluster may be full. The existing hosts may still be balanced."""
    allowed: list[int] = []

    def out(vitals: Vitals, bounds: Bounds) -> tuple[Treatment, ...]:
        allowed.append(bounds.at_most)
        return (OUT,) if bounds.at_most > len(vitals.hosts) else (MOVE,)

    policy = Obedient()
    policy.orders = {"sums": out}
    with pretending(policy, settings=Settings(host_start_ms=4_000)) as on:
        on.pass_epoch()
        for _ in range(6):
            on.pass_epoch()
        assert on.relocation.stayed == ["sums"]
        (failed,) = [entry for entry in on.loop.journal.last(20) if entry.event == "failed"]
        assert "no more hosts are requested for 120 s" in failed.text
        on.relocation.steps["sums"] = [A, B]
        on.relocation.pending.clear()
        policy.orders = {"sums": out}
        on.pass_epoch()
        assert (allowed[0], allowed[-1]) == (8, 2)
        assert on.relocation.treated[-1].kind == "balance"


def test_a_lost_host_is_journalled_and_nothing_is_known_of_the_next() -> None:
    with pretending(Watchful()) as on:
        on.pass_epoch()
        on.loop.lost_and_leaving([LostHost(B, "sums", [4, 5, 6, 7])], [], 1)
        (lost,) = on.loop.journal.last(1)
        assert (lost.event, lost.epoch, lost.facts["host"]) == ("host lost", 1, B)
        assert lost.facts["slots"] == "4-7"
        assert np.isnan(on.steps["sums"].examiner.vitals(0, [B], [0] * 8).service_rate[0])
        on.pass_epoch()
        assert on.vitals().valid


def test_a_dry_run_treats_nothing() -> None:
    with pretending(ordered(MOVE), dry_run=True) as on:
        on.pass_epoch()
        assert on.relocation.treated == []
        assert on.journalled() == []
        decided = on.loop.journal.last(1)[0]
        assert (decided.event, decided.facts["dry_run"]) == ("decided", True)


def test_the_step_that_misses_its_share_of_the_bound_gets_more_of_it() -> None:
    with pretending("static(2)", CHAIN) as on:
        alert_ms = on.steps["ledger"].bounds.alert_ms
        for _ in range(SHARE_EPOCHS):
            on.pass_epoch({"ledger": 900.0, "by-op": 10.0})
        shares = {step: c.bounds.share for step, c in on.steps.items()}
        assert shares["ledger"] > 0.5 > shares["by-op"]
        assert sum(shares.values()) == pytest.approx(1)
        assert {c.bounds.alert_ms for c in on.steps.values()} == {alert_ms}
        changed = [e for e in on.loop.journal.last(1000) if e.event == "setting"]
        assert [(e.step, e.facts["name"]) for e in changed] == [
            ("ledger", "share"),
            ("by-op", "share"),
        ]


def test_shares_stay_where_all_keep_theirs() -> None:
    with pretending("static(2)", CHAIN) as on:
        for _ in range(SHARE_EPOCHS):
            on.pass_epoch({"ledger": 100.0, "by-op": 100.0})
        assert {c.bounds.share for c in on.steps.values()} == {0.5}


@pytest.mark.parametrize("policy", ["switch", "autoflow", "drs_lb", "ds2", "static(2)"])
def test_facts_are_json(policy: str) -> None:
    with pretending(policy, CHAIN) as on:
        json.dumps(on.loop.facts(), allow_nan=False)
        for _ in range(3):
            on.pass_epoch({"by-op": 0.0})
            facts = json.loads(json.dumps(on.loop.facts(), allow_nan=False))
        assert facts["policy"] == policy
        assert on.journalled("refused") == []
        step = facts["steps"]["ledger"]
        assert step["share"] == 0.5
        assert [host["host"] for host in step["hosts"]][:2] == ["ledger/0", "ledger/1"]
        for entry in on.loop.journal.last(1000):
            json.dumps(codec.to_plain(entry), allow_nan=False)


def test_facts_tell_what_is_under_way() -> None:
    with pretending(ordered(MOVE)) as on:
        assert on.loop.facts()["steps"]["sums"]["treating"] is None
        on.pass_epoch()
        treating = on.loop.facts()["steps"]["sums"]["treating"]
        assert treating == "balance: slots 0-1 from sums/0 to sums/1"


def test_steering_changes_what_is_named_and_nothing_else() -> None:
    policy = Watchful()
    with pretending(policy, CHAIN, at_most=4) as on:
        on.steer(latency=0.5, window=3, at_least=2, alert="100ms")
        for control in on.steps.values():
            bounds = control.bounds
            assert (bounds.latency_ms, bounds.at_least, bounds.at_most) == (250, 2, 4)
            assert bounds.alert_ms == 100
            assert control.examiner.window_ms == 3000
            assert control.policy is policy
        on.steer(policy="static(3)")
        policies = [control.policy for control in on.steps.values()]
        assert [str(policy) for policy in policies] == ["static(3)", "static(3)"]
        assert policies[0] is not policies[1]
        settings = [(e.step, e.facts["name"]) for e in on.loop.journal.last(100)]
        assert settings == [
            (step, name)
            for name in ("sla", "at_least", "alert", "policy")
            for step in ("ledger", "by-op")
        ]


@pytest.mark.parametrize(
    "change", [{"at_least": 9}, {"margin": 1.5}, {"policy": "magic"}, {"alert": "soon"}]
)
def test_what_cannot_be_is_refused_and_all_stays_as_it_was(change: dict[str, Any]) -> None:
    with pretending(Watchful()) as on:
        before, bounds = on.loop.machine.elastic, on.steps["sums"].bounds
        with pytest.raises(PenstockError):
            on.steer(latency=0.001, window=0.001, **change)
        assert on.loop.machine.elastic == before
        assert on.loop.machine.sla == SLA(1000, 1000)
        assert on.steps["sums"].bounds == bounds
        assert len(on.loop.journal) == 0
        on.pass_epoch()
        json.dumps(on.loop.facts(), allow_nan=False)


def test_a_policy_that_fails_is_journalled_and_asked_again() -> None:
    class Broken(Watchful):
        def treatments(self, vitals: Vitals, bounds: Bounds) -> Sequence[Treatment]:
            raise ZeroDivisionError

    policy = Broken()
    with pretending(policy) as on:
        on.pass_epoch()
        on.pass_epoch()
        assert policy.asked["sums"] >= 2
        assert on.journalled() == [("refused", 0)], "a repeated refusal is journalled once"


@pytest.mark.parametrize(("unread", "grows"), [(0, False), (2_000_000, True)])
def test_what_waits_in_the_sources_calls_for_hosts(unread: int, grows: bool) -> None:
    """Epochs are bounded, so each is small and fast while a backlog of hours waits in the sources."""
    with pretending("switch") as on:
        on.loop._unread = lambda: unread
        for _ in range(8):
            on.pass_epoch()
        assert on.vitals().backlog.sum() == pytest.approx(unread)
        assert any(one.kind == "scale_out" for one in on.relocation.treated) is grows
