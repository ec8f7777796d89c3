"""`penstock bench pipeline`: a keyed sum on Penstock compared with Spark's own stateful operators, and a
processor of user code with Spark's own.

100,000 keys of int64, two source partitions, two hosts, durability on, the `noop` sink. Each side runs as a
query of its own over Spark's `rate-micro-batch` source, whose epochs have a fixed number of rows. The sides
take turns, and the time from one trigger to the next is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock_bench import sides
from penstock_bench.pipeline import memory, processors, steady_latency, tracing, user_state
from penstock_bench.pipeline.processors import ProcessorScale
from penstock_bench.report import Goal, Report, Sample, Show
from penstock_bench.sides import Triggers

KEYS = 100_000

GOALS = {
    "throughput_vs_native": Goal(at_least=2.7),
    "throughput_vs_native_worst_round": Goal(at_least=2.7),
    "trigger_vs_native": Goal(at_most=0.40),
    "throughput_vs_tws_pandas": Goal(at_least=1000),
    "throughput_vs_limit": Goal(at_least=0.9),
    "trigger_vs_limit": Goal(at_most=1.2),
    "p99_vs_native": Goal(at_most=0.45),
    "throughput_vs_native_1m": Goal(at_least=2.5),
    "host_mb_empty": Goal(at_most=220),
    "bytes_per_key_int_sum": Goal(at_most=64),
    "mb_growth_over_many_epochs": Goal(at_most=5),
    "processor_vs_tws": Goal(at_least=100),
    "processor_vectorised_vs_tws": Goal(at_least=500),
    "processor_call_us": Goal(at_most=1.5),
}


@dataclass(frozen=True)
class PipelineScale:
    """Size of the benchmark."""

    rounds: int = 5
    warm: int = 15
    """Triggers before the measurement."""
    measured: int = 25
    """Measured triggers."""
    user_state_rows: tuple[int, ...] = (10_000, 200_000)
    """Rows per epoch for Spark's Python state."""
    latency_seconds: int = 30
    memory_keys: int = 4_000_000
    memory_epochs: int = 5_000
    many_epochs: int = 20_000
    """Epochs without Spark."""
    processors: ProcessorScale = processors.FULL


QUICK = PipelineScale(1, 5, 8, (2_000,), 8, 500_000, 200, 400, processors.QUICK)
FULL = PipelineScale()


_SIZES = (10_000, 200_000, 1_000_000)
"""Rows per epoch."""


def run(show: Show, quick: bool = False, trace: bool = False) -> Report:
    """Run everything, which takes about an hour, or a few minutes when quick. With `trace`, only measure
    where the time of a trigger goes: a few minutes."""
    scale = QUICK if quick else FULL
    if trace:
        return _traced(show, scale)
    user_state.check()
    results: dict[str, Any] = {}
    show("starting Spark")
    with sides.bench_session() as spark:
        for rows in _SIZES:
            results[f"rows_{rows}"] = _compare(spark, rows, scale, show)
        results["user_state"] = user_state.measure(spark, KEYS, scale.user_state_rows, show)
        results["processors"] = processors.measure(spark, scale.processors, show)
        results["latency"] = steady_latency.measure(spark, KEYS, scale.latency_seconds, show)
        results["memory"] = memory.measure(
            spark, scale.memory_keys, scale.memory_epochs, scale.many_epochs, show
        )
    settings = asdict(scale) | {"keys": KEYS, "hosts": 2, "partitions": 2, "sink": "noop"}
    results["rounds"] = rounds(results)
    for line in spreads(results["rounds"]):
        show(line)
    return Report("pipeline", settings, results, ratios(results))


def _traced(show: Show, scale: PipelineScale) -> Report:
    show("starting Spark")
    with sides.bench_session() as spark:
        traced = tracing.measure(
            spark, KEYS, _SIZES, scale.warm, 3 * scale.measured, min(2, scale.rounds), show
        )
    show(tracing.table(traced))
    limits = {
        size: of["penstock"]["median_ms"] / of["limit"]["median_ms"] for size, of in traced.items()
    }
    found = {
        "trigger_vs_limit": limits["rows_10000"],
        "throughput_vs_limit": 1 / limits["rows_200000"],
    }
    return Report("pipeline", asdict(scale) | {"keys": KEYS}, {"trace": traced}, found)


def rounds(results: dict[str, Any]) -> dict[str, list[float]]:
    """The ratios of triggers in each round, to see whether they hold."""

    def medians(rows: int, side: str) -> list[float]:
        return list(results[f"rows_{rows}"][side]["rounds_ms"])

    def native(rows: int) -> list[float]:
        stores = zip(medians(rows, "native_hdfs"), medians(rows, "native_rocksdb"), strict=True)
        return [min(both) for both in stores]

    def over(above: list[float], below: list[float]) -> list[float]:
        return [round(a / b, 3) for a, b in zip(above, below, strict=True)]

    ours, ours_small, ours_large = (
        medians(rows, "penstock") for rows in (200_000, 10_000, 1_000_000)
    )
    return {
        "throughput_vs_native": over(native(200_000), ours),
        "trigger_vs_native": over(ours_small, native(10_000)),
        "throughput_vs_limit": over(medians(200_000, "limit"), ours),
        "trigger_vs_limit": over(ours_small, medians(10_000, "limit")),
        "throughput_vs_native_1m": over(native(1_000_000), ours_large),
    }


def spreads(ratios: dict[str, list[float]]) -> list[str]:
    """Lines that tell how far the rounds of each ratio are apart.

    >>> spreads({"trigger_vs_limit": [1.2, 1.0, 1.1]})
    ['trigger_vs_limit in 3 rounds: 1.00 to 1.20, median 1.10']
    """
    samples = {name: Sample.of(values) for name, values in ratios.items()}
    return [
        f"{name} in {of.n} rounds: {of.low:.2f} to {of.high:.2f}, median {of.median:.2f}"
        for name, of in samples.items()
    ]


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The metrics that have goals."""

    def rate(rows: int, side: str) -> float:
        return float(results[f"rows_{rows}"][side]["rows_per_second"])

    def native(rows: int) -> float:
        return max(rate(rows, "native_hdfs"), rate(rows, "native_rocksdb"))

    user = results["user_state"]["transform_with_state_in_pandas"]
    latency = results["latency"]
    return {
        "throughput_vs_native": rate(200_000, "penstock") / native(200_000),
        "throughput_vs_native_worst_round": min(rounds(results)["throughput_vs_native"]),
        "trigger_vs_native": native(10_000) / rate(10_000, "penstock"),
        "throughput_vs_tws_pandas": rate(200_000, "penstock") / max(user.values()),
        "throughput_vs_limit": rate(200_000, "penstock") / rate(200_000, "limit"),
        "trigger_vs_limit": rate(10_000, "limit") / rate(10_000, "penstock"),
        "p99_vs_native": latency["penstock"]["p99_ms"] / latency["native"]["p99_ms"],
        "throughput_vs_native_1m": rate(1_000_000, "penstock") / native(1_000_000),
        **memory.figures(results["memory"]),
        **processors.ratios(results["processors"]),
    }


Side = Callable[[DataFrame], AbstractContextManager[StreamingQuery]]


@contextmanager
def _penstock(rows: DataFrame) -> Iterator[StreamingQuery]:
    with sides.penstock_sum(rows) as query:
        yield query.spark_query()


_SIDES: dict[str, Side] = {
    "penstock": _penstock,
    "native_hdfs": lambda rows: sides.native_sum(rows, sides.HDFS),
    "native_rocksdb": lambda rows: sides.native_sum(rows, sides.ROCKSDB),
    "limit": sides.limit,
}


def _compare(spark: SparkSession, rows: int, scale: PipelineScale, show: Show) -> dict[str, Any]:
    cycles: dict[str, list[float]] = {side: [] for side in _SIDES}
    medians: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(scale.rounds + 1):
        for side, opened in _SIDES.items():
            with opened(sides.spread(spark, rows, KEYS)) as query:
                cycles_ms = Triggers(query).cycles_ms(scale.warm, scale.measured)
            if number == 0:
                # The first round warms up the JVM, which takes minutes, and does not count.
                continue
            cycles[side] += cycles_ms
            medians[side].append(Sample.of(cycles_ms).median)
            show(f"{rows:>9,} rows, round {number}: {side:<15} {medians[side][-1]:7.1f} ms")
    return {
        side: {
            "trigger_ms": asdict(Sample.of(cycles[side])),
            "rounds_ms": medians[side],
            "rows_per_second": rows / Sample.of(cycles[side]).median * 1000,
        }
        for side in _SIDES
    }
