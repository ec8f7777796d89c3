"""Rows that go to burst workers are exactly once, whatever fails, and whenever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.courier.delivery import Task
from penstock.faults import Fault, InjectedFault, armed
from penstock.offload.plan.segments import segments
from tests.exactly_once.test_event_time import moves
from tests.exactly_once.test_state import swap
from tests.offload.backends.waiting import until
from tests.offload.in_process import ANYHOW, WELL, Chances, Helped, helped
from tests.trials.cluster import MiniCluster
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import MOSTLY_IN_TIME, event_trial
from tests.trials.plain_rows import Row
from tests.trials.stories import (
    GAPS_MS,
    NEEDS,
    OFTEN,
    cluster_options,
    drawn_turns,
    many_faults,
    random_options,
    random_turn,
)
from tests.trials.trial import (
    ALL_POINTS,
    FLOWS,
    WITH_FUNCTIONS,
    Mishap,
    Trial,
    Turn,
    everything,
    hows,
    trial,
)

SOON_MS = 150
"""Milliseconds after which hanging burst workers are given up."""
NAMES = ["sums", "chain"] + [
    name for name in CASES if any(segment.offloadable for segment in segments(CASES[name].flow))
]
NOW = (
    "host.channel",
    "host.applied",
    "host.seal",
    "courier.read",
    "courier.sent",
    "courier.closed",
    "courier.offload",
    "courier.offloaded",
    "driver.written",
    "driver.committed",
)
"""Fault points that every run of the tests tries; the others only run in longer test runs."""
USERS = ("own-session", "histogram", "interval", "own-changes", "recent", "batch-sums")
"""Flows of users' own aggregates and processors that merge, and joins."""
SOME = ("sums", "tumbling", "late-session", "top", "distinct", "hot", *USERS)
"""Flows that every run of the tests tries."""


def slow_unless(now: bool) -> list[Any]:
    return [] if now else [pytest.mark.slow]


@contextmanager
def helped_trial(
    name: str,
    store: Path,
    chances: Chances = ANYHOW,
    seed: int = 0,
    deadline_ms: int = SOON_MS,
    **options: Any,
) -> Iterator[tuple[Trial, Helped]]:
    """A trial of a flow that sends some rows to burst workers."""
    flow = FLOWS[name][0] if name in FLOWS else CASES[name].flow
    with helped(flow, chances, seed, deadline_ms) as by:
        if name in FLOWS:
            with trial(name, str(store), helped=by, **options) as made:
                yield made, by
        else:
            with event_trial(name, str(store), MOSTLY_IN_TIME, helped=by, **options) as timed:
                yield timed, by


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_unless(name in SOME)) for name in NAMES]
)
def test_whatever_becomes_of_burst_workers(tmp_path: Path, name: str) -> None:
    with helped_trial(name, tmp_path, hosts=3) as (flow, by):
        for seed in range(6):
            flow.take(Turn(seed, partitions=1 + seed % 3, rows=40, gap_ms=GAPS_MS[seed % 4]))
        flow.check()
        assert by.workers.did["answer"] > 5
        assert len(by.workers.did) > 3


@pytest.mark.parametrize("name", NAMES[::4])
def test_nothing_is_done_twice_when_all_is_well(tmp_path: Path, name: str) -> None:
    """Hosts reject no answer of burst workers."""
    with helped_trial(name, tmp_path, WELL, deadline_ms=10_000) as (flow, _):
        totals: Counter[str] = Counter()
        for seed in range(6):
            flow.take(Turn(seed, rows=40))
            for seen in flow.cluster.registry.seen():
                for one in seen.offloaded:
                    assert (one.failures, one.returned) == ({}, 0)
                    assert one.records <= one.rows * 4  # A row is in at most four windows.
                    totals.update(rows=one.rows, records=one.records, asked=one.invocations)
        flow.check()
        assert min(totals.values()) > 0


def in_any_order(on: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each attempt of a task get its rows in another order, as after a shuffle."""
    read = on.read

    def shuffled(part: Sequence[Row], task: Task) -> Iterator[pa.RecordBatch]:
        return read(random.Random(task.attempt).sample(part, len(part)), task)

    monkeypatch.setattr(on, "read", shuffled)


CHANGES = [("answer", "fail"), ("fail", "answer"), ("answer", "answer")]
"""Behaviour of burst workers before, and after."""
PARTED = [
    pytest.param(name, marks=slow_unless(name in ("sums", "tumbling", *USERS[:3])))
    for name in ("sums", "tumbling", "late-session", "distinct", *USERS)
]


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_task_is_tried_again_when_hosts_have_its_first_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: str, after: str
) -> None:
    """Hosts lack the second channels: those of the next attempt must bring the missing rows."""
    hosts = 3
    with helped_trial(name, tmp_path, {before: 1}, hosts=hosts, deadline_ms=10_000) as (flow, by):
        by.chance = 1.0
        in_any_order(flow.cluster, monkeypatch)
        flow.take(Turn(1, rows=60))

        def die(where: Mapping[str, object]) -> None:
            until(lambda: faults.passed["host.applied"] >= 2 * hosts)
            by.workers.chances = {after: 1}
            raise InjectedFault("courier.offloaded", where)

        with armed(Fault("courier.offloaded", do=die, hits=(1, 2))) as faults:
            assert flow.take(Turn(2, rows=60)) == 1, "another run does not try it"
        assert len(faults.fired) == 2
        flow.check()


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_task_is_given_up_when_some_hosts_have_its_second_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: str, after: str
) -> None:
    """Other hosts get theirs from the next attempt, where burst workers answer what they did not before."""
    partitions, hosts = 2, 3
    with helped_trial(name, tmp_path, {before: 1}, hosts=hosts, deadline_ms=10_000) as (flow, by):
        by.chance = 1.0
        in_any_order(flow.cluster, monkeypatch)
        flow.take(Turn(1, rows=60))
        attempts = flow.cluster.tasks.attempts

        def give_up(where: Mapping[str, object]) -> None:
            until(lambda: seconds.passed["host.applied"] >= partitions * hosts + 1)
            by.workers.chances = {after: 1}
            flow.cluster.tasks.lose_task(where)

        late = Fault("host.channel", do=give_up, where={"partition": partitions})
        with armed() as seconds, armed(late) as faults:
            assert flow.take(Turn(2, rows=60)) == 1, "another run does not try it"
        assert len(faults.fired) == 1
        assert flow.cluster.tasks.attempts > attempts + partitions
        flow.check()


@pytest.mark.parametrize(
    ("point", "name"),
    [
        pytest.param(point, name, marks=slow_unless(point in NOW and name in SOME))
        for number, point in enumerate(ALL_POINTS)
        for name in dict.fromkeys(
            ("sums", NAMES[2 + number % (len(NAMES) - 2)], USERS[number % len(USERS)])
        )
    ],
)
def test_a_fault_at_each_point(tmp_path: Path, point: str, name: str) -> None:
    options = {"settings": OFTEN} | NEEDS.get(point, {})
    with helped_trial(name, tmp_path, **options) as (flow, by):
        by.chance = 1.0
        for number, how in enumerate(hows(point)):
            flow.settle()
            if name in FLOWS:
                flow.epoch(everything(name))
            flow.take(Turn(number, rows=40))
            died = flow.cluster.deaths["driver"]
            requests = swap(flow, number) if name in FLOWS else moves(flow)  # type: ignore[arg-type]
            mishap = Mishap(point, how)
            flow.take(Turn(9 + number, requests=requests, mishaps=(mishap,), rows=40, gap_ms=3000))
            assert flow.fired[point] == number + 1, "the point was not passed"
            assert flow.cluster.deaths["driver"] - died == point.startswith("driver.")
        flow.check()


@settings(max_examples=5, derandomize=True, database=None)
@given(
    name=st.sampled_from(NAMES),
    story=st.lists(drawn_turns(ALL_POINTS, [40, 5, 0], GAPS_MS), min_size=2, max_size=6),
    options=cluster_options,
    seed=st.integers(0, 99),
)
def test_any_story_gives_what_lists_give(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    story: list[Turn],
    options: dict[str, Any],
    seed: int,
) -> None:
    store = tmp_path_factory.mktemp("store")
    with helped_trial(name, store, ANYHOW, seed, **options) as (flow, _):
        for turn in story:
            flow.take(turn)
        flow.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_hundred_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    did: Counter[str] = Counter()

    def tell(story: int, pick: random.Random) -> Counter[str]:
        name, store = NAMES[story % len(NAMES)], tmp_path / str(story)
        with helped_trial(name, store, ANYHOW, story, **random_options(pick)) as (flow, by):
            for number in range(12):
                turn = random_turn(pick, mishaps=pick.randint(1, 4), requests=1)
                mishaps = (*turn.mishaps, Mishap(WITH_FUNCTIONS[number % 2], "die"))
                flow.take(replace(turn, mishaps=mishaps, gap_ms=pick.choice(GAPS_MS)))
            flow.check()
        did.update(by.workers.did)
        return flow.fired

    assert set(WITH_FUNCTIONS) < set(many_faults(500, tell, capsys))
    assert set(did) == set(ANYHOW)
