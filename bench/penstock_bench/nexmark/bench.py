"""`penstock bench nexmark`: NEXMark's queries on Penstock compared with Spark's own streaming.

The events are generated once and cut into batches of Parquet files. Both sides read them in one
session, with the `noop` sink and durability on: Penstock with two hosts per keyed step, Spark with two
shuffle partitions, once with RocksDB and once with its default store. Penstock is compared with the
faster of the two. The sides take turns. Speed is the number of events that a query reads, divided by
the time of its triggers as Spark reports it. A query that Spark's own streaming cannot run in any form
is measured on Penstock alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
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
"""Spark task slots: two hosts for each of at most four steps, and couriers."""
_MOST_S = 900.0
"""Most seconds that a side may take for all batches."""

_LONG_S = 100.0
"""Seconds of the warm-up round above which a query gets only one measured round."""

_STORES = {"native": sides.ROCKSDB, "native_hdfs": sides.HDFS}
"""State store of each side of Spark's own streaming; Penstock is compared with the faster one."""

Progress = dict[str, Any]
"""Spark's progress report of a trigger."""
Turn = Callable[[], list[Progress] | None]
"""Runs a side to its end and returns its progress; None if it cannot run."""

_PLAIN = ("q0", "q1", "q2", "q14", "q21", "q22")
"""Queries without state, in which Penstock has nothing to do."""

GOALS = {
    "geomean_vs_native": Goal(at_least=1.8),
    "geomean_with_state_vs_native": Goal(at_least=2.3),
} | {f"{name}_vs_native": Goal(at_least=0.98) for name in _PLAIN}


@dataclass(frozen=True)
class NexmarkScale:
    """Size of the benchmark."""

    events: int = 1_200_000
    batch_rows: int = 100_000
    warm: int = 3
    """Batches at the start of each run that do not count."""
    rounds: int = 3
    plain_rounds: int = 7
    """Rounds of a query without state. Its triggers are short, so their times spread most."""
    seed: int = 1

    @property
    def batches(self) -> int:
        return -(-self.events // self.batch_rows)


FULL = NexmarkScale()
QUICK = NexmarkScale(events=120_000, batch_rows=20_000, warm=2, rounds=1, plain_rounds=1)


def run(show: Show, quick: bool = False) -> Report:
    """Run the whole benchmark: an hour or more, or ten minutes when quick."""
    scale = QUICK if quick else FULL
    settings = asdict(scale) | {"hosts": HOSTS, "partitions": PARTS, "sink": "noop"}
    results = measure(TITLES, scale, show)
    return Report("nexmark", settings, results, ratios(results))


def measure(names: Iterable[str], scale: NexmarkScale, show: Show) -> dict[str, Any]:
    """Run the queries; return their results by name."""
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
    """Each query's speed divided by that of Spark's own streaming, and the geometric mean.

    A second geometric mean compares each query with Spark on RocksDB, and a third has only the queries with
    state, for which Spark has two stores.

    >>> doubled = {"vs_native": {"median": 2.0}, "vs_rocksdb": {"median": 4.0}}
    >>> ratios({"q1": doubled, "q4": {}})
    {'q1_vs_native': 2.0, 'geomean_vs_native': 2.0, 'geomean_vs_rocksdb': 4.0}
    >>> ratios({"q5": doubled | {"native_hdfs": {}}})["geomean_with_state_vs_native"]
    2.0
    """
    figures = {}
    paired = {name: result for name, result in results.items() if "vs_native" in result}
    for name, result in paired.items():
        figures[f"{name}_vs_native"] = float(result["vs_native"]["median"])
    for which in ("vs_native", "vs_rocksdb") if paired else ():
        mean = statistics.geometric_mean(result[which]["median"] for result in paired.values())
        figures[f"geomean_{which}"] = mean
    stateful = [
        result["vs_native"]["median"] for result in paired.values() if "native_hdfs" in result
    ]
    if stateful:
        figures["geomean_with_state_vs_native"] = statistics.geometric_mean(stateful)
    return figures


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
    rounds = _rounds(compete, time.monotonic() - began, scale)
    refused = native["native"].refused
    if refused is not None:
        outcome = "runs another form of it" if "native" in compete else "cannot run it"
        show(f"{name:>3}: Spark {outcome}: {refused.split('. ')[0]}")
    rates: dict[str, list[float]] = {side: [] for side in compete}
    for number in range(1, rounds + 1):
        # A later side finds warmer files and a warmer JVM, so the order alternates.
        for side in compete[:: -1 if number % 2 else 1]:
            took_ms = batch_times(turns[side]() or (), len(rows))
            rates[side].append(events_per_second(rows, took_ms, scale.warm))
        show(f"{name:>3}, round {number}: " + _line({s: r[-1] for s, r in rates.items()}))
    facts = {"streams": list(replay.query.needs), "events": sum(rows), "native_refused": refused}
    return facts | compared(rates)


def _rounds(compete: Sequence[str], warm_s: float, scale: NexmarkScale) -> int:
    """Number of measured rounds of a query, from its sides and the seconds of its warm-up round.

    >>> sides = ["penstock"], ["penstock", "native"], ["penstock", "native", "native_hdfs"]
    >>> [_rounds(compete, 10.0, FULL) for compete in sides], _rounds(["penstock"], 200.0, FULL)
    ([3, 7, 3], 1)
    """
    if warm_s > _LONG_S:
        return 1
    # Spark's default store takes part if there is state, and nothing but Penstock if Spark cannot run it.
    return scale.plain_rounds if list(compete) == ["penstock", "native"] else scale.rounds


def _first_round(turns: dict[str, Turn]) -> list[str]:
    """Run a warm-up round, which does not count, since a JVM gets faster for minutes; return the sides that
    can run."""
    turns["penstock"]()
    progress = turns["native"]()
    if progress is None:
        return ["penstock"]
    if not progress[-1]["stateOperators"]:
        # Without state, the choice of a store makes no difference.
        return ["penstock", "native"]
    turns["native_hdfs"]()
    return list(turns)


def compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Events per second of each side by round, and the ratios of the sides by round.

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
    """Events per second of the batches after the warm-up.

    >>> events_per_second([100, 100, 100, 50], [900.0, 20.0, 10.0, 5.0], warm=1)
    7142.857142857143
    """
    warm = min(warm, len(rows) - 1)
    return sum(rows[warm:]) / sum(took_ms[warm:]) * 1000


def batch_times(progress: Iterable[Progress], batches: int) -> list[float]:
    """Milliseconds that the trigger of each batch took.

    Spark's own streaming may end with a trigger without events, for its watermark: it is left out.

    >>> batch_times([{"batchId": 0, "durationMs": {"triggerExecution": 7}}], 1)
    [7.0]
    """
    took = {p["batchId"]: float(p["durationMs"]["triggerExecution"]) for p in progress}
    if missing := [batch for batch in range(batches) if batch not in took]:
        raise PenstockError(f"no progress was reported for batches {missing}")
    return [took[batch] for batch in range(batches)]


def batch_rows(replay: Replay) -> list[int]:
    """Number of events for the query in each batch."""
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
                raise PenstockError(f"the query did not end on Penstock within {_MOST_S:.0f} s")
            return [dict(progress) for progress in query.spark_query().recentProgress]
        finally:
            query.stop()


def _line(rates: dict[str, float]) -> str:
    speeds = ", ".join(f"{side} {rate:,.0f} events/s" for side, rate in rates.items())
    others = [rate for side, rate in rates.items() if side != "penstock"]
    return speeds + (f": {rates['penstock'] / max(others):.2f} times as fast" if others else "")
