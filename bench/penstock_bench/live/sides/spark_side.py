"""The bench's flow on Spark: `python -m penstock_bench.live.sides.spark_side SERVERS IN OUT FOLDER KIND`.

KIND is "live" or "micro" for Penstock's two modes, "live_python" for a processor instead of an aggregate,
"native" for Spark's own aggregation, or "transactional", followed by the time between checkpoints.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock_bench.live.sides.sums import Sums
from penstock_bench.sides import ROCKSDB, keep_state_in

HOSTS, SLOTS = 2, 64
_ROW = "k long, v long, t long"
_AT_MOST = {"maxOffsetsPerTrigger": "500000"}
"""Most rows of a micro-batch, so that a backlog takes several and the first one, with the start-up costs,
can be left out of the measurement."""
_POLL_S = 0.05


class _Topics(NamedTuple):
    """The Kafka topics of rows and of updates."""

    servers: str
    source: str
    sink: str


def main(
    servers: str, source: str, sink: str, folder: str, kind: str, checkpoint_every: str = "1s"
) -> None:
    """Run the flow until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    options: dict[str, dict[str, Any]] = {
        "live": {"mode": "live"},
        "live_python": {"mode": "live"},
        "transactional": {
            "mode": "live",
            "delivery": "transactional",
            "checkpoint_every": checkpoint_every,
        },
        "micro": {},
    }
    is_live = kind in ("live", "live_python", "transactional")
    conf = {"spark.sql.shuffle.partitions": "2"}
    spark = ps.session("penstock-live-bench", cores=8, kafka=not is_live, conf=conf)
    topics = _Topics(servers, source, sink)
    try:
        if kind == "native":
            _native(spark, topics, Path(folder), over)
        else:
            _penstock(topics, Path(folder), kind == "live_python", options[kind], over)
    finally:
        spark.stop()


def _penstock(
    topics: _Topics, folder: Path, python: bool, options: dict[str, Any], over: threading.Event
) -> None:
    source = ps.kafka(topics.servers, topics.source, schema=_ROW, spark_options=_AT_MOST)
    keyed = ps.flow(source).key_by("k", slots=SLOTS)
    flow = (
        keyed.process(Sums())
        if python
        else keyed.aggregate(n=ps.count(), s=ps.sum("v"), t=ps.max("t"))
    )
    out = ps.to("kafka", servers=topics.servers, topic=topics.sink)
    query = flow.start(out, checkpoint=str(folder / "checkpoint"), hosts=HOSTS, **options)
    try:
        while not over.wait(_POLL_S):
            if not query.is_active:
                raise RuntimeError(query.status.message)
            _write_status(folder, query)
            _obey(folder, query)
    finally:
        query.stop()


def _write_status(folder: Path, query: ps.FlowQuery) -> None:
    status = query.status
    file = folder / "status.new"
    file.write_text(json.dumps({"hosts": status.hosts, "couriers": status.couriers}))
    file.rename(folder / "status.json")


def _obey(folder: Path, query: ps.FlowQuery) -> None:
    """On a command of the bench, move the first host's slots, half of all, to the other host."""
    command = folder / "command"
    if command.exists():
        command.unlink()
        (step,) = query.placements()
        query.move(step, range(SLOTS // 2), to=f"{step}/1")


def _native(spark: SparkSession, topics: _Topics, folder: Path, over: threading.Event) -> None:
    keep_state_in(spark, ROCKSDB)
    options = {
        "kafka.bootstrap.servers": topics.servers,
        "subscribe": topics.source,
        "startingOffsets": "earliest",
        **_AT_MOST,
    }
    rows = spark.readStream.format("kafka").options(**options).load()
    row = rows.select(F.from_json(F.col("value").cast("string"), _ROW).alias("r")).select("r.*")
    sums = row.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("v").alias("s"), F.max("t").alias("t")
    )
    out = sums.select(F.to_json(F.struct("k", "n", "s", "t")).alias("value"))
    query = (
        out.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", topics.servers)
        .option("topic", topics.sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .outputMode("update")
        .start()
    )
    while not over.wait(_POLL_S) and query.isActive:
        pass
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
