"""Throughput on generated rows: `python -m penstock_bench.live.sides.generated KIND RATES SECONDS FOLDER`.

KIND "generated_live" tries each rate for SECONDS and reports the highest whose p99 is below 50 ms;
"generated_micro" measures the rows per second from a source that is never empty.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as ps
from penstock_bench import sides

KEYS, P99_MS = 100_000, 50.0
_BATCH = 1_000_000


def main(kind: str, rates: str, seconds: str, folder: str) -> None:
    """Measure, and write the results to the folder."""
    place = Path(folder)
    with sides.bench_session(cores=8):
        if kind == "generated_live":
            result = _live([int(rate) for rate in rates.split(",")], float(seconds), place)
        else:
            result = _micro(float(seconds))
    (place / "status.new").write_text(json.dumps({"done": result}))
    (place / "status.new").rename(place / "status.json")
    threading.Event().wait()


def _live(rates: list[int], seconds: float, place: Path) -> dict[str, Any]:
    tried, best = {}, 0.0
    for rate in rates:
        flow = (
            ps.flow(ps.rate(rate, partitions=2, keys=KEYS))
            .key_by("key", slots=64)
            .aggregate(n=ps.count(), s=ps.sum("value"))
        )
        checkpoint = str(place / f"checkpoint-{rate}")
        query = flow.start(ps.foreach_arrow(_drop), mode="live", checkpoint=checkpoint, hosts=2)
        try:
            _await_epochs(query, 3 + int(seconds))
            epochs = query.progress[-int(seconds) :]
        finally:
            query.stop()
        rows = sum(epoch.rows for epoch in epochs[1:])
        span_s = (epochs[-1].started_ms - epochs[0].started_ms) / 1000
        # Epochs have equal numbers of rows, so the mean of their p99 is near the p99 of all rows.
        each = [epoch.latency.p99_ms for epoch in epochs if epoch.latency is not None]
        p99 = sum(each) / len(each)
        tried[str(rate)] = {"rows_per_s": rows / span_s, "p99_ms": p99, "worst_ms": max(each)}
        if p99 < P99_MS and rows / span_s > 0.95 * rate:
            best = max(best, rows / span_s)
    return {"live_tried": tried, "live_per_s": best}


def _drop(batch: pa.RecordBatch, ids: object) -> None:
    """A sink that drops all rows."""


def _micro(seconds: float) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    with sides.penstock_sum(sides.spread(spark, _BATCH, KEYS)) as query:
        _await_epochs(query, 8 + int(seconds))
        epochs = query.progress[8:]
    span_s = (epochs[-1].started_ms - epochs[0].started_ms) / 1000
    return {"micro_per_s": sum(epoch.rows for epoch in epochs[:-1]) / span_s}


def _await_epochs(query: ps.FlowQuery, count: int) -> None:
    deadline = time.monotonic() + 180
    while len(query.progress) < count:
        if not query.is_active or time.monotonic() > deadline:
            raise RuntimeError(query.status.message)
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:5])
