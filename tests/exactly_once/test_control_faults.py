"""Scaling under faults: no record is lost or repeated, and control does not get stuck."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.faults import Fault, armed
from penstock.model import HostId
from tests.trials.cluster import SETTINGS
from tests.trials.control_trial import (
    ControlTrial,
    Obedient,
    Restless,
    control_trial,
    gather,
    spread,
    unborn,
)
from tests.trials.stories import (
    NEEDS,
    OFTEN,
    cluster_options,
    drawn_turns,
    many_faults,
    random_options,
    random_turn,
)
from tests.trials.trial import (
    FLOWS,
    MEMORY,
    MIGRATIONS,
    POINTS,
    RUNS,
    Mishap,
    Turn,
    everything,
    hows,
)

GIVE_UP = SETTINGS.host_start_ms // 1000 + 2
"""Epochs of a second after which control gives up a host that does not come up."""
LATER = ("host.compact", "driver.layout", "driver.clean")
"""Fault points that are passed some time after an epoch."""


def at(point: str, do: Callable[[], None]) -> Fault:
    """A fault that calls `do` when any process passes the point."""

    def happen(where: Mapping[str, object]) -> None:
        do()

    return Fault(point, do=happen)


def killing(flow: ControlTrial, hosts: set[HostId]) -> Callable[[], None]:
    def kill() -> None:
        for host in hosts:
            flow.cluster.jobs.kill(host)

    return kill


# A fault while a treatment is under way


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_each_point_while_slots_move_to_new_hosts(tmp_path: Path, point: str) -> None:
    """Two steps get two new hosts each at once."""
    needs = NEEDS.get(point, {}) | {"settings": OFTEN}
    with control_trial("chain", str(tmp_path), Obedient(), **needs) as flow:
        flow.take(Turn(1))
        flow.order(spread)
        flow.take(Turn(2, mishaps=(Mishap(point, hows(point)[0]),)))
        assert flow.fired[point] == 1, "the point was not passed"
        assert flow.cluster.deaths["driver"] == point.startswith("driver.")
        flow.rest()
        flow.check()


@pytest.mark.parametrize("point", list(POINTS)[::3])
def test_a_host_of_a_treatment_dies_at_each_third_point(tmp_path: Path, point: str) -> None:
    """The host that gives slots away dies, or the one that gets them; slots go out and back in twice."""
    needs = NEEDS.get(point, {}) | {"settings": OFTEN}
    with control_trial("sums", str(tmp_path), Obedient(), **needs) as flow:
        flow.take(Turn(1))
        for number, order in enumerate((spread, gather, spread)):
            flow.epoch(everything("sums"))
            begun = flow.order(order)
            victims = {one.source if number == 0 else one.target for one in begun}
            lost = len(flow.entries("host lost"))
            with armed(at(point, killing(flow, victims))) as faults:
                flow.take(Turn(number))
                flow.rest()
                flow.cluster.await_upkeep()
                flow.rest()
            assert faults.fired or order is gather, "the point was not passed"
            if faults.fired and point not in LATER:
                assert len(flow.entries("host lost")) > lost, "the journal has no entry of the loss"
            assert len(flow.entries("began")) == len(flow.entries("done", "failed")) == number + 1
        assert not flow.cluster.deaths["driver"]
        assert len(flow.cluster.relocation.hosts("sums")) == 4
        flow.order(gather)
        flow.take(Turn(3, mishaps=tuple(Mishap(point, how) for how in hows(point)[1:])))
        flow.rest()
        flow.check()


def test_what_was_decided_early_holds_when_the_epoch_is_run_again(tmp_path: Path) -> None:
    """A host dies while new ones start: the new ones get their slots in the next run of the epoch."""
    policy = Obedient()
    with control_trial("sums", str(tmp_path), policy) as flow:
        flow.epoch(everything("sums"))
        policy.orders = {"sums": spread}

        def die_when_others_are_up(where: Mapping[str, object]) -> None:
            flow.control._early.submit(lambda: None).result()
            flow.await_hosts()
            flow.cluster.kill_host(where)

        with armed(Fault("host.seal", do=die_when_others_are_up)) as faults:
            assert flow.take(Turn(1)) == 2, "the epoch was not run again"
        began, lost = flow.entries("began", "host lost")
        assert (began.epoch, lost.epoch) == (1, 1)
        assert lost.facts["host"] == faults.fired[0].where["host"]
        assert {"sums/2", "sums/3"} < set(flow.cluster.relocation.routes("sums").hosts)
        flow.rest()
        assert len(flow.cluster.relocation.hosts("sums")) == 4
        flow.check()


@pytest.mark.parametrize("migration", ["fluid", "all_at_once"])
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_the_driver_dies_in_the_middle_of_a_treatment(
    tmp_path: Path, migration: str, epochs: int
) -> None:
    """The next driver knows nothing of the treatment, and begins with the hosts of its start."""
    with control_trial("sums", str(tmp_path), Obedient(), hosts=1, migration=migration) as flow:
        flow.epoch(everything("sums"))
        flow.order(spread)
        for seed in range(epochs):
            flow.take(Turn(seed))
        flow.cluster.restart()
        flow.take(Turn(3))
        flow.rest()
        assert flow.cluster.jobs.live == ["sums/0"]
        flow.order(spread)
        flow.rest()
        assert len(flow.cluster.jobs.live) == 3
        flow.check()


# Always something under way


@pytest.mark.parametrize("number", range(3))
def test_hosts_and_slots_never_rest(tmp_path: Path, number: int) -> None:
    """Nothing fails: every treatment ends, and its changes then hold."""
    name, migration = sorted(FLOWS)[number % 3], MIGRATIONS[number]
    options: dict[str, Any] = {"migration": migration, "memory_limit": MEMORY[number // 2]}
    policy = Restless(number)
    with control_trial(name, str(tmp_path), policy, at_least=2, at_most=5, **options) as flow:
        for seed in range(8):
            flow.take(Turn(seed))
        flow.rest()
        began = [entry for entry in flow.entries("began") if not entry.facts["revised"]]
        assert len(flow.entries("done")) == len(began) >= 1
        for done in flow.entries("done"):
            treatments, hosts = done.facts["treatments"], set(done.facts["hosts_now"])
            left = {one["source"] for one in treatments if one["kind"] == "scale_in"}
            assert not left & hosts
            assert {one["target"] for one in treatments} - left <= hosts
        assert flow.cluster.deaths["driver"] == 0
        flow.check()


def tell_story(flow: ControlTrial, pick: random.Random, epochs: int, most: int) -> None:
    """Run epochs with treatments, mishaps, requests, deaths, restarts, and hosts that do not come up."""
    for _ in range(epochs):
        flow.cluster.start_faults = unborn(flow, pick) if pick.random() < 0.25 else {}
        requests = pick.choice((0, 0, 1))
        flow.take(random_turn(pick, mishaps=pick.randint(0, most), requests=requests))
    flow.cluster.start_faults = {}
    flow.rest()
    flow.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_story_of_faults(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    name = sorted(FLOWS)[seed % 3]
    with control_trial(name, str(tmp_path), Restless(seed), **random_options(pick)) as flow:
        tell_story(flow, pick, epochs=6, most=3)
        assert flow.entries("began")


@settings(max_examples=4, derandomize=True, database=None)
@given(
    name=st.sampled_from(sorted(FLOWS)),
    story=st.lists(drawn_turns(), min_size=2, max_size=5),
    seed=st.integers(0, 1 << 16),
    options=cluster_options,
)
def test_any_story_under_control(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    story: list[Turn],
    seed: int,
    options: dict[str, Any],
) -> None:
    store = str(tmp_path_factory.mktemp("store"))
    with control_trial(name, store, Restless(seed), **options) as flow:
        for turn in story:
            flow.take(turn)
        flow.rest()
        flow.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_faults_under_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: Counter[str] = Counter()

    def tell(story: int, pick: random.Random) -> Counter[str]:
        name, store = pick.choice(("sums", "ledger", "chain")), str(tmp_path / str(story))
        with control_trial(name, store, Restless(story), **random_options(pick)) as flow:
            tell_story(flow, pick, epochs=16, most=RUNS)
        events.update(entry.event for _, entry in flow.cluster.journal)
        return flow.fired

    assert set(many_faults(1000, tell, capsys)) == set(POINTS)
    assert events["done"] > 100


# Hosts that do not come up


def give_up(flow: ControlTrial) -> None:
    """Let the time pass in which a new host may come up."""
    for turn in range(GIVE_UP):
        flow.take(Turn(turn))
    flow.rest()


@pytest.mark.parametrize("birth", ["dies", "waits"])
def test_a_new_host_that_never_comes_up_is_given_up(tmp_path: Path, birth: str) -> None:
    """Slots that have moved stay, no others move, and the next treatment succeeds."""
    with control_trial("sums", str(tmp_path), Obedient(), hosts=1) as flow:
        flow.epoch(everything("sums"))
        flow.cluster.start_faults = {"sums/2": birth}  # type: ignore[dict-item]
        flow.order(spread)
        flow.take(Turn(1))
        assert flow.treating(), "given up too early"
        give_up(flow)
        (failed,) = flow.entries("failed")
        assert (
            failed.facts["why"]
            == "a host did not come up in time; no more hosts are requested for 120 s"
        )
        assert not flow.entries("done")
        assert sorted(flow.cluster.jobs.live) == ["sums/0", "sums/1"]
        flow.cluster.start_faults = {}
        flow.order(spread)
        flow.rest()
        assert len(flow.entries("done")) == 1
        flow.check()


def test_a_new_host_that_comes_up_at_last_is_worth_waiting_for(tmp_path: Path) -> None:
    with control_trial("chain", str(tmp_path), Obedient(), hosts=1) as flow:
        flow.epoch(everything("chain"))
        flow.cluster.start_faults = {"ledger/1": "dies", "by-op/2": "dies"}
        flow.order(spread)
        flow.take(Turn(1))
        flow.cluster.start_faults = {}
        flow.rest()
        assert len(flow.entries("done")) == 2
        assert not flow.entries("failed")
        flow.check()


@pytest.mark.parametrize("migration", ["lazy", "pause"])
def test_a_new_host_dies_for_good_as_it_gets_its_first_slots(
    tmp_path: Path, migration: str
) -> None:
    """The epoch does not wait for the host, and in the end control does not either."""
    with control_trial("sums", str(tmp_path), Obedient(), migration=migration) as flow:
        flow.epoch(everything("sums"))
        targets = {one.target for one in flow.order(spread)}
        flow.cluster.start_faults = dict.fromkeys(targets, "waits")
        with armed(at("host.assign", killing(flow, targets))) as faults:
            flow.take(Turn(1))
        assert faults.fired
        assert {entry.facts["host"] for entry in flow.entries("host lost")} == targets
        give_up(flow)
        assert len(flow.entries("failed")) == 1
        assert sorted(flow.cluster.jobs.live) == ["sums/0", "sums/1"]
        flow.check()


def test_a_host_that_dies_for_good_does_not_keep_control_waiting(tmp_path: Path) -> None:
    """No treatment is under way. The dead host's slots stay with the hosts that took them."""
    with control_trial("sums", str(tmp_path), Obedient()) as flow:
        flow.epoch(everything("sums"))
        flow.cluster.start_faults = {"sums/1": "waits"}
        flow.cluster.jobs.kill("sums/1")
        flow.take(Turn(1))
        asked = flow.policy.asked["sums"]
        flow.take(Turn(2))
        assert flow.policy.asked["sums"] == asked, "decided while slots wait for their host"
        give_up(flow)
        lost, refused = flow.entries("host lost", "refused")
        assert lost.facts["host"] == "sums/1"
        assert refused.facts["why"] == "a host did not come up in time"
        assert flow.cluster.relocation.hosts("sums") == ["sums/0"]
        flow.cluster.start_faults = {}
        flow.order(spread)
        flow.rest()
        assert len(flow.entries("done")) == 1
        flow.check()


def test_slots_that_move_one_by_one_are_not_given_up(tmp_path: Path) -> None:
    """A treatment is not given up as long as slots move, however long that takes."""
    with control_trial("sums", str(tmp_path), Obedient(), hosts=1, migration="fluid") as flow:
        flow.epoch(everything("sums"))
        flow.order(spread)
        while flow.treating():
            flow.take(Turn(1, gap_ms=4000))
        (done,) = flow.entries("done")
        assert done.facts["took_ms"] > SETTINGS.host_start_ms
        flow.check()
