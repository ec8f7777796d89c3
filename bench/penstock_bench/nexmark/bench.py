"""`penstock bench nexmark`: NEXMark's queries on Penstock beside Spark's own streaming.

The events are generated once and cut into batches of Parquet files that both sides read, in one
session, into the `noop` sink, durability on: Penstock with two hosts for each keyed step, Spark in
two shuffle partitions, once with RocksDB and once with its default store. Penstock is held against
the better of the two. The sides take turns. Speed is the events of the streams that a query reads,
over what Spark tells that the triggers took which read them. A query that Spark's own streaming
takes in no form is measured on Penstock alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import PenstockError
from penstock_bench import sides
from penstock_bench.nexmark.native import NativeSide
from penstock_bench.report import Goal, Report, Sample, Show
from penstock_bench.workloads.nexmark.catalog import TITLES, find
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.files import ReplayInfo, chunked
from penstock_bench.workloads.nexmark.generator import generate
from penstock_bench.workloads.nexmark.run import PARTS, SETTINGS, Replay

HOSTS = 2
_CORES = 13
"""Task slots: two hosts for each of at most four steps, and couriers."""
_MOST_S = 900.0
"""Seconds that a side may take for all batches."""

_LONG_S = 100.0
"""A query whose first round, which does not count, took longer has one more, not several."""

_STORES = {"native": sides.ROCKSDB, "native_hdfs": sides.HDFS}
"""Where Spark's own streaming keeps its state; Penstock is held against the better one."""

Progress = dict[str, Any]
"""What Spark tells of a trigger."""
Turn = Callable[[], list[Progress] | None]
"""Runs a side to its end; None if it cannot run."""

GOALS = {"geomean_vs_native": Goal(at_least=2.0)}


@dataclass(frozen=True)
class NexmarkScale:
    """How much of it to run."""

    events: int = 600_000
    batch_rows: int = 100_000
    warm: int = 2
    """Batches of each run that come first and do not count."""
    rounds: int = 2
    seed: int = 1

    @property
    def batches(self) -> int:
        return -(-self.events // self.batch_rows)


FULL = NexmarkScale()
QUICK = NexmarkScale(events=120_000, batch_rows=20_000, rounds=1)


def run(show: Show, quick: bool = False) -> Report:
    """Run everything; takes about half an hour, ten minutes when quick."""
    scale = QUICK if quick else FULL
    settings = asdict(scale) | {"hosts": HOSTS, "partitions": PARTS, "sink": "noop"}
    results = measure(TITLES, scale, show)
    return Report("nexmark", settings, results, ratios(results))


def measure(names: Iterable[str], scale: NexmarkScale, show: Show) -> dict[str, Any]:
    """What these queries gave, by name."""
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as place:
        show(f"generating {scale.events:,} events")
        events, batches = Path(place, "events"), Path(place, "batches")
        generate(NexmarkConfig(scale.events, scale.seed), events, "parquet")
        needs = {stream: SCHEMAS[stream].names for stream in STREAMS}
        info = chunked(events, batches, scale.batch_rows, needs, parts=PARTS)
        show("starting Spark")
        kept = {
            "spark.sql.streaming.numRecentProgressUpdates": str(scale.batches + 10),
            # Spark's default store holds the state of joins in the JVM's memory.
            "spark.driver.memory": "4g",
        }
        with sides.bench_session(_CORES, SETTINGS | kept) as spark:
            return {name: _query(spark, name, batches, info, scale, show) for name in names}


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Each query's speed over that of Spark's own streaming, and their geometric mean.

    Then the mean once more where each query is held against Spark with RocksDB.

    >>> doubled = {"vs_native": {"median": 2.0}, "vs_rocksdb": {"median": 4.0}}
    >>> ratios({"q1": doubled, "q4": {}})
    {'q1_vs_native': 2.0, 'geomean_vs_native': 2.0, 'geomean_vs_rocksdb': 4.0}
    """
    found = {}
    paired = {name: result for name, result in results.items() if "vs_native" in result}
    for name, result in paired.items():
        found[f"{name}_vs_native"] = float(result["vs_native"]["median"])
    for which in ("vs_native", "vs_rocksdb") if paired else ():
        mean = statistics.geometric_mean(result[which]["median"] for result in paired.values())
        found[f"geomean_{which}"] = mean
    return found


def _query(
    spark: SparkSession, name: str, folder: Path, info: ReplayInfo, scale: NexmarkScale, show: Show
) -> dict[str, Any]:
    replay = Replay(find(name), folder, info, scale.batch_rows)
    rows = batch_rows(replay)
    native = {side: NativeSide(name, store) for side, store in _STORES.items()}
    turns: dict[str, Turn] = {
        "penstock": lambda: _penstock(spark, replay),
        "native": lambda: native["native"].run(replay.streams(spark), _MOST_S),
        "native_hdfs": lambda: native["native_hdfs"].run(replay.streams(spark), _MOST_S),
    }
    began = time.monotonic()
    compete = _first_round(turns)
    rounds = scale.rounds if time.monotonic() - began < _LONG_S else 1
    refused = native["native"].refused
    if refused is not None:
        instead = "runs another form" if "native" in compete else "runs no form"
        show(f"{name:>3}: Spark {instead}: {refused.split('. ')[0]}")
    rates: dict[str, list[float]] = {side: [] for side in compete}
    for number in range(1, rounds + 1):
        # Whoever is later finds files and a JVM that are warmer: they change places.
        for side in compete[:: -1 if number % 2 else 1]:
            took_ms = batch_times(turns[side]() or (), len(rows))
            rates[side].append(events_per_second(rows, took_ms, scale.warm))
        show(f"{name:>3}, round {number}: " + _line({s: r[-1] for s, r in rates.items()}))
    told = {"streams": list(replay.query.needs), "events": sum(rows), "native_refused": refused}
    return told | compared(rates)


def _first_round(turns: dict[str, Turn]) -> list[str]:
    """A round that does not count, for a JVM gets faster for minutes. Tells which sides there are."""
    turns["penstock"]()
    progress = turns["native"]()
    if progress is None:
        return ["penstock"]
    if not progress[-1]["stateOperators"]:
        # Nothing for a store to hold, so that there is nothing to choose from.
        return ["penstock", "native"]
    turns["native_hdfs"]()
    return list(turns)


def compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Events a second of each side by round, and what the sides of a round make of each other.

    >>> rates = {"penstock": [4.0, 9.0], "native": [2.0, 3.0], "native_hdfs": [4.0, 1.0]}
    >>> [compared(rates)[name]["rounds"] for name in ("vs_native", "vs_rocksdb")]
    [[1.0, 3.0], [2.0, 3.0]]
    """
    figures = dict(rates)
    if "native" in rates:
        native = rates["native"]
        better = [max(both) for both in zip(native, rates.get("native_hdfs", native), strict=True)]
        for name, theirs in (("vs_native", better), ("vs_rocksdb", native)):
            pairs = zip(rates["penstock"], theirs, strict=True)
            figures[name] = [ours / other for ours, other in pairs]
    return {
        name: asdict(Sample.of(rounds)) | {"rounds": rounds} for name, rounds in figures.items()
    }


def events_per_second(rows: list[int], took_ms: list[float], warm: int) -> float:
    """Events a second of the batches after those that do not count.

    >>> events_per_second([100, 100, 100, 50], [900.0, 20.0, 10.0, 5.0], warm=1)
    7142.857142857143
    """
    warm = min(warm, len(rows) - 1)
    return sum(rows[warm:]) / sum(took_ms[warm:]) * 1000


def batch_times(progress: Iterable[Progress], batches: int) -> list[float]:
    """Milliseconds that the trigger of each batch took.

    Spark's own streaming may end with a trigger for time alone, which brings no events: left out.

    >>> batch_times([{"batchId": 0, "durationMs": {"triggerExecution": 7}}], 1)
    [7.0]
    """
    took = {p["batchId"]: float(p["durationMs"]["triggerExecution"]) for p in progress}
    if missing := [batch for batch in range(batches) if batch not in took]:
        raise PenstockError(f"a side of the bench told nothing of its batches {missing}")
    return [took[batch] for batch in range(batches)]


def batch_rows(replay: Replay) -> list[int]:
    """Events that each batch has for the query."""
    rows = [0] * replay.info.batches
    for stream in replay.query.needs:
        for file in (replay.folder / stream).iterdir():
            rows[int(file.name.split("-")[0])] += pq.read_metadata(file).num_rows
    return rows


def _penstock(spark: SparkSession, replay: Replay) -> list[Progress]:
    with sides.folder(spark) as checkpoint:
        query = replay.flow(spark).start(
            ps.to("noop"), checkpoint=checkpoint, hosts=HOSTS, trigger="available_now"
        )
        try:
            if not query.await_termination(_MOST_S):
                raise PenstockError(f"Penstock's side took over {_MOST_S:.0f} s")
            return [dict(progress) for progress in query.spark_query().recentProgress]
        finally:
            query.stop()


def _line(rates: dict[str, float]) -> str:
    told = ", ".join(f"{side} {rate:,.0f} events/s" for side, rate in rates.items())
    others = [rate for side, rate in rates.items() if side != "penstock"]
    return told + (f": {rates['penstock'] / max(others):.2f} times" if others else "")
