"""State of a live flow is exactly once: every key's count is that of a batch computation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SettingError
from penstock.faults import Fault, armed
from tests.live.pretence import Tap, TapSource, taps
from tests.trials.ledger import NUMBERS, SLOTS, SUMS, SumsTwin
from tests.trials.live_cluster import LiveCluster, live_cluster
from tests.trials.plain_rows import Row

(STEP,) = SUMS.keyed
KEYS = 40


def slow(*values: str) -> list[Any]:
    """Parameters of tests that only `make test-all` runs."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


class LiveTrial:
    """A live flow of sums, and the model that it must agree with."""

    def __init__(self, cluster: LiveCluster, by_name: dict[str, Tap], seed: int) -> None:
        self.cluster, self.taps = cluster, list(by_name.values())
        self._pick, self._rows = random.Random(seed), list[Row]()

    def give(self, batches: int = 8, rows: int = 10) -> None:
        """Let rows arrive."""
        for _ in range(batches):
            made = [
                {"k": self._pick.randrange(KEYS), "v": self._pick.randrange(100)}
                for _ in range(rows)
            ]
            self._give(made)

    def _give(self, rows: list[Row]) -> None:
        self._rows += rows
        self._pick.choice(self.taps).give(pa.RecordBatch.from_pylist(rows, NUMBERS))

    def counted(self) -> dict[int, tuple[Any, ...]]:
        """The last output of each key: its current count."""
        newest: dict[int, tuple[Any, ...]] = {}
        for row in self.cluster.sink.all_rows():
            if row["n"] >= newest.get(row["k"], (0, 0, 0))[2]:
                newest[row["k"]] = tuple(row.values())
        return newest

    def check(self) -> None:
        """Assert that all rows are counted, and none twice."""
        self._give([{"k": key, "v": 0} for key in range(KEYS)])
        twin = SumsTwin()
        wanted = {row[0]: row for row in twin.epoch(self._rows, 0)}
        self.cluster.until(
            lambda: sum(one[2] for one in self.counted().values()) >= len(self._rows), "counted"
        )
        self.cluster.pass_epochs(1)
        assert self.counted() == wanted


@contextmanager
def live_trial(store: Path, seed: int = 1, **kwargs: Any) -> Iterator[LiveTrial]:
    by_name = taps("p0", "p1", "p2")
    source = TapSource(by_name, NUMBERS)
    with live_cluster(SUMS, [source], str(store), **kwargs) as cluster:
        yield LiveTrial(cluster, by_name, seed)


def test_rows_are_counted_once(tmp_path: Path) -> None:
    with live_trial(tmp_path) as trial:
        trial.give()
        trial.cluster.pass_epochs(2)
        trial.give()
        trial.check()
        assert all(one.runs == 1 for one in trial.cluster.progress)


def test_a_stop_and_a_start_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with live_trial(tmp_path) as trial:
        trial.give()
        trial.cluster.pass_epochs(1)
        trial.give()
        trial.cluster.restart()
        trial.give()
        trial.check()


@pytest.mark.parametrize(
    "migration", ["lazy", "pause", *slow("lazy(0)", "all_at_once", "batched(2)", "fluid")]
)
def test_slots_move_while_rows_flow(tmp_path: Path, migration: str) -> None:
    with live_trial(tmp_path, migration=migration) as trial:
        cluster = trial.cluster
        trial.give()
        cluster.pass_epochs(1)
        for turn in range(3):
            to = f"{STEP.id}/{(turn + 1) % 2}"
            cluster.relocation.move(STEP.id, range(SLOTS // 2), to)
            trial.give()
            cluster.until(lambda: not cluster.relocation.pending, "moved")
            trial.give()
        trial.check()


def test_hosts_come_and_go_while_rows_flow(tmp_path: Path) -> None:
    with live_trial(tmp_path) as trial:
        cluster = trial.cluster
        trial.give()
        cluster.pass_epochs(1)
        for hosts in (4, 1, 3):
            cluster.relocation.scale(STEP.id, hosts)
            trial.give()
            cluster.until(lambda: not cluster.relocation.pending, "scaled")
            trial.give()
        cluster.until(lambda: len(cluster.jobs.live) == 3, "hosts that left have ended")
        trial.check()


# Deaths at every point, twice each; once each with flows of all kinds: `test_live_stories`

HOST_POINTS = [
    "host.assign", "host.round", "host.seal", "host.sealed", "host.fetch", "host.fetched",
    "host.serve", "host.install", "host.trickle",
]  # fmt: skip
COURIER_POINTS = [
    "courier.polled", "courier.sent", "courier.message", "courier.messaged", "courier.flushed",
]  # fmt: skip
DRIVER_POINTS = [
    "driver.assign", "driver.begin", "driver.message", "driver.told", "driver.sealed",
    "driver.committed", "driver.layout", "driver.clean",
]  # fmt: skip


def shake(trial: LiveTrial, turns: int = 4) -> None:
    """Let rows flow, slots move, and hosts come and go."""
    cluster = trial.cluster
    trial.give()
    cluster.pass_epochs(1)
    for turn in range(turns):
        trial.give()
        with suppress(SettingError):  # The driver died, and the next one has other hosts.
            if turn % 2:
                cluster.relocation.scale(STEP.id, 2 + turn % 3)
            else:
                hosts = cluster.relocation.hosts(STEP.id)
                cluster.relocation.move(STEP.id, range(turn, SLOTS, 2), hosts[turn % len(hosts)])
        trial.give()
        cluster.pass_epochs(1)


@pytest.mark.slow
@pytest.mark.parametrize("migration", ["lazy", *slow("all_at_once")])
@pytest.mark.parametrize("point", HOST_POINTS)
def test_a_host_dies(tmp_path: Path, point: str, migration: str) -> None:
    with live_trial(tmp_path, migration=migration) as trial:
        rare = point in ("host.fetch", "host.fetched", "host.serve", "host.install")
        fault = Fault(point, do=trial.cluster.kill_host, hits=(1, 4) if rare else (3, 9))
        with armed(fault) as faults:
            shake(trial)
            trial.check()
        if (point == "host.round") or (point.startswith("host.seal")):
            assert faults.fired


@pytest.mark.slow
@pytest.mark.parametrize("point", COURIER_POINTS)
def test_a_courier_dies(tmp_path: Path, point: str) -> None:
    with live_trial(tmp_path) as trial, armed(Fault(point, hits=(5, 12))) as faults:
        shake(trial)
        trial.check()
        assert len(faults.fired) == 2
        assert sum(n for name, n in trial.cluster.deaths.items() if name.startswith("courier")) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_the_driver_dies(tmp_path: Path, point: str) -> None:
    hits = (1, 2) if point in ("driver.assign", "driver.begin", "driver.layout") else (2, 7)
    with armed(Fault(point, hits=hits)) as faults, live_trial(tmp_path) as trial:
        shake(trial)
        trial.check()
        assert faults.fired
