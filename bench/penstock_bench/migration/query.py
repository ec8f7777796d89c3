"""The query that `bench migration` measures: it keeps running while slots move."""

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
"""A query is at rest after this many epochs with a p99 below this many milliseconds."""
_STARTS = 3


class MovingQuery:
    """A tally of a million keys on four hosts, each with its initial slots at first."""

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
        """Load every key once, then start the updates."""
        self.until(lambda: self.rows() >= self.load.keys, "the keys to be loaded")
        (self.step,) = self.query.placements()
        self._dialled = Dial(int(time.time() * 1000) + 200)
        self._dialled.turn(self._dial)
        self.until(lambda: self.rows() > self.load.keys + 10 * self.load.rate, "updates")

    def draw(self, skew: float) -> None:
        """Change the skew of the updates."""
        self._dialled = Dial(self._dialled.start_ms, skew)
        self._dialled.turn(self._dial)
        self.wait_s(2.0)

    def now_row(self) -> int:
        """Number of the update that arrives now, rounded up to a whole second."""
        assert self._dialled.start_ms is not None
        passed_s = (time.time() * 1000 - self._dialled.start_ms) / 1000
        return self.load.keys + (int(passed_s) + 1) * self.load.rate

    def arrival_ms(self, row: int) -> float:
        assert self._dialled.start_ms is not None
        return self._dialled.start_ms + (row - self.load.keys) * 1000 / self.load.rate

    # -- progress

    def epochs(self) -> list[EpochProgress]:
        return [self._epochs[number] for number in sorted(self._epochs)]

    def rows(self) -> int:
        return sum(p.rows for p in self.epochs())

    def delivered(self) -> list[Delivered]:
        """The last row of each epoch, and the time at which its output was in the sink."""
        points, row = [], 0
        for epoch in self.epochs():
            row += epoch.rows
            points.append(Delivered(row, epoch.started_ms + epoch.sink_ms))
        return points

    # -- slots

    def shift(self, fraction: float) -> int:
        """Request that a share of each host's slots move to the next host; returns the number of slots."""
        each = SLOTS // HOSTS
        share = round(each * fraction)
        for host in range(HOSTS):
            first = host * each
            target = f"{self.step}/{(host + 1) % HOSTS}"
            self.query.move(self.step, range(first, first + share), to=target)
        return share * HOSTS

    def go_home(self) -> None:
        """Move all slots and their state back, and wait until this is done."""
        self.query.migration = "all_at_once"
        for host in range(HOSTS):
            first = host * SLOTS // HOSTS
            slots = range(first, first + SLOTS // HOSTS)
            self.query.move(self.step, slots, to=f"{self.step}/{host}")
        asked_ms = time.time() * 1000
        self.until(lambda: self._settled_since(asked_ms), "slots to move back")

    def _settled_since(self, asked_ms: float) -> bool:
        """Whether all slots are back, and the query has caught up since."""
        newest = [epoch for epoch in self.epochs() if epoch.started_ms > asked_ms][-_QUIET:]
        return (
            self.query.status.pending_slots == 0
            and len(newest) == _QUIET
            and all(epoch.migration.partial_slots == 0 for epoch in newest)
            and all(len(epoch.hosts) == HOSTS for epoch in newest)
            and all(e.latency is not None and e.latency.p99_ms < _LAG_MS for e in newest)
        )

    def kill_host(self, number: int) -> float:
        """Kill a host with SIGKILL; returns the time in milliseconds since 1970."""
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
        """Collect the progress of all epochs, since the query keeps only the newest."""
        while not self._ended.wait(0.5):
            for epoch in self.query.progress:
                self._epochs[epoch.epoch] = epoch


@contextmanager
def moving_query(spark: SparkSession, load: TallyLoad) -> Iterator[MovingQuery]:
    """A query with all keys in memory and updates arriving; it ends with the block."""
    with sides.folder(spark) as checkpoint:
        query = _started(spark, load, checkpoint)
        try:
            query.seed()
            yield query
        finally:
            query.close()


def _started(spark: SparkSession, load: TallyLoad, checkpoint: str) -> MovingQuery:
    """Start the query, with retries: Spark's limit of ten seconds for a Python source is short with four
    hosts."""
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
