"""Settings that change in an elastic flow, dry runs, and policies with impossible decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.elastic import Steering
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError
from penstock.model import HostId
from tests.trials.control_trial import Obedient, Order, Restless, control_trial, spread
from tests.trials.trial import Turn, everything


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    with control_trial("chain", str(tmp_path), Restless(1), dry_run=True) as flow:
        for seed in range(6):
            flow.take(Turn(seed))
        assert sum(flow.policy.ordered.values()) > 6
        assert {entry.event for _, entry in flow.cluster.journal} == {"decided"}
        assert sorted(flow.cluster.jobs.live) == ["by-op/0", "by-op/1", "ledger/0", "ledger/1"]
        assert flow.moved["slots"] == 0
        flow.check()


def test_steering_while_a_treatment_is_under_way(tmp_path: Path) -> None:
    """The treatment ends as it began; later ones follow the new settings."""
    with control_trial("sums", str(tmp_path), Obedient(), migration="fluid") as flow:
        flow.epoch(everything("sums"))
        flow.order(spread)
        with pytest.raises(SettingError, match="at_least is 5 and at_most is 4 hosts"):
            flow.control.steer(Steering(at_least=5))
        assert flow.control.facts()["steps"]["sums"]["at_least"] == 1
        changes = Steering(0.3, 2, policy="static(1)", at_most=2, dry_run=True)
        facts = flow.control.steer(changes)
        assert (facts["sla"]["latency_ms"], facts["sla"]["window_ms"]) == (300, 2000)
        assert facts["steps"]["sums"]["treating"]
        assert (facts["policy"], facts["dry_run"]) == ("static(1)", True)
        while flow.treating():
            flow.take(Turn(1))
        assert len(flow.cluster.relocation.hosts("sums")) == 4
        flow.take(Turn(2))
        assert not flow.treating(), "a dry run changed something"
        flow.control.steer(Steering(dry_run=False))
        for seed in range(3):
            flow.take(Turn(seed))
            flow.rest()
        assert flow.cluster.jobs.live == flow.cluster.relocation.hosts("sums")
        assert len(flow.cluster.jobs.live) == 1
        changed = {entry.facts["name"] for entry in flow.entries("setting")}
        assert changed == {"sla", "policy", "at_most", "dry_run"}
        flow.check()


def out(vitals: Vitals, hosts: int) -> list[Treatment]:
    """A treatment with a new host for each of the first `hosts` slots."""
    return [
        Treatment("scale_out", (n,) if n < 8 else (), vitals.hosts[int(n >= 4)], new_host(n), "")
        for n in range(hosts)
    ]


def to_nowhere(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return [Treatment("balance", (0,), vitals.hosts[0], HostId("sums/77"), "")]


def no_such_slot(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return [Treatment("balance", (8,), vitals.hosts[0], vitals.hosts[1], "")]


def below_the_first_slot(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return [Treatment("balance", (-1,), vitals.hosts[1], vitals.hosts[0], "")]


def slots_left_behind(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return [*out(vitals, 1), Treatment("scale_in", (4,), vitals.hosts[1], vitals.hosts[0], "")]


def more_hosts_than_slots(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return out(vitals, 9)


def more_hosts_than_allowed(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return out(vitals, bounds.at_most)


def fewer_hosts_than_allowed(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    return [Treatment("scale_in", (4, 5, 6, 7), vitals.hosts[1], vitals.hosts[0], "")]


def a_mistake(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    raise ZeroDivisionError("no rates, no ratio")


NONSENSE: dict[Order, str] = {
    to_nowhere: "slot 0 would stay on a host that leaves",
    no_such_slot: "index 8 is out of bounds",
    below_the_first_slot: "step sums has no slot -1",
    slots_left_behind: "slot 5 would stay on a host that leaves",
    more_hosts_than_slots: "cannot have the 11 hosts",
    more_hosts_than_allowed: "22 hosts are not within 2 to 20",
    fewer_hosts_than_allowed: "1 hosts are not within 2 to 20",
    a_mistake: "ZeroDivisionError('no rates, no ratio')",
}


@pytest.mark.parametrize("order", NONSENSE)
def test_nonsense_is_journalled_and_the_flow_goes_on(tmp_path: Path, order: Order) -> None:
    policy = Obedient()
    with control_trial("sums", str(tmp_path), policy, at_least=2, at_most=20) as flow:
        flow.epoch(everything("sums"))
        policy.orders = {"sums": order}
        flow.take(Turn(1))
        flow.take(Turn(2))
        (refused,) = flow.entries("failed", "refused")
        assert NONSENSE[order] in refused.text
        assert set(flow.cluster.fleet._members) == {"sums/0", "sums/1"}, "unwanted hosts"
        assert sorted(flow.cluster.jobs.live) == ["sums/0", "sums/1"]
        flow.order(spread)
        flow.rest()
        assert len(flow.entries("done")) == 1
        flow.check()


def test_a_policy_that_answers_nothing(tmp_path: Path) -> None:
    class Silent(Obedient):
        def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
            return None  # type: ignore[return-value]

    with control_trial("sums", str(tmp_path), Silent()) as flow:
        for seed in range(3):
            flow.take(Turn(seed))
        assert len(flow.entries("refused")) == 1, "a repeated refusal is journalled once"
        flow.check()
