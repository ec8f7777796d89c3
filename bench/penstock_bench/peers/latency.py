"""The part `latency`: latency from produce to receipt over Kafka, at a steady rate that the side can hold.

Every side keeps a count and a sum per key and writes an update for each change. Its final output is compared
with the sums of all rows. The producer and the consumer are those of `bench live`, and so are most sides.

A side begins at 10,000 rows/s. One that falls behind, so that latency grows as long as rows arrive, begins
again at a lower rate. Its result names the rate that it held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.spark.maven import Artifact, jar_folder
from penstock_bench.live import measures
from penstock_bench.live.arena import FLINK, KEYS, LiveArena, SideLoad, live_arena
from penstock_bench.live.measures import Received
from penstock_bench.live.side import SideProcess
from penstock_bench.peers.engines import ENGINES, missing
from penstock_bench.report import PartResult, Show

_RATES = (10_000, 2_000, 500)
_WARM_RATE = 5_000
"""Highest rate of the warm-up."""
_MODULE = "penstock_bench.peers.sides.kafka_spark_side"
_FLINK_KAFKA = Artifact("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
_GROWTH, _GROWTH_MS = 1.5, 200.0
"""How much a side's median latency may grow, from the first to the last third of the load, if it holds the
rate: some, since triggers and rows are not in step."""


class Side(NamedTuple):
    """One side of this part."""

    title: str
    engine: str = ""
    """The engine that must be installed, if any."""
    module: str = ""
    """Its program, if it is not a side of `bench live`."""
    rates: tuple[int, ...] = _RATES
    """Rows per second to try, until it holds one."""
    quiet_s: float = 0.0
    """Seconds without output, after which its output is complete, if its triggers take seconds."""


SIDES = {
    "penstock_live": Side("Penstock, live"),
    "penstock_live_python": Side("Penstock, live, in Python"),
    "penstock_micro": Side("Penstock, micro-batches"),
    "native": Side("Spark, RocksDB", quiet_s=10.0),
    "native_hdfs": Side("Spark, default store", module=_MODULE, quiet_s=10.0),
    # Its throughput is below 4,000 rows/s, whatever the number of rows in a trigger: see `bench pipeline`.
    "python_state": Side("Spark, state in Python", module=_MODULE, rates=(500, 100), quiet_s=10.0),
    "flink_sql": Side("Flink SQL", "flink_sql"),
    "flink_datastream": Side("PyFlink, DataStream", "flink_datastream"),
    "bytewax": Side("Bytewax", "bytewax"),
    "pathway": Side("Pathway", "pathway"),
}
"""Name of the side in the arena, or of its kind in the module -> the side."""


@dataclass(frozen=True)
class LatencyScale:
    """Size of the part."""

    warm_s: float = 12.0
    seconds: float = 12.0
    """Seconds of load, of which the first tenth does not count."""


QUICK = LatencyScale(5.0, 5.0)
FULL = LatencyScale()


@dataclass
class PeersArena(LiveArena):
    """An arena that also has the sides of this part only."""

    @contextmanager
    def side(self, name: str, load: SideLoad, *words: str) -> Iterator[SideProcess]:
        """A side on the topics of a load."""
        if not SIDES[name].module:
            with super().side(name, load, *words) as process:
                yield process
            return
        folder = self.place / f"{load.source}-side"
        topics = [self.kafka.servers, load.source, load.sink]
        process = SideProcess(SIDES[name].module, [*topics, str(folder), name], folder)
        try:
            yield process
        finally:
            process.end()


def run(show: Show, quick: bool = False) -> PartResult:
    """Run all sides in turn, which takes about eight minutes."""
    scale = QUICK if quick else FULL
    sides: dict[str, Any] = {}
    absent: dict[str, str] = {}
    with live_arena(show) as live:
        arena = PeersArena(live.kafka, live.place, show)
        for name, side in SIDES.items():
            try:
                if side.engine and (reason := missing(ENGINES[side.engine])):
                    raise PenstockError(reason)
                facts = _at_held_rate(arena, name, scale, show)
            except PenstockError as error:
                absent[name] = str(error)
                show(f"{side.title}: {error}")
                continue
            sides[name] = [facts]
            percentiles = f"p50 {facts['p50_ms']:.1f} ms, p99 {facts['p99_ms']:.1f} ms"
            show(f"{facts['rate']:,} rows/s: {side.title:<26} {percentiles}")
    rates = {name: side.rates for name, side in SIDES.items()}
    settings = asdict(scale) | {"keys": KEYS, "checkpoint_s": 1, "rates": rates}
    return PartResult(settings, {"sides": sides, "missing": absent})


def _at_held_rate(arena: LiveArena, name: str, scale: LatencyScale, show: Show) -> dict[str, Any]:
    """Latencies at the highest of its rates that a side holds; PenstockError if it holds none."""
    for rate in SIDES[name].rates:
        facts, is_held = _measured(arena, name, rate, scale)
        if is_held:
            return facts
        show(f"{SIDES[name].title} does not hold {rate:,} rows/s: p99 {facts['p99_ms']:,.0f} ms")
    raise PenstockError(f"it holds none of {', '.join(map(str, SIDES[name].rates))} rows/s")


def _measured(
    arena: LiveArena, name: str, rate: int, scale: LatencyScale
) -> tuple[dict[str, Any], bool]:
    """Latencies at a rate, and whether the side holds it."""
    words = [str(jar_folder("flink-kafka", [_FLINK_KAFKA]))] if name in FLINK else []
    with arena.running(name, *words) as (side, load):
        load.produce(min(rate, _WARM_RATE), scale.warm_s)
        began_us, before_s = time.time_ns() // 1000, side.cpu_s()
        load.produce(rate, scale.seconds)
        cores = (side.cpu_s() - before_s) / scale.seconds
        _settle(load, SIDES[name].quiet_s)
        received = load.end()
    end_us = began_us + int(scale.seconds * 1e6)
    counted = measures.between(received, began_us + int(scale.seconds * 1e5), end_us)
    if not load.right(received):
        raise PenstockError("its answer is wrong: the last sums are not those of all rows")
    facts = asdict(measures.latency(counted)) | {"rate": rate, "cores": round(cores, 2)}
    return facts, held(counted, began_us, end_us)


def held(received: Received, from_us: int, to_us: int) -> bool:
    """Whether a side kept up with the rows that were produced in an interval: their latency did not grow from
    the first to the last third, and none waited for half as long as the interval.

    >>> even, rising = np.full(900, 50_000), np.arange(900) * 500
    >>> at = np.arange(900) * 1000
    >>> [held(np.stack([at + waited, at], axis=1), 0, 900_000) for waited in (even, rising)]
    [True, False]
    """
    third = (to_us - from_us) // 3
    first = measures.between(received, from_us, from_us + third)
    last = measures.between(received, to_us - third, to_us)
    if not len(first) or not len(last):
        return False
    before, after = (float(np.median(some[:, 0] - some[:, 1])) / 1000 for some in (first, last))
    return after <= _GROWTH * before + _GROWTH_MS and after < (to_us - from_us) / 2000


def _settle(load: SideLoad, quiet_s: float) -> None:
    """Wait until a side has written nothing for some seconds."""
    pause, count, since = threading.Event(), -1, time.monotonic()
    while time.monotonic() < since + quiet_s:
        now = load.count()
        if now != count:
            count, since = now, time.monotonic()
        pause.wait(0.25)
