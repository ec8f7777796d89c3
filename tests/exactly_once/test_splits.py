"""Slots that are split, and keys that move without the rest of their slot, under faults."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision
from penstock.faults import armed
from tests.trials.control_trial import Restless, control_trial
from tests.trials.event_trial import event_trial
from tests.trials.ledger import SLOTS
from tests.trials.live_stories import mishap
from tests.trials.live_trial import subject_trial
from tests.trials.splits import slot_map
from tests.trials.stories import OFTEN, random_options
from tests.trials.trial import FLOWS, MIGRATIONS, Mishap, Request, Turn, hows, trial

ALL_SLOTS = tuple(range(SLOTS))


@pytest.mark.parametrize(
    ("name", "migration"),
    [(name, migration) for n, name in enumerate(FLOWS) for migration in MIGRATIONS[n::3]],
)
def test_keys_move_under_a_flow(tmp_path: Path, name: str, migration: str) -> None:
    """Keys go to other hosts, slots are split finer, hosts come and go, and in the end all is whole."""
    with trial(name, str(tmp_path), hosts=2, migration=migration) as flow:
        flow.take(Turn(0))
        step = flow.cluster.flow.keyed[0].id
        for seed, request in enumerate(
            [
                Request("keys", 0, 1, (0, 1, 2)),
                Request("keys", 0, 0, (1, 5)),
                Request("split", 0, 0, ALL_SLOTS),
                Request("scatter", 0, 1),
                Request("split", 0, 0, (8, 9, 10)),
                Request("scale", 0, 2),
                Request("scatter", 0, 2),
                Request("scale", 0, 0),
                Request("restart", 0, 2),
                Request("unite", 0, 0, (0, 1, 2)),
            ]
        ):
            flow.take(Turn(seed, requests=(request,)))
            flow.settle()
        assert slot_map(flow.cluster.relocation, step).splits
        flow.take(Turn(9, requests=(Request("move", 0, 1, ALL_SLOTS),)))
        flow.settle()
        flow.take(Turn(10))
        assert not slot_map(flow.cluster.relocation, step).splits, (
            "a slot that moves takes its keys along"
        )
        assert flow.moved["slots"] >= SLOTS
        flow.check()


POINTS = (
    "host.assign", "host.fetch", "host.fetched", "host.serve", "host.install", "host.applied", "host.seal",
    "host.sealed", "driver.assign", "driver.sealed", "courier.sent",
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_while_keys_move(tmp_path: Path, point: str) -> None:
    with trial("chain", str(tmp_path), settings=OFTEN) as flow:
        flow.take(Turn(1))
        for number, how in enumerate((*hows(point), "die", "slow")):
            for kind in ("keys", "split", "scatter", "unite"):
                asked = tuple(Request(kind, step, number, ALL_SLOTS[:5]) for step in range(2))
                flow.take(Turn(number, requests=asked, mishaps=(Mishap(point, how),)))
            flow.take(Turn(number, requests=(Request("move", 0, number, (1, 2, 3)),)))
        assert flow.fired[point], "the point was not passed"
        flow.check()


@pytest.mark.parametrize("seed", range(4))
def test_keys_move_and_come_back_while_runs_are_given_up(tmp_path: Path, seed: int) -> None:
    """Splits and moves at every boundary, with little memory, and faults that give up runs."""
    pick = random.Random(seed)
    options = random_options(pick) | {"hosts": 3, "memory_limit": pick.choice((None, 6_000))}
    with trial(pick.choice(sorted(FLOWS)), str(tmp_path), **options) as flow:
        for turn in range(12):
            kinds = pick.sample(("keys", "split", "scatter", "unite", "move", "kill"), 2)
            slots = tuple(pick.sample(range(SLOTS), 4))
            asked = tuple(Request(kind, 0, pick.randrange(6), slots) for kind in kinds)  # type: ignore[arg-type]
            point = pick.choice(("host.sealed", "host.applied", "host.fetched", "host.assign"))
            flow.take(Turn(turn, requests=asked, mishaps=(Mishap(point, "break"),)))
        flow.check()


class Hot(Restless):
    """A policy that finds the busiest slot too hot for any host, and moves slots at random."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        hot = () if self.calm else (int(vitals.rate.argmax()),)
        return replace(super().decide(vitals, bounds), hot_slots=hot)


@pytest.mark.parametrize(
    "point", ["", "host.assign", "host.fetched", "driver.assign", "host.sealed"]
)
@pytest.mark.parametrize("name", ["sums", "chain"])
def test_control_splits_slots_under_faults(tmp_path: Path, name: str, point: str) -> None:
    with control_trial(name, str(tmp_path), Hot(len(point)), at_most=4) as flow:
        for seed in range(10):
            mishaps = (Mishap(point, hows(point)[0], 2),) if point and seed % 3 == 2 else ()
            flow.take(Turn(seed, rows=60, mishaps=mishaps))
        told = flow.entries("split")
        assert "no single key explains it" in told[0].text
        assert any(slot_map(flow.cluster.relocation, s.id).splits for s in flow.cluster.flow.keyed)
        flow.check()


LIVE = ("sums", "reminders", "tumbling", "chained", "recent", "shops")
LIVE_POINTS = ("", "host.assign", "host.fetched", "host.sealed", "courier.sent", "driver.begin")


@pytest.mark.parametrize(
    ("name", "number", "point"),
    [
        pytest.param(name, n, point, marks=() if n == place else (pytest.mark.slow,))
        for place, name in enumerate(LIVE)
        for n, point in enumerate(LIVE_POINTS)
    ],
)
def test_slots_are_split_under_a_live_flow(
    tmp_path: Path, name: str, number: int, point: str
) -> None:
    """Slots are split between two runs; their parts move in the middle of one."""
    migration = MIGRATIONS[(number + len(name)) % len(MIGRATIONS)]
    with subject_trial(name, tmp_path, 5, hosts=2, migration=migration) as live:
        on, step = live.cluster, live.cluster.flow.keyed[0].id
        live.give()
        on.pass_epochs(1)
        faults = [mishap(on, point, 2)] if point else []
        with armed(*faults):
            live.resplit("split", 0, ALL_SLOTS)
            live.give(2)
            on.until(lambda: point or slot_map(on.relocation, step).splits, "split")
            for turn in range(3):
                live.resplit("scatter", 0, (), turn)
                live.give(2)
                on.pass_epochs(1)
                live.resplit("split", 0, (9, 10))
                live.give(1)
            live.resplit("unite", 0, ALL_SLOTS)
            live.give(1)
            if not point:
                on.until(lambda: not slot_map(on.relocation, step).splits, "whole again")
            live.check()


@pytest.mark.parametrize("name", ["tumbling", "own-session", "window-join", "kinds"])
def test_keys_of_windows_and_timers_move(tmp_path: Path, name: str) -> None:
    """Windows close and timers fire where their keys are, once."""
    with event_trial(name, str(tmp_path), hosts=3, migration="lazy(0)") as flow:
        for turn, kind in enumerate(("keys", "split", "scatter", "keys", "unite", "move") * 2):
            asked = (Request(kind, 0, turn, ALL_SLOTS[turn % 3 :: 2]),)  # type: ignore[arg-type]
            point = ("host.fetched", "host.sealed", "host.applied")[turn % 3]
            flow.take(Turn(turn, requests=asked, mishaps=(Mishap(point, "break"),), rows=40))
        flow.check()
