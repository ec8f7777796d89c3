"""The peers' tasks on Spark: Penstock, Spark's own operators with both stores, and its state in Python.

Words: "penstock", "native_hdfs", "native_rocksdb" or "python_state". Spark makes the rows itself, a fixed
number per micro-batch, in two partitions. There are two hosts, or two shuffle partitions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock as ps
from penstock_bench import sides
from penstock_bench.peers.stream import (
    FULL,
    REPORT_EVERY,
    SMALL,
    SMALL_ROWS,
    WINDOW_S,
    Stream,
    fold,
)
from penstock_bench.peers.timing import tell
from penstock_bench.sides import Triggers, started_ms

_EPOCH_ROWS, _SLOW_EPOCH_ROWS, _SMALL_EPOCH_ROWS = 1_000_000, 10_000, 10_000
_WARM_EPOCHS, _MEASURED_EPOCHS = 4, 3
"""Fewest epochs of the warm-up, and of the measurement."""
_WINDOW = f"{WINDOW_S} second"
_REPORT = "k long, n long, c long, seen long"
_STATE = "n long, c long, seen long"


def main(task: str, how: str, seconds: str, folder: str, engine: str) -> None:
    """Time the task, or write its answer."""
    facts: dict[str, Any] = {}
    with sides.bench_session() as spark:
        if how != "time":
            rows = _rows(spark, SMALL, _SMALL_EPOCH_ROWS).where(F.col("i") < SMALL_ROWS)
            with _running(task, engine, rows, _saver(Path(folder, "answer"))) as query:
                # Two epochs more: for the watermark, and for the rows of the windows that it closes.
                Triggers(query).progress(until=SMALL_ROWS // _SMALL_EPOCH_ROWS + 2)
        if how != "answer":
            count = _SLOW_EPOCH_ROWS if engine == "python_state" else _EPOCH_ROWS
            with _running(task, engine, _rows(spark, FULL, count), None) as query:
                facts = _rate(query, count, float(seconds))
    tell(facts)


def _rows(spark: SparkSession, stream: Stream, count: int) -> DataFrame:
    sql = stream.sql("value", "div")
    ts = f"timestamp_micros({sql['t']}) AS ts"
    return sides.numbered(spark, count).selectExpr(
        "value AS i", f"{sql['k']} AS k", f"{sql['v']} AS v", ts
    )


def _rate(query: StreamingQuery, count: int, seconds: float) -> dict[str, Any]:
    """Rows per second between two starts of a trigger, `seconds` apart, after a warm-up as long."""
    triggers = Triggers(query)
    first = _after(triggers, 0, _WARM_EPOCHS, seconds)
    last = _after(triggers, first["batchId"], _MEASURED_EPOCHS, seconds)
    rows = (last["batchId"] - first["batchId"]) * count
    took_s = (started_ms(last) - started_ms(first)) / 1000
    return {"rows": rows, "seconds": took_s, "rows_per_second": rows / took_s}


def _after(triggers: Triggers, epoch: int, epochs: int, seconds: float) -> dict[str, Any]:
    """The progress of the first epoch that ends both `epochs` and `seconds` after this one."""
    began, number = time.monotonic(), epoch
    while number < epoch + epochs or time.monotonic() < began + seconds:
        number = triggers.progress(until=number + 1)[-1]["batchId"]
    return triggers.progress(until=number)[-1]


Save = Callable[[DataFrame, int], None]


def _saver(place: Path) -> Save:
    def save(df: DataFrame, epoch: int) -> None:
        if "window_start" in df.columns:
            df = df.select("k", F.unix_timestamp("window_start"), "n")
        df.write.mode("overwrite").csv(str(place / str(epoch)))

    return save


@contextmanager
def _running(
    task: str, engine: str, rows: DataFrame, save: Save | None
) -> Iterator[StreamingQuery]:
    if engine == "penstock":
        sink = ps.to("noop") if save is None else ps.foreach_batch(save)
        with sides.folder(rows.sparkSession) as checkpoint:
            query = _penstock(task, rows).start(sink, checkpoint=checkpoint, hosts=2)
            try:
                yield query.spark_query()
            finally:
                query.stop()
        return
    store = sides.HDFS if engine == "native_hdfs" else sides.ROCKSDB
    sides.keep_state_in(rows.sparkSession, store)
    out = _python_state(rows) if engine == "python_state" else _native(task, rows)
    mode = "append" if task in ("windowed", "pass_through") else "update"
    with _started(out, mode, save) as native:
        yield native


@contextmanager
def _started(out: DataFrame, mode: str, save: Save | None) -> Iterator[StreamingQuery]:
    writer = out.writeStream.outputMode(mode)
    writer = writer.format("noop") if save is None else writer.foreachBatch(save)
    with sides.folder(out.sparkSession) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            query.stop()


def _penstock(task: str, rows: DataFrame) -> ps.Flow:
    if task == "windowed":
        timed = ps.flow(rows.select("k", "ts"), event_time="ts").key_by("k")
        return timed.window(ps.tumbling(_WINDOW)).aggregate(n=ps.count())
    flow = ps.flow(rows.select("k", "v"))
    if task == "pass_through":
        return flow.select("k", "v")
    keyed = flow.key_by("k")
    return keyed.aggregate(s=ps.sum("v")) if task == "sum" else keyed.process(PenstockFold())


def _native(task: str, rows: DataFrame) -> DataFrame:
    if task == "pass_through":
        return rows.select("k", "v")
    if task == "sum":
        return rows.groupBy("k").agg(F.sum("v").alias("s"))
    timed = rows.select("k", "ts").withWatermark("ts", "0 seconds")
    counted = timed.groupBy("k", F.window("ts", _WINDOW)).agg(F.count("*").alias("n"))
    return counted.select("k", F.col("window.start").alias("window_start"), "n")


class PenstockFold(ps.KeyedProcessor):
    """The function per key as a user of Penstock writes it."""

    output_schema = _REPORT

    def init(self, handle: Any) -> None:
        self.state = handle.get_value_state("state", _STATE)

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
        state, reports = self.state.get(), []
        for v in rows.column("v"):
            state = fold(state, v)
            if state[0] % REPORT_EVERY == 0:
                reports.append((*key, *state))
        self.state.update(state)
        return reports


class SparkFold(StatefulProcessor):
    """The function per key as a user of transformWithStateInPandas writes it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", _STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        import pandas as pd

        state, reports = self._state.get(), []
        for part in rows:
            for v in part["v"].tolist():
                state = fold(state, v)
                if state[0] % REPORT_EVERY == 0:
                    reports.append((*key, *state))
        if state is not None:
            self._state.update(state)
        yield pd.DataFrame(reports, columns=["k", "n", "c", "seen"])

    def close(self) -> None:
        pass


def _python_state(rows: DataFrame) -> DataFrame:
    grouped = rows.select("k", "v").groupBy("k")
    return grouped.transformWithStateInPandas(SparkFold(), _REPORT, "update", "none")


if __name__ == "__main__":
    # Spark's workers must find the classes by name, which those of __main__ have not.
    from penstock_bench.peers.sides import spark_side

    spark_side.main(*sys.argv[1:6])
