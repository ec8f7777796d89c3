"""The budget for staged input: no task waits forever, and no channel takes all of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from penstock.errors import MemoryLimitError, StaleRunError
from penstock.host.staging import Held, Staging
from penstock.operators.operator import EpochTime
from penstock.wire.messages import ChannelHeader

BUDGET = 100


def header(task: int, attempt: int = 0, run: int = 0, channel: int = 0) -> ChannelHeader:
    time = EpochTime(0, 0)
    return ChannelHeader(0, run, "step", channel * 10 + task, attempt, 20, time, task=task)


@dataclass
class Courier:
    """A task attempt: the pieces that it still has to send, and its channel to each host."""

    left: list[tuple[int, int]]
    """Pieces to send: (host, bytes)."""
    held: list[Held] = field(default_factory=list)
    hangs: bool = False

    def can_go(self, hosts: list[Staging]) -> bool:
        """Tell whether it can send: not if it hangs, or waits for a host to read its last piece."""
        return not self.hangs and all(
            host.may_read(held) for host, held in zip(hosts, self.held, strict=True)
        )


@pytest.mark.parametrize("seed", range(60))
def test_every_task_comes_to_its_end(seed: int) -> None:
    """Tasks end in any order and with any sizes, even though some attempts hang forever."""
    pick = random.Random(seed)
    hosts = [Staging(BUDGET) for _ in range(pick.randint(1, 4))]

    def attempt(task: int, number: int) -> Courier:
        sizes = [(pick.randrange(len(hosts)), pick.randint(1, 12)) for _ in range(8)]
        return Courier(sizes, [host.open(header(task, number)) for host in hosts])

    todo, running = list(range(pick.randint(2, 12))), dict[int, list[Courier]]()
    pick.shuffle(todo)
    slots, tasks, ended = pick.randint(1, 6), len(todo), 0
    while todo or running:
        while todo and len(running) < slots:
            task = todo.pop()
            running[task] = [attempt(task, 0)]
        able = [
            (task, courier)
            for task, couriers in running.items()
            for courier in couriers
            if courier.can_go(hosts)
        ]
        assert able, "all tasks wait"
        task, courier = pick.choice(able)
        if len(running[task]) == 1 and pick.random() < 0.05:
            courier.hangs = True
            running[task].append(attempt(task, 1))
        elif courier.left:
            to, size = courier.left.pop()
            assert hosts[to].add(courier.held[to], size)
        else:
            for host, held in zip(hosts, courier.held, strict=True):
                host.close(held)
            ended += 1
            del running[task]
    assert ended == tasks
    for host in hosts:
        assert host._total == sum(held.bytes for held in host._open), (
            "only channels that hang hold bytes"
        )


def test_only_the_lowest_task_goes_beyond_the_budget() -> None:
    staging = Staging(BUDGET)
    low, high = staging.open(header(3)), staging.open(header(5))
    assert staging.add(high, BUDGET - 1)
    assert staging.may_read(high)
    assert staging.add(low, 1)
    assert staging.may_read(low)
    assert not staging.may_read(high)
    lower = staging.open(header(2))
    assert staging.may_read(lower)
    assert not staging.may_read(low)
    staging.close(lower, applied=False)
    assert staging.may_read(low)
    staging.close(low)
    assert staging.may_read(high)


def test_both_channels_of_a_task_go_on() -> None:
    staging = Staging(BUDGET)
    first, second, other = (staging.open(h) for h in (header(0), header(0, channel=1), header(1)))
    staging.add(other, BUDGET)
    assert staging.may_read(first)
    assert staging.may_read(second)
    assert not staging.may_read(other)


def test_one_channel_must_fit_into_the_budget() -> None:
    staging = Staging(10 << 20)
    held = staging.open(header(0))
    staging.add(held, 10 << 20)
    with pytest.raises(MemoryLimitError, match=r"the 10.0 MB that it may stage") as raised:
        staging.add(held, 1)
    assert "maxOffsetsPerTrigger" in raised.value.hint
    assert "host_staged_mb" in raised.value.hint


def test_a_channel_that_another_attempt_has_closed_holds_nothing() -> None:
    staging = Staging(BUDGET)
    slow, quick, other = (staging.open(h) for h in (header(0), header(0, 1), header(1)))
    staging.add(slow, 60)
    staging.add(quick, 60)
    staging.close(quick)
    staging.add(other, 50)
    assert staging.may_read(other), "the slow attempt no longer counts"
    assert not staging.add(slow, 10)
    assert staging.may_read(slow)
    staging.close(slow)
    staging.close(other)
    assert staging._total == 0


def test_channels_of_an_older_run_do_not_wait() -> None:
    staging = Staging(BUDGET)
    old = staging.open(header(0))
    staging.add(old, BUDGET)
    new = staging.open(header(7, run=1))
    assert staging.may_read(new)
    with pytest.raises(StaleRunError, match="given up"):
        staging.may_read(old)
    another = staging.open(replace(header(8), run=1))
    assert staging.add(another, BUDGET - 1)
    assert staging.may_read(another), "a courier that is cut off may never close its channel"
    staging.close(another, applied=False)
    staging.close(old)
    assert staging._total == 0
    other = staging.open(replace(header(0), run=1))
    assert staging.add(other, 1), "a channel closed in another run is not closed in this one"
