"""One start in a process of its own: `python -m penstock_bench.start.trial SIDE FOLDER`.

It prints the milliseconds of each phase as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

SIDES = ("penstock", "native", "plain", "native_plain")
"""A keyed sum on Penstock and on Spark, then a flow without state on both."""
ROWS = 10_000
"""Rows of an epoch."""
CORES = 8
"""Task slots of each side's session."""
_MOST_S = 120.0
_POLL_S = 0.005


def started(side: str, spark: Any, folder: str) -> tuple[Any, Callable[[], Any]]:
    """Start a side's query; returns it, and a function that waits for Spark's query."""
    import penstock as ps
    from penstock_bench import sides

    rows = sides.spread(spark, ROWS, 1_000)
    if side.startswith("native"):
        from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

        if side == "native":
            rows = rows.groupBy("k").agg(F.sum("v").alias("s"))
        writer = rows.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", folder).start()
        return query, lambda: query
    flow = ps.flow(rows)
    if side == "penstock":
        flow = flow.key_by("k", slots=64).aggregate(s=ps.sum("v"))
    ours = flow.start(ps.to("noop"), checkpoint=folder, hosts=2)
    return ours, ours.spark_query


def session_of(side: str) -> Any:
    """The session of a side. Spark's own sides have one with Penstock's settings, which make Spark's triggers
    faster too, but with Spark's own Python daemon, and nothing that runs beside their start."""
    import penstock as ps

    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    if not side.startswith("native"):
        return ps.session("penstock-bench", cores=CORES, conf=conf)
    from pyspark.sql import SparkSession

    own = {"spark.master": f"local[{CORES},4]", "spark.python.daemon.module": "pyspark.daemon"}
    builder = SparkSession.Builder().appName("penstock-bench")
    for name, value in (conf | own).items():
        builder = builder.config(name, value)
    return ps.configure(builder).getOrCreate()


def measure(side: str, folder: str) -> dict[str, float]:
    """Milliseconds of each phase of a start: session, `start()`, until the first and the third epoch."""
    began = time.monotonic()
    import penstock  # noqa: F401 - it is timed

    imported = time.monotonic()
    spark = session_of(side)
    ready = time.monotonic()
    query, spark_query = started(side, spark, folder)
    returned = time.monotonic()
    running = spark_query()
    reached = []
    for epoch in (0, 2):
        while (newest := running.lastProgress) is None or newest["batchId"] < epoch:
            if not running.isActive or time.monotonic() - returned > _MOST_S:
                raise SystemExit(f"no epoch {epoch}: {running.exception()}")
            time.sleep(_POLL_S)
        reached.append(time.monotonic())
    query.stop()
    spark.stop()
    return {
        "import_ms": (imported - began) * 1000,
        "session_ms": (ready - imported) * 1000,
        "start_ms": (returned - ready) * 1000,
        "first_epoch_ms": (reached[0] - returned) * 1000,
        "third_epoch_ms": (reached[1] - returned) * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
