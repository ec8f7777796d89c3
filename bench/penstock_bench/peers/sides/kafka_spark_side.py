"""The part `latency` on Spark: `python -m penstock_bench.peers.sides.kafka_spark_side SERVERS IN OUT FOLDER
KIND`.

KIND is "native_hdfs" for Spark's own aggregation with its default store, or "python_state" for a processor
in Python with RocksDB.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock as ps
from penstock_bench.sides import HDFS, ROCKSDB, keep_state_in

_ROW = "k long, v long, t long"
_UPDATE = "k long, n long, s long, t long"
_AT_MOST = {"maxOffsetsPerTrigger": "500000"}
"""As for the other sides on Spark; see `bench live`."""
_POLL_S = 0.05


def main(servers: str, source: str, sink: str, folder: str, kind: str) -> None:
    """Run the query until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    conf = {"spark.sql.shuffle.partitions": "2"}
    spark = ps.session("penstock-peers-bench", cores=8, kafka=True, conf=conf)
    try:
        keep_state_in(spark, HDFS if kind == "native_hdfs" else ROCKSDB)
        options = {"kafka.bootstrap.servers": servers, "subscribe": source, **_AT_MOST}
        options["startingOffsets"] = "earliest"
        messages = spark.readStream.format("kafka").options(**options).load()
        rows = messages.select(F.from_json(F.col("value").cast("string"), _ROW).alias("r"))
        sums = (_native if kind == "native_hdfs" else _python_state)(rows.select("r.*"))
        writer = sums.select(F.to_json(F.struct("k", "n", "s", "t")).alias("value")).writeStream
        writer = writer.format("kafka").option("kafka.bootstrap.servers", servers)
        writer = writer.option("checkpointLocation", str(Path(folder) / "checkpoint"))
        query = writer.option("topic", sink).outputMode("update").start()
        while not over.wait(_POLL_S) and query.isActive:
            pass
        query.stop()
    finally:
        spark.stop()


def _native(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("v").alias("s"), F.max("t").alias("t")
    )


def _python_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithStateInPandas(SparkSums(), _UPDATE, "update", "none")


class SparkSums(StatefulProcessor):
    """The count and sum of a key, as a user of transformWithStateInPandas writes it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "n long, s long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],  # of pandas DataFrames
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        import pandas as pd

        n, s = self._state.get() or (0, 0)
        newest = 0
        for part in rows:
            n, s = n + len(part), s + int(part["v"].sum())
            newest = max(newest, int(part["t"].max()))
        self._state.update((n, s))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [s], "t": [newest]})

    def close(self) -> None:
        pass


if __name__ == "__main__":
    # Spark's workers must find the classes by name, which those of __main__ have not.
    from penstock_bench.peers.sides import kafka_spark_side

    kafka_spark_side.main(*sys.argv[1:6])
