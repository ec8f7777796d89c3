"""Latency from arrival to sink at a steady rate of 20,000 rows per second."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock_bench import sides
from penstock_bench.pipeline.steady_rows import steady
from penstock_bench.report import Show
from penstock_bench.sides import Triggers, end_row, in_sink_ms, start_row

RATE = 20_000
_WARM_S = 10
"""Seconds at the start whose rows are not counted."""


def measure(
    spark: SparkSession, keys: int, seconds: int, show: Show
) -> dict[str, dict[str, float]]:
    """p50 and p99 of Penstock and of native Spark, in milliseconds: the better of two runs each."""
    results: dict[str, list[dict[str, float]]] = {"penstock": [], "native": []}
    for _ in range(2):
        for side, runs in results.items():
            start_ms = int(time.time() * 1000) + 2000
            rows = steady(spark, RATE, keys, start_ms=start_ms)
            if side == "penstock":
                with sides.penstock_sum(rows, arrival="arrival") as query:
                    latency = _latency(query.spark_query(), start_ms, seconds)
            else:
                with sides.native_sum(rows) as native:
                    latency = _latency(native, start_ms, seconds)
            runs.append(latency)
            percentiles = f"p50 {latency['p50_ms']:.0f} ms, p99 {latency['p99_ms']:.0f} ms"
            show(f"steady {RATE:,} rows/s: {side:<9} {percentiles}")
    return {side: min(runs, key=lambda run: run["p99_ms"]) for side, runs in results.items()}


def _latency(query: StreamingQuery, start_ms: int, seconds: int) -> dict[str, float]:
    """Percentiles over all rows of `seconds`, each from its arrival until the sink is done with its epoch."""
    begin, end = _WARM_S * RATE, (_WARM_S + seconds) * RATE
    triggers = Triggers(query)
    latencies: list[npt.NDArray[np.float64]] = []
    reached, last = 0, 0
    # Wait for all rows: those that a slow side has not reached yet are its slowest.
    while last < end:
        for p in triggers.progress(until=reached + 10):
            first, row = start_row(p), end_row(p)
            if p["batchId"] < reached or row <= first:
                continue
            reached, last = p["batchId"] + 1, row
            rows = np.arange(max(first, begin), min(row, end))
            latencies.append(in_sink_ms(p) - (start_ms + rows * 1000 / RATE))
    every = np.concatenate(latencies)
    return {
        "p50_ms": float(np.percentile(every, 50)),
        "p99_ms": float(np.percentile(every, 99)),
        "rows": float(every.size),
    }
