"""A trial of a flow: epochs with requests and mishaps, each compared with the flow's model."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from penstock.driver.progress import EpochProgress
from penstock.faults import FAULT_POINTS, Armed, Fault, armed
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from tests.trials.cluster import SETTINGS, MiniCluster, Partitions, cluster
from tests.trials.ledger import (
    CHAIN,
    LEDGER,
    OPS,
    SLOTS,
    SUMS,
    ChainTwin,
    LedgerTwin,
    SumsTwin,
    Twin,
)
from tests.trials.plain_rows import Row
from tests.trials.splits import halve, scatter

FLOWS: dict[str, tuple[FlowPlan, Callable[[], Twin]]] = {
    "sums": (SUMS, SumsTwin),
    "ledger": (LEDGER, LedgerTwin),
    "chain": (CHAIN, ChainTwin),
}
MIGRATIONS = ("lazy", "lazy(0)", "all_at_once", "batched(3)", "fluid", "pause")
MEMORY = (None, 1, 6_000)
"""Limits of a host's memory for state, in bytes: no limit, no room, room for about half."""
KEYS = 12
RUNS = SETTINGS.epoch_runs

How = Literal["die", "stop", "break", "linger", "cut", "shorten", "refuse", "slow"]
"""Kind of a failure. die: the process is killed. stop: it hangs and is unreachable. break: only this call
fails. linger: Spark gives up the task, but it continues. cut: the task's input breaks off. shorten: the input
breaks off and looks complete. refuse: the store fails. slow: nothing fails, but others get ahead."""

_HOWS: dict[str, tuple[How, ...]] = {
    "host": ("die", "break"),
    "driver": ("die",),
    "courier": ("die", "linger"),
    "store": ("refuse", "die"),
}
_NO_CALL = ("host.trickle", "host.install")
"""Points that are passed by a thread of the host itself: there is no call that could break."""
_UPKEEP = ("host.compact", "driver.layout", "driver.clean")
"""Points that are passed some time after the epoch."""


WITH_FUNCTIONS = ("courier.offload", "courier.offloaded")
ALL_POINTS = {name: at for name, at in FAULT_POINTS.items() if not name.startswith("sink.")}
"""All fault points that trials pass: those of sinks are missing, since their sink is a dict."""
POINTS = {name: at for name, at in ALL_POINTS.items() if name not in WITH_FUNCTIONS}
"""Fault points that flows without functions pass."""


def hows(point: str) -> tuple[How, ...]:
    """The kinds of failure that may happen at a point."""
    if point == "courier.read":
        return (*_HOWS["courier"], "cut", "shorten")
    if point == "store.read":
        return ("refuse",)  # The first reader may be a host or the driver.
    return ("die",) if point in _NO_CALL else _HOWS[point.split(".")[0]]


@dataclass(frozen=True)
class Mishap:
    """A fault as a value: point, kind, and the number of the passing."""

    point: str
    how: How
    hit: int = 1

    def fault(self, on: MiniCluster) -> Fault:
        does: Any = "raise"
        if self.how == "slow":
            does = _dawdle
        elif self.how == "stop":
            does = on.stop_host
        elif self.how == "linger":
            does = on.tasks.lose_task
        elif self.how == "cut":
            does = on.tasks.cut_input
        elif self.how == "shorten":
            does = on.tasks.shorten_input
        elif self.how == "refuse":
            does = OSError
        elif self.how == "die" and self.point.startswith("host."):
            does = on.kill_host
        elif self.point in ("driver.layout", "driver.clean"):
            does = on.kill_driver
        return Fault(self.point, do=does, hits=(self.hit,))

    @property
    def survivable(self) -> bool:
        """Whether the query must survive: neither its driver nor its store failed."""
        return self.point.startswith(("host.", "courier.")) or self.how == "refuse"


def _dawdle(where: Mapping[str, object]) -> None:
    time.sleep(0.03)


@dataclass(frozen=True)
class Request:
    """An action of a user or the environment between two epochs. Numbers are taken modulo what exists."""

    kind: Literal[
        "move", "keys", "split", "scatter", "unite", "scale", "migration", "memory", "kill", "leave",
        "restart",
    ]  # fmt: skip
    step: int = 0
    number: int = 0
    slots: tuple[int, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One epoch of a trial."""

    seed: int
    """Seed of its rows."""
    partitions: int = 2
    requests: tuple[Request, ...] = ()
    mishaps: tuple[Mishap, ...] = ()
    gap_ms: int = 1000
    reads: int = 1
    rows: int = 20
    closing: int = 0


class Trial:
    """A cluster and its model."""

    def __init__(self, name: str, on: MiniCluster, twin: Twin) -> None:
        self.name, self.cluster, self.twin = name, on, twin
        self.fired: Counter[str] = Counter()
        """Point -> number of faults that happened there."""
        self.moved: Counter[str] = Counter()
        """Number of moved slots, fetched keys, evicted entries, and rows that helpers applied."""
        self._kills = 0

    def take(self, turn: Turn) -> int:
        """Take a turn; return the number of runs that the last attempt of its epoch took."""
        self._kills = sum(request.kind == "kill" for request in turn.requests)
        for request in turn.requests:
            self.ask(request)
        self.cluster.reads = turn.reads
        return self.epoch(self.rows(turn), turn.mishaps, turn.gap_ms, turn.closing)

    def rows(self, turn: Turn) -> list[list[Row]]:
        """The rows of a turn by partition."""
        return some_rows(self.name, random.Random(turn.seed), turn.rows, turn.partitions)

    def ask(self, request: Request) -> None:
        on = self.cluster
        steps = on.flow.keyed
        step, number = steps[request.step % len(steps)].id, request.number
        if request.kind == "memory":
            on.memory_limit = MEMORY[number % len(MEMORY)]
        elif request.kind == "migration":
            on.migration = Migration.parse(MIGRATIONS[number % len(MIGRATIONS)])
            on.relocation.migration = on.migration
        elif request.kind == "kill":
            if live := on.jobs.live:
                on.jobs.kill(live[number % len(live)])
        elif request.kind == "leave":
            if live := on.jobs.live:
                on.jobs.leave(live[number % len(live)])
        elif request.kind == "restart":
            on.hosts[step] = 1 + number % 3
            on.restart()
        elif on.begun and request.kind == "scale":
            on.relocation.scale(step, 1 + number % 3)
        elif on.begun and request.kind == "split":
            halve(on.relocation, step, request.slots)
        elif on.begun and request.kind == "scatter":
            scatter(on.relocation, step, number)
        elif on.begun and request.kind == "unite":
            on.relocation.unite(step, [slot % SLOTS for slot in request.slots])
        elif on.begun and request.kind == "keys":
            hosts = on.relocation.hosts(step)
            known = sorted(on.keys(step), key=repr) if on.epoch else []
            keys = [key for n, key in enumerate(known) if n % SLOTS in request.slots]
            on.relocation.move(step, (), hosts[number % len(hosts)], keys)
        elif on.begun:
            hosts = on.relocation.hosts(step)
            slots = {slot % SLOTS for slot in request.slots}
            on.relocation.move(step, slots, hosts[number % len(hosts)])

    def epoch(
        self,
        parts: Partitions,
        mishaps: tuple[Mishap, ...] = (),
        gap_ms: int = 1000,
        closing: int = 0,
    ) -> int:
        """Run an epoch through all its mishaps, and compare its output with the model's."""
        on = self.cluster
        on.now_ms += gap_ms
        epoch, died = on.epoch, on.deaths["driver"]
        upkeep = any(mishap.point in _UPKEEP for mishap in mishaps)
        if upkeep:  # So that this epoch starts a compaction.
            on.await_upkeep()
        slow = [mishap.fault(on) for mishap in mishaps if mishap.how == "slow"]
        mishaps = tuple(mishap for mishap in mishaps if mishap.how != "slow")
        with armed(*slow), armed(*(mishap.fault(on) for mishap in mishaps)) as faults:
            after = on.await_upkeep if upkeep else lambda: None
            progress = on.run_through(parts, lambda: len(faults.fired), after, closing=closing)
        expected = self.expected([row for part in parts for row in part], closing)
        output = on.output(epoch)
        assert output == expected, (
            f"epoch {epoch} after {describe(faults)}: {difference(output, expected)}"
        )
        self.compare(progress)
        self._count(faults, mishaps, on.deaths["driver"] - died)
        moved = progress.migration
        self.moved["slots"] += sum(len(h.slots) for h in moved.handovers if h.why != "start")
        self.moved["fetched keys"] += moved.fetched_keys
        self.moved["evicted"] += moved.evicted
        self.moved["helped rows"] += moved.helped_rows
        return progress.runs

    def expected(self, rows: list[Row], closing: int) -> list[tuple[Any, ...]]:
        """Expected output of the epoch, in the order of `MiniCluster.output`."""
        return self.twin.epoch(rows, self.cluster.time_ms)

    def compare(self, progress: EpochProgress) -> None:
        """Check the other figures of an epoch."""

    def settle(self) -> None:
        """Run epochs until every slot is where it should be, and assert that hosts are too."""
        on = self.cluster
        for _ in range(2 * SLOTS):
            self.epoch([[], []])
            if on.relocation.pending == 0:
                break
        wanted = [host for step in on.flow.keyed for host in on.relocation.hosts(step.id)]
        assert on.relocation.pending == 0
        for _ in range(50):
            if sorted(on.jobs.live) == sorted(wanted):
                return
            self.epoch([[], []])
        assert sorted(on.jobs.live) == sorted(wanted), "removed hosts are still up"

    def check(self) -> None:
        """Check all state, through the hosts, through new hosts, and in the store."""
        self.epoch(everything(self.name))
        self.cluster.restart()
        self.epoch(everything(self.name))
        for step, keys in self.twin.keys().items():
            assert self.cluster.keys(step) == keys, f"keys of {step} in the store"

    def _count(self, faults: Armed, mishaps: tuple[Mishap, ...], deaths: int) -> None:
        self.fired.update(passed.point for passed in faults.fired)
        met = [m for m in mishaps if any(passed.point == m.point for passed in faults.fired)]
        if self._kills + len(faults.fired) < RUNS and all(mishap.survivable for mishap in met):
            ended = self.cluster.ended_by
            assert deaths == 0, f"{describe(faults)} ended the query: {ended!r}"


def difference(output: list[Any], expected: list[Any]) -> str:
    """A few unexpected rows, and a few missing ones."""
    more, less = Counter(output) - Counter(expected), Counter(expected) - Counter(output)
    return f"{list(more)[:3]} instead of {list(less)[:3]}"


def describe(faults: Armed) -> str:
    return ", ".join(str(passed) for passed in faults.fired) or "no fault"


@contextmanager
def trial(name: str, store: str, **kwargs: Any) -> Iterator[Trial]:
    flow, twin = FLOWS[name]
    with cluster(flow, store, **kwargs) as on:
        yield Trial(name, on, twin())


def some_rows(name: str, pick: random.Random, rows: int, partitions: int) -> list[list[Row]]:
    """Rows by partition. All rows of a ledger's key are in one partition, so that their order is known."""
    parts: list[list[Row]] = [[] for _ in range(partitions)]
    turn = pick.randrange(partitions)
    for _ in range(rows):
        key, v = pick.randrange(KEYS), pick.randrange(100)
        if name == "sums":
            parts[pick.randrange(partitions)].append({"k": key, "v": v})
        else:
            row = {"who": f"who-{key}", "op": pick.choice(OPS), "v": v}
            parts[(key + turn) % partitions].append(row)
    return parts


def everything(name: str) -> list[list[Row]]:
    """Rows that make every key emit its state."""
    if name == "sums":
        return [[{"k": key, "v": 0} for key in range(KEYS)], []]
    return [[{"who": f"who-{key}", "op": "read", "v": 0} for key in range(KEYS)], []]
