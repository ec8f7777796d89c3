"""The query that `bench migration` measures: it is kept running while slots are moved again and again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as ps
from penstock.driver.progress import EpochProgress
from penstock.errors import PenstockError
from penstock_bench import sides
from penstock_bench.live.latency import Delivered
from penstock_bench.workloads.tally import Dial, TallyLoad, TallyProcessor, updates

HOSTS, SLOTS = 4, 64
_POLL_S = 0.02
_QUIET, _LAG_MS = 5, 1000
"""Epochs in a row, and the latency that each may have, after which a query is at rest."""
_STARTS = 3


class MovingQuery:
    """A tally of a million keys on four hosts, with its slots at home in the beginning."""

    def __init__(self, spark: SparkSession, load: TallyLoad, checkpoint: str) -> None:
        self.load = load
        self._dial = Path(checkpoint).with_suffix(".dial")
        self._dialled = Dial()
        self._dialled.turn(self._dial)
        flow = ps.flow(updates(spark, load, self._dial), arrival="arrival")
        self.query = (
            flow.key_by("k", slots=SLOTS)
            .process(TallyProcessor())
            .start(ps.to("noop"), checkpoint=checkpoint, hosts=HOSTS, migration="lazy(0)")
        )
        self.step = ""
        self._epochs: dict[int, EpochProgress] = {}
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def close(self) -> None:
        self._ended.set()
        self._watcher.join()
        self.query.stop()

    # -- the load

    def seed(self) -> None:
        """Let every key come once, then let updates arrive."""
        self.until(lambda: self.rows() >= self.load.keys, "the keys to come")
        (self.step,) = self.query.placements()
        self._dialled = Dial(int(time.time() * 1000) + 200)
        self._dialled.turn(self._dial)
        self.until(lambda: self.rows() > self.load.keys + 10 * self.load.rate, "updates")

    def draw(self, skew: float) -> None:
        """Let updates be so skewed from now on."""
        self._dialled = Dial(self._dialled.start_ms, skew)
        self._dialled.turn(self._dial)
        self.wait_s(2.0)

    def now_row(self) -> int:
        """The number of the update that arrives now, rounded up to a whole second's."""
        assert self._dialled.start_ms is not None
        passed_s = (time.time() * 1000 - self._dialled.start_ms) / 1000
        return self.load.keys + (int(passed_s) + 1) * self.load.rate

    def arrival_ms(self, row: int) -> float:
        assert self._dialled.start_ms is not None
        return self._dialled.start_ms + (row - self.load.keys) * 1000 / self.load.rate

    # -- what has happened

    def epochs(self) -> list[EpochProgress]:
        return [self._epochs[number] for number in sorted(self._epochs)]

    def rows(self) -> int:
        return sum(p.rows for p in self.epochs())

    def delivered(self) -> list[Delivered]:
        """Every epoch that is done: up to which row, and when it was in the sink."""
        told, row = [], 0
        for epoch in self.epochs():
            row += epoch.rows
            told.append(Delivered(row, epoch.started_ms + epoch.sink_ms))
        return told

    # -- slots

    def shift(self, fraction: float) -> int:
        """Ask that a part of each host's slots move to the next host. Returns how many slots."""
        each = SLOTS // HOSTS
        share = round(each * fraction)
        for host in range(HOSTS):
            first = host * each
            target = f"{self.step}/{(host + 1) % HOSTS}"
            self.query.move(self.step, range(first, first + share), to=target)
        return share * HOSTS

    def go_home(self) -> None:
        """Bring all slots home, whole, and wait until nothing is left to move."""
        self.query.migration = "all_at_once"
        for host in range(HOSTS):
            first = host * SLOTS // HOSTS
            slots = range(first, first + SLOTS // HOSTS)
            self.query.move(self.step, slots, to=f"{self.step}/{host}")
        asked_ms = time.time() * 1000
        self.until(lambda: self._settled_since(asked_ms), "slots to be home")

    def _settled_since(self, asked_ms: float) -> bool:
        """Whether all is home, and the epochs that caught up with the wait for it are over."""
        newest = [epoch for epoch in self.epochs() if epoch.started_ms > asked_ms][-_QUIET:]
        return (
            self.query.status.pending_slots == 0
            and len(newest) == _QUIET
            and all(epoch.migration.partial_slots == 0 for epoch in newest)
            and all(len(epoch.hosts) == HOSTS for epoch in newest)
            and all(e.latency is not None and e.latency.p99_ms < _LAG_MS for e in newest)
        )

    def kill_host(self, number: int) -> float:
        """Kill -9 a host; returns when, in milliseconds since 1970."""
        pid = self.query.status.hosts[f"{self.step}/{number}"]
        now_ms = time.time() * 1000
        os.kill(pid, signal.SIGKILL)
        return now_ms

    # -- waiting

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 900) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.query.is_active:
                raise PenstockError(f"the query ended: {self.query.status.message}")
            if time.monotonic() > deadline:
                raise PenstockError(f"waited {timeout_s:.0f} s for {what}")
            self._ended.wait(_POLL_S)

    def wait_s(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "time to pass")

    def _watch(self) -> None:
        """Keep all progress: the query itself only remembers the newest."""
        while not self._ended.wait(0.5):
            for epoch in self.query.progress:
                self._epochs[epoch.epoch] = epoch


@contextmanager
def moving_query(spark: SparkSession, load: TallyLoad) -> Iterator[MovingQuery]:
    """The query with all its keys in memory and updates arriving; gone when its `with` ends."""
    with sides.folder(spark) as checkpoint:
        query = _started(spark, load, checkpoint)
        try:
            query.seed()
            yield query
        finally:
            query.close()


def _started(spark: SparkSession, load: TallyLoad, checkpoint: str) -> MovingQuery:
    """Spark gives a Python source ten seconds to start, which is not much beside four hosts."""
    for attempt in range(_STARTS):
        query = MovingQuery(spark, load, f"{checkpoint}/{attempt}")
        try:
            query.until(lambda q=query: bool(q.epochs()), "the first epoch")  # type: ignore[misc]
            return query
        except PenstockError:
            query.close()
            if attempt + 1 == _STARTS:
                raise
    raise AssertionError
