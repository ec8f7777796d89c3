"""Work that hosts share in the middle of an epoch is exactly once: whoever applies a row, and whatever fails,
a flow's output is that of plain dicts."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.faults import HELP_POINTS, Fault, armed
from penstock.host.machine import HostMachine
from penstock.host.pieces import Piecework
from penstock.operators.operator import Answer
from penstock.state.table.table import ColumnTable
from penstock.testing import Pace
from tests.trials.cluster import PLAIN
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import IN_TIME, MOSTLY_IN_TIME, event_trial
from tests.trials.ledger import SLOTS
from tests.trials.stories import NEEDS, random_options, random_turn
from tests.trials.trial import (
    FLOWS,
    POINTS,
    How,
    Mishap,
    Request,
    Trial,
    Turn,
    everything,
    hows,
    trial,
)

ALL_SLOTS = tuple(range(SLOTS))

SLOWLY = Fault("host.work", Pace(600), hits=())
"""Makes a piece take long enough for other hosts to take the next one."""
SHARED = replace(PLAIN, piece_ms=0.0, faults=(*PLAIN.faults, SLOWLY))
"""Settings with which each row of a key, or slot, is a piece."""
OPTIONS: dict[str, Any] = {"settings": SHARED, "all_help": True}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", FLOWS)
def test_the_output_is_the_same_whoever_applies_a_row(
    tmp_path: Path, name: str, cores: int
) -> None:
    """All kinds of state travel to a helper and back, timers and large maps and lists included."""
    options = OPTIONS | {"settings": replace(SHARED, host_cores=cores)}
    with trial(name, str(tmp_path), **options) as flow:
        for seed in range(12):
            flow.take(Turn(seed, rows=60))
        assert flow.moved["helped rows"] > 60
        flow.check()


@pytest.mark.parametrize("name", CASES)
def test_windows_joins_and_tops_are_shared(tmp_path: Path, name: str) -> None:
    behind = MOSTLY_IN_TIME if CASES[name].closes else IN_TIME
    with event_trial(name, str(tmp_path), behind, **OPTIONS) as flow:
        for seed, gap_ms in enumerate((1000, 3000, 500, 1000)):
            flow.take(Turn(seed, rows=40, gap_ms=gap_ms))
        assert flow.moved["helped rows"] or not _portable(flow)
        flow.check()


def _portable(flow: Trial) -> bool:
    return any(step.operator().portable for step in flow.cluster.flow.keyed)


@pytest.mark.parametrize(
    ("point", "how"), [(point, how) for point in HELP_POINTS for how in (*hows(point), "slow")]
)
@pytest.mark.parametrize("name", ["sums", "chain"])
def test_a_fault_while_hosts_help_each_other(
    tmp_path: Path, name: str, point: str, how: How
) -> None:
    """Before a helper applies rows, after it has, and when its owner hears of it: nothing ends the query, and
    a helper's failure does not even end the run."""
    with trial(name, str(tmp_path), hosts=3, **OPTIONS) as flow:
        flow.take(Turn(1, rows=40))
        for hit in (1, 2, 5):
            runs = flow.take(Turn(hit, rows=60, mishaps=(Mishap(point, how, hit),)))
            assert runs == 1 or how in ("die", "stop")
            assert flow.cluster.deaths["driver"] == 0
        assert flow.fired[point] or how == "slow" or point == "driver.help"
        flow.check()


@pytest.mark.parametrize("name", FLOWS)
def test_a_channel_that_has_begun_is_shared(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lazy move, a channel first applies rows whose state is here. Hosts share the rest."""
    whole, helped = HostMachine.close_pieces, Counter[bool]()

    def watched(machine: HostMachine, work: Piecework) -> Answer:
        begun = bool(machine.unapplied(work.header, work.kind, [])[1])
        helped[begun] += work.helped_rows
        return whole(machine, work)

    monkeypatch.setattr(HostMachine, "close_pieces", watched)
    with trial(name, str(tmp_path), **OPTIONS, migration="lazy(0)") as flow:
        flow.epoch(everything(name))
        for seed in range(6):
            request = Request("move", 0, seed, ALL_SLOTS[seed % 2 :: 2])
            flow.take(Turn(seed, rows=60, requests=(request,)))
        assert helped[True]
        flow.check()


@pytest.mark.parametrize("how", ["break", "die"])
@pytest.mark.parametrize("point", HELP_POINTS)
def test_faults_when_a_channel_has_begun_and_while_its_rest_is_shared(
    tmp_path: Path, point: str, how: How
) -> None:
    """What a channel has begun with is neither lost nor applied again, whether its task is tried again, or
    its host dies, or a helper of the next attempt does."""
    with trial("chain", str(tmp_path), **OPTIONS, migration="lazy(0)") as flow:
        flow.epoch(everything("chain"))
        firsts: tuple[How, ...] = ("break", "die", "break", "slow")
        for seed, first in enumerate(firsts):
            slots = ALL_SLOTS[seed % 2 :: 2]
            requests = tuple(Request("move", step, seed, slots) for step in range(2))
            mishaps = (
                Mishap("host.began", first, 1 + seed // 2),
                Mishap(point, "die" if point.startswith("driver.") else how, 1 + seed),
            )
            flow.take(Turn(seed, rows=60, requests=requests, mishaps=mishaps))
        assert flow.fired["host.began"] > 1
        flow.check()


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_each_point_while_work_is_shared(tmp_path: Path, point: str) -> None:
    """Kills of owners, helpers, couriers and drivers, retried tasks, and runs that are given up."""
    options = OPTIONS | NEEDS.get(point, {})
    with trial("chain", str(tmp_path), **options) as flow:
        flow.take(Turn(1, rows=40))
        for number, how in enumerate(hows(point)):
            died = flow.cluster.deaths["driver"]
            requests = tuple(Request("move", step, number, ALL_SLOTS) for step in range(2))
            flow.take(Turn(number, rows=40, requests=requests, mishaps=(Mishap(point, how),)))
            assert flow.cluster.deaths["driver"] - died <= point.startswith("driver.")
        flow.check()


@pytest.mark.parametrize("migration", ["lazy", "lazy(0)", "all_at_once"])
@pytest.mark.parametrize("name", FLOWS)
def test_a_channel_that_fails_in_the_middle_is_undone(
    tmp_path: Path, name: str, migration: str
) -> None:
    """Pieces that were applied are undone, here or on a helper, and the task's next attempt applies all of
    them. State that was fetched meanwhile is fetched again."""
    with trial(name, str(tmp_path), **OPTIONS, migration=migration) as flow:
        flow.epoch(everything(name))
        fired = 0
        for seed in range(6):
            requests = tuple(Request("move", step, seed, ALL_SLOTS) for step in range(2))
            hits = (2, 9 + 2 * seed, 31)
            with armed(Fault("host.work", OSError, hits=hits)) as faults:
                runs = flow.take(Turn(seed, rows=40, requests=requests))
            fired += bool(faults.fired)
            assert runs == 1, "the task's next attempt should do"
        # A channel may have only few pieces left when its state has come, so not every turn has such a hit.
        assert fired
        flow.check()


@pytest.mark.parametrize("fails", ["export", "put"])
def test_no_piece_is_lost_when_its_owner_cannot_send_it_or_use_its_result(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner applies the piece itself, or the channel fails and the task's next attempt applies it."""
    whole, calls = getattr(ColumnTable, fails), count(1)

    def some_fail(table: ColumnTable, *args: Any) -> Any:
        if threading.current_thread().name.startswith("helped") and next(calls) % 7 == 3:
            raise ValueError("the test wants it")
        return whole(table, *args)

    monkeypatch.setattr(ColumnTable, fails, some_fail)
    with trial("ledger", str(tmp_path), **OPTIONS) as flow:
        for seed in range(6):
            assert flow.take(Turn(seed, rows=40)) == 1
        assert next(calls) > 3
        flow.check()


@pytest.mark.parametrize("limit", [1, 6_000])
@pytest.mark.parametrize("migration", ["lazy", "all_at_once", "fluid"])
def test_state_that_memory_does_not_hold_is_shared(
    tmp_path: Path, migration: str, limit: int
) -> None:
    tight = replace(SHARED, host_staged_mb=0.0015, compact_epochs=1)
    options = OPTIONS | {"settings": tight, "migration": migration, "memory_limit": limit}
    with trial("ledger", str(tmp_path), **options) as flow:
        for seed in range(5):
            flow.take(Turn(seed, reads=1 + seed % 2))
        flow.take(Turn(7, requests=(Request("scale", 0, 2),)))
        flow.take(Turn(8, requests=(Request("kill", 0, 1),)))
        flow.settle()
        flow.check()


def story(folder: Path, pick: random.Random, name: str, turns: int) -> Counter[str]:
    """Run a random story with help in every epoch; return the number of faults at each point."""
    options = random_options(pick)
    options["settings"] = replace(
        options["settings"], piece_ms=SHARED.piece_ms, faults=SHARED.faults
    )
    points = [*POINTS, *HELP_POINTS, *HELP_POINTS]
    with trial(name, str(folder), all_help=True, **options) as flow:
        for _ in range(turns):
            turn = random_turn(pick, mishaps=1, requests=pick.randrange(2))
            point = pick.choice(points)
            more = Mishap(point, pick.choice((*hows(point), "slow")), pick.choice((1, 2, 4)))
            flow.take(replace(turn, mishaps=(*turn.mishaps, more)))
        flow.check()
        return flow.fired


@pytest.mark.parametrize("seed", range(6))
def test_random_stories(tmp_path: Path, seed: int) -> None:
    name = list(FLOWS)[seed % len(FLOWS)]
    story(tmp_path, random.Random(seed), name, turns=8)
