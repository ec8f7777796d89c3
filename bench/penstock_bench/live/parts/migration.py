"""The part `migration`: half of a host's slots move to a new host, by strategy and size of the state.

A million keys get 4,000 updates per second. At first all keys are on one host, and a second host is empty.
Couriers generate the rows; the sink records when each is done. Latency is from arrival to sink, by the 100
ms in which rows arrived. Between runs the slots and their state are moved back. There is a checkpoint every
second, and no compaction.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.examine.vitals import Floats
from penstock.driver.progress import EpochProgress
from penstock.settings import Settings
from penstock_bench import sides
from penstock_bench.live.measures import p99_by_bin
from penstock_bench.live.query import running, until
from penstock_bench.live.receipts import Columns, Receipts, Received, done_us
from penstock_bench.report import Goal, PartResult, Show
from penstock_bench.workloads.tally import Dial, TallyByKey, TallyFeed, TallyLoad, drawn_keys

GOALS = {
    "peak_pause_over_lazy_5gb": Goal(at_least=100),
    "peak_lazy_over_steady_5gb": Goal(at_most=3),
}
KEYS, RATE, SLOTS = 1_000_000, 4_000, 64
SIZES = {"50mb": 50, "500mb": 500, "5gb": 5_000}
"""Name of a size -> bytes of payload per key."""
LAZY, PAUSE = "lazy(0)", "pause"
TRICKLE = "lazy(16)"
STRATEGIES = ("all_at_once", "batched(8)", "fluid", PAUSE, LAZY, TRICKLE)
"""Migrations in the order of the runs. Lazy ones come last: moving back state that was never requested takes
minutes."""
BIN_MS = 100
_FILL_BYTES = 5_000_000
"""Most bytes of state that arrive in a tenth of a second while the keys are loaded."""
_NO_COMPACTION = 10_000
"""Epochs until a compaction: more than a run has, so that none disturbs a single strategy."""
_LOST_MS = 20_000
"""Milliseconds of silence after which a host is given up: copying gigabytes may keep it busy for seconds."""
_QUIET, _QUIET_MS, _HOME_S = 3, 250.0, 90.0
"""A query is at rest after this many epochs with a p99 below this many milliseconds. The third value is the
timeout in seconds."""


@dataclass(frozen=True)
class MigrationScale:
    """Size of the benchmark."""

    sizes: tuple[str, ...] = ("50mb", "500mb", "5gb")
    strategies: tuple[str, ...] = STRATEGIES
    small: tuple[str, ...] = ("all_at_once", PAUSE, LAZY)
    """Strategies that are run for all sizes but the largest."""
    before_s: float = 4.0
    """Seconds before a move that are reported."""
    after_s: float = 8.0
    """Seconds after a move that are reported."""


FULL = MigrationScale()
QUICK = MigrationScale(("50mb",), STRATEGIES, after_s=4.0, before_s=3.0)


@dataclass(frozen=True)
class LiveMove:
    """The result of a run."""

    size: str
    strategy: str
    steady_ms: float
    """Median of the p99 of each 100 ms before the move."""
    peak_ms: float
    """p99 of the worst 100 ms from the move on."""
    before_ms: list[float | None]
    """p99 of each 100 ms before the move."""
    after_ms: list[float | None]
    """p99 of each 100 ms after the move."""
    moved_keys: int
    moved_bytes: int


def run(show: Show, quick: bool = False) -> PartResult:
    """Run this part, which takes about six minutes and 13 GB, or a minute and a half when quick."""
    scale, moves = QUICK if quick else FULL, list[LiveMove]()
    with sides.bench_session() as spark:
        for size in scale.sizes:
            show(f"{size}: loading {KEYS:,} keys")
            with moving_query(spark, size) as query:
                for strategy in scale.strategies if size == scale.sizes[-1] else scale.small:
                    show(f"{size}: {strategy}")
                    query.move(strategy, scale.before_s, scale.after_s)
            for one in query.moves(size, scale):
                moves.append(one)
                show(
                    f"{one.size}: {one.strategy:<12} p99 {one.steady_ms:.1f} ms before, "
                    f"worst {one.peak_ms:.1f} ms; {one.moved_keys:,} keys moved"
                )
    settings = {
        "keys": KEYS,
        "rate": RATE,
        "slots": SLOTS,
        "payload_bytes": SIZES,
        "bin_ms": BIN_MS,
    }
    return PartResult(settings | asdict(scale), {"moves": [asdict(one) for one in moves]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Peak latencies in relation to each other, for each size of the state."""
    moves = {(move["size"], move["strategy"]): move for move in results["moves"]}
    ratios: dict[str, float] = {}
    for size in dict.fromkeys(move["size"] for move in results["moves"]):
        lazy, pause = moves[size, LAZY], moves[size, PAUSE]
        ratios[f"peak_pause_over_lazy_{size}"] = pause["peak_ms"] / lazy["peak_ms"]
        ratios[f"peak_lazy_over_steady_{size}"] = lazy["peak_ms"] / lazy["steady_ms"]
    return ratios


@dataclass(frozen=True)
class _Asked:
    """A requested move. Times are in milliseconds since 1970."""

    strategy: str
    at_ms: float
    until_ms: float


class MovingQuery:
    """A tally of a million keys, all on the first of two hosts."""

    def __init__(self, query: ps.FlowQuery, receipts: Receipts, dial: Path) -> None:
        self._query, self._receipts, self._dial = query, receipts, dial
        (self._step,) = query.placements()
        self._start_ms = 0
        self._asked: list[_Asked] = []
        self._epochs: list[EpochProgress] = []
        self._received: Received = np.empty((0, 3), np.int64)

    def fill(self) -> None:
        """Load every key once, onto one host, then start the updates."""
        self._go_home()
        Dial().turn(self._dial)
        until(self._query, lambda: self._rows() >= KEYS, 600)
        self._start_ms = int(time.time() * 1000) + 500
        Dial(self._start_ms).turn(self._dial)
        until(self._query, lambda: self._rows() > KEYS + 3 * RATE, 60)

    def move(self, strategy: str, before_s: float, after_s: float) -> None:
        """Move all slots back, wait, request a move, and wait. `TRICKLE` moves the half that is still
        there."""
        if strategy != TRICKLE:
            self._go_home()
            self._rest()
        self._wait(before_s)
        self._query.migration = strategy
        at_ms = time.time() * 1000
        half = range(SLOTS // 2) if strategy == TRICKLE else range(SLOTS // 2, SLOTS)
        self._place(half, 1)
        self._wait(after_s)
        last = KEYS + int((time.time() * 1000 - self._start_ms) * RATE / 1000)
        until(self._query, lambda: self._rows() >= last, 300)
        self._asked.append(_Asked(strategy, at_ms, time.time() * 1000))

    def ended(self) -> None:
        """Save the query's progress and output before it ends."""
        self._epochs, self._received = list(self._query.progress), self._receipts.received()

    def moves(self, size: str, scale: MigrationScale) -> Iterator[LiveMove]:
        """The result of each move."""
        count = int((self._asked[-1].until_ms - self._start_ms) * RATE / 1000)
        updates = np.arange(count, dtype=np.int64)
        key = np.concatenate([np.arange(KEYS), drawn_keys(updates, KEYS, 0.0)])
        arrival_us = self._start_ms * 1000 + updates * 1_000_000 // RATE
        row_ms: Floats = (done_us(key, self._received)[KEYS:] - arrival_us) / 1000
        for asked in self._asked:
            bins = {
                name: p99_by_bin(arrival_us / 1000, row_ms, from_ms, int(span_s * 1000) // BIN_MS)
                for name, from_ms, span_s in (
                    ("before", asked.at_ms - 1000 * scale.before_s, scale.before_s),
                    ("after", asked.at_ms, scale.after_s),
                )
            }
            costs = [
                epoch.migration
                for epoch in self._epochs
                if asked.at_ms - 1000 <= epoch.started_ms < asked.until_ms - 1000
            ]
            yield LiveMove(
                size,
                asked.strategy,
                statistics.median(p99 for p99 in bins["before"] if p99 is not None),
                max(p99 for p99 in bins["after"] if p99 is not None),
                bins["before"],
                bins["after"],
                moved_keys=sum(cost.fetched_keys for cost in costs),
                moved_bytes=sum(cost.fetched_bytes for cost in costs),
            )

    def _place(self, slots: range, host: int) -> None:
        self._query.move(self._step, slots, to=f"{self._step}/{host}")

    def _go_home(self) -> None:
        self._query.migration = "all_at_once"
        self._place(range(SLOTS), 0)
        until(self._query, self._at_home, _HOME_S)

    def _at_home(self) -> bool:
        """Whether all slots and their whole state are back on the first host."""
        if self._query.status.pending_slots or not self._query.progress:
            return False
        owned = self._query.placements()[self._step]
        newest = self._query.progress[-1]
        whole = newest.migration.partial_slots == 0 and not newest.migration.handovers
        return whole and all(one["host"].endswith("/0") for one in owned if one["slots"])

    def _rest(self) -> None:
        """Wait until the query is at rest, or for `_HOME_S` seconds."""
        asked_ms = time.time() * 1000
        deadline = time.monotonic() + _HOME_S

        def rests() -> bool:
            newest = [one for one in self._query.progress if one.started_ms > asked_ms][-_QUIET:]
            quiet = [
                one for one in newest if one.latency is not None and one.latency.p99_ms < _QUIET_MS
            ]
            return len(quiet) == _QUIET or time.monotonic() > deadline

        until(self._query, rests, 2 * _HOME_S)

    def _rows(self) -> int:
        return sum(epoch.rows for epoch in self._query.progress)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        until(self._query, lambda: time.monotonic() >= end, seconds + 60, poll_s=0.02)


@contextmanager
def moving_query(spark: SparkSession, size: str) -> Iterator[MovingQuery]:
    """A query with all keys in memory and updates arriving; it ends with the block."""
    payload = SIZES[size]
    load = TallyLoad(KEYS, RATE, payload, min(20_000, _FILL_BYTES // payload))
    with tempfile.TemporaryDirectory(prefix="penstock-moves-", ignore_cleanup_errors=True) as place:
        dial, receipts = Path(place, "dial"), Receipts(place, Columns("k", "n"))
        Dial(keys=False).turn(dial)
        flow = ps.flow(TallyFeed(load, dial)).key_by("k", slots=SLOTS).process(TallyByKey())

        def start(checkpoint: str) -> ps.FlowQuery:
            return flow.start(
                ps.foreach_arrow(receipts),
                mode="live",
                checkpoint=checkpoint,
                hosts=2,
                settings=Settings(
                    progress_kept=10_000, host_lost_ms=_LOST_MS, compact_epochs=_NO_COMPACTION
                ),
            )

        with sides.folder(spark) as folder, running(start, folder) as query:
            moving = MovingQuery(query, receipts, dial)
            moving.fill()
            yield moving
            moving.ended()
