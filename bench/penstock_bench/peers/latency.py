"""The part `latency`: latency from produce to receipt over Kafka, at a steady rate that every side can hold.

Every side keeps a count and a sum per key and writes an update for each change. Its final output is compared
with the sums of all rows. The sides, the producer and the consumer are those of `bench live`.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.spark.maven import Artifact, jar_folder
from penstock_bench.live import measures
from penstock_bench.live.arena import FLINK, KEYS, LiveArena, live_arena
from penstock_bench.peers.engines import ENGINES, missing
from penstock_bench.report import PartResult, Show

SIDES = {
    "penstock_live": ("Penstock, live", ""),
    "penstock_live_python": ("Penstock, live, in Python", ""),
    "penstock_micro": ("Penstock, micro-batches", ""),
    "native": ("Spark, RocksDB", ""),
    "flink_sql": ("Flink SQL", "flink_sql"),
    "flink_datastream": ("PyFlink, DataStream", "flink_datastream"),
    "bytewax": ("Bytewax", "bytewax"),
    "pathway": ("Pathway", "pathway"),
}
"""Side of the arena -> its title, and the engine that must be installed, if any."""
_FLINK_KAFKA = Artifact("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")


@dataclass(frozen=True)
class LatencyScale:
    """Size of the part."""

    rate: int = 10_000
    """Rows per second."""
    warm_s: float = 12.0
    seconds: float = 12.0
    """Seconds of load, of which the first tenth does not count."""


QUICK = LatencyScale(10_000, 5.0, 5.0)
FULL = LatencyScale()


def run(show: Show, quick: bool = False) -> PartResult:
    """Run all sides in turn, which takes about six minutes."""
    scale = QUICK if quick else FULL
    sides: dict[str, Any] = {}
    absent: dict[str, str] = {}
    with live_arena(show) as arena:
        for name, (title, engine) in SIDES.items():
            try:
                if engine and (reason := missing(ENGINES[engine])):
                    raise PenstockError(reason)
                facts = _measured(arena, name, scale)
            except PenstockError as error:
                absent[name] = str(error)
                show(f"{title}: {error}")
                continue
            sides[name] = [facts]
            percentiles = f"p50 {facts['p50_ms']:.1f} ms, p99 {facts['p99_ms']:.1f} ms"
            show(f"{scale.rate:,} rows/s: {title:<26} {percentiles}")
    settings = asdict(scale) | {"keys": KEYS, "checkpoint_s": 1}
    return PartResult(settings, {"sides": sides, "missing": absent})


def _measured(arena: LiveArena, name: str, scale: LatencyScale) -> dict[str, Any]:
    words = [str(jar_folder("flink-kafka", [_FLINK_KAFKA]))] if name in FLINK else []
    with arena.running(name, *words) as (side, load):
        load.warm(scale.warm_s)
        began_us, before_s = time.time_ns() // 1000, side.cpu_s()
        load.produce(scale.rate, scale.seconds)
        cores = (side.cpu_s() - before_s) / scale.seconds
        received = load.end()
    length_us = int(scale.seconds * 1e6)
    counted = measures.between(received, began_us + length_us // 10, began_us + length_us)
    if not load.right(received):
        raise PenstockError("its answer is wrong: the last sums are not those of all rows")
    return asdict(measures.latency(counted)) | {"rate": scale.rate, "cores": round(cores, 2)}
