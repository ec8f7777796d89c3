"""Flows without keyed state, as plain Spark: no hosts, no couriers, no manifests.

Spark's own log of offsets and commits is all that such a flow has to remember. Its progress reports bring
the figures: rows, times and, where the flow names an arrival column, latencies. The sink gets each epoch by
Spark's `foreachBatch`. A sink that keeps nothing, `noop`, is Spark's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.control.elastic import Elastic
from penstock.courier.courier import as_penstock_error, settle
from penstock.driver.epochs import Write
from penstock.driver.progress import EpochProgress, Latency, latency_of
from penstock.errors import CheckpointError, PenstockError, find, to_wire
from penstock.exchange.aside import Aside
from penstock.exchange.step_work import StepWork, as_schema
from penstock.faults import Fault, arm, point
from penstock.logs import LogStyle, style_here, take_on
from penstock.plan.columns import Select
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan, MapStep
from penstock.settings import Settings
from penstock.spark import private
from penstock.spark.epoch_stream import EpochStream
from penstock.spark.schema import spark_schema
from penstock.spark.sinks import Sink, Writer, write_plain
from penstock.wire.report import Seen

_ARRIVALS = "penstock_arrivals"
"""Name of the observed metrics of the arrival column."""
_PARTS = 100
"""Parts of equal size into which an epoch's arrival times are divided."""
_OWNER_S = 1.0
"""Seconds between checks whether a newer start has taken over the checkpoint."""


def is_plain(flow: FlowPlan, streaming: bool, elastic: Elastic | None, settings: Settings) -> bool:
    """Whether nothing of Penstock is needed between the source and the sink of a flow.

    Couriers are needed for keyed steps, to decode a source, to set rows aside, for burst workers, and to
    pass figures on to Spark's listeners. A static input is one job, and stays as it is.
    """
    if flow.keyed or not streaming or flow.sources[0].decoder is not None:
        return False
    helped = elastic is not None and elastic.functions is not None
    needed = helped or settings.observed_metrics or flow.on_error == "dead_letter"
    return not (flow.steps and needed)


def is_sparks_own(sink: Sink) -> bool:
    """Whether Spark's streaming writer does the same as the sink.

    Spark's own writers are stopped in the middle of an epoch, and only a callback can prevent that. So the
    sink must keep nothing of it: a Kafka topic would get rows again whenever the flow is stopped and started.
    Spark's own file sink has another layout too. It needs a log of its files, and readers without that log
    see the files of unfinished epochs; here each epoch is a folder that is replaced as a whole.
    """
    return isinstance(sink, Writer) and sink.format == "noop"


def plain_output(source: DataFrame, flow: FlowPlan, faults: tuple[Fault, ...] = ()) -> DataFrame:
    """The rows of a source after all steps. Columns are selected in Spark. Other steps in a row are one
    `mapInArrow`."""
    arrival, rows = flow.sources[0].arrival, source
    if arrival is not None:
        time_ms = F.unix_millis(F.col(_quoted(arrival)).cast("timestamp"))
        places = [(n + 0.5) / _PARTS for n in range(_PARTS)]
        times = F.percentile_approx(time_ms, places).alias("times")
        rows = rows.observe(_ARRIVALS, F.count(time_ms).alias("rows"), times)
    steps = cast(tuple[MapStep, ...], flow.steps)
    for in_spark, together in groupby(steps, lambda step: _columns(step) is not None):
        group = tuple(together)
        if in_spark:
            for step in group:
                columns = _columns(step) or {}
                rows = rows.select(
                    *(F.col(_quoted(old)).alias(new) for new, old in columns.items())
                )
        else:
            mapped = _Mapped(group, faults, style_here())
            rows = rows.mapInArrow(mapped.__call__, spark_schema(group[-1].output))
    return rows


def _columns(step: MapStep) -> dict[str, str] | None:
    """New name -> old name of the columns that a step selects; None if it does anything else."""
    if not isinstance(step.function, Select):
        return None
    columns = {new: old for new, old in step.function.columns if isinstance(old, str)}
    return columns if len(columns) == len(step.function.columns) else None


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


@dataclass(frozen=True)
class _Mapped:
    """Stateless steps that follow one another, as the function of a `mapInArrow`."""

    steps: tuple[MapStep, ...]
    faults: tuple[Fault, ...]
    log: LogStyle | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        take_on(self.log)
        pa.set_cpu_count(1)
        arm(self.faults)
        work = StepWork("fail", False, Aside())
        for step in self.steps:
            batches = work.mapped(step, batches)
        try:
            for batch in batches:
                yield as_schema(batch, self.steps[-1].output, "output")
        except Exception as failed:
            error = as_penstock_error(failed)
            error.add_note(to_wire(error))  # Spark reports it to the driver as text
            if error is failed:
                raise
            raise error from failed
        settle()


def epoch_progress(report: Mapping[str, Any], partitions: int) -> EpochProgress:
    """An epoch, from Spark's progress report of its trigger.

    >>> took = {"triggerExecution": 90, "commitOffsets": 20, "addBatch": 50}
    >>> report = {"batchId": 3, "timestamp": "1970-01-01T00:00:01.000Z", "numInputRows": 5}
    >>> epoch = epoch_progress(report | {"durationMs": took}, partitions=2)
    >>> epoch.epoch, epoch.rows, epoch.started_ms, epoch.sink_ms, epoch.seal_ms, epoch.latency.p99_ms
    (3, 5, 1000, 70.0, 20.0, 70.0)
    """
    took, rows = report["durationMs"], int(report["numInputRows"])
    text = str(report["timestamp"]).replace("Z", "+00:00")
    started_ms = float(round(datetime.fromisoformat(text).timestamp() * 1000))
    seal_ms = float(took.get("commitOffsets", 0))
    sink_ms = float(took["triggerExecution"]) - seal_ms
    observed = report.get("observedMetrics", {}).get(_ARRIVALS, {})
    return EpochProgress(
        epoch=int(report["batchId"]),
        runs=1,
        rows=rows,
        partitions=partitions,
        started_ms=int(started_ms),
        sink_ms=sink_ms,
        seal_ms=seal_ms,
        latency=_latency(observed, rows, started_ms, started_ms + sink_ms),
        watermark_ms=None,
        dead_letters=0,
        hosts=(),
    )


def _latency(
    observed: Mapping[str, Any], rows: int, started_ms: float, done_ms: float
) -> Latency | None:
    """Latency of an epoch's rows. Those without an arrival time count from the start of the epoch."""
    times, known = observed.get("times") or [], int(observed.get("rows") or 0)
    ends = np.linspace(0, known, len(times) + 1).round().astype(int)
    counts = tuple(np.diff(ends).tolist())
    return latency_of([Seen(max(rows, known), tuple(times), counts)], done_ms, started_ms)


class PlainStream(EpochStream):
    """Runs the epochs of a flow without keyed state. See `EpochStream`."""

    # Each look takes some calls of the JVM, beside a query whose triggers may be short.
    look_s = 0.5
    _newest = -1
    """Newest epoch that Spark has reported."""
    _partitions = 0
    """Tasks of the newest epoch; 0 if that is not known yet."""
    _checked_s = 0.0
    """When the owner of the checkpoint was last checked, by the monotonic clock."""

    def _output(self, source: DataFrame) -> DataFrame:
        return plain_output(source, self._start.flow, self._start.settings.faults)

    def _writer(self, output: DataFrame) -> DataStreamWriter:
        if is_sparks_own(self._start.sink):
            return output.writeStream.format("noop")
        return super()._writer(output)

    def _run(self, df: DataFrame, epoch: int, write: Write, closing: int, began_ms: float) -> None:
        """Let the sink have an epoch. Spark's commit makes it durable, after this returns."""
        self._store.must_own()
        self._partitions = private.partition_count(df)
        spark, plan = df.sparkSession, EpochPlan(epoch, 0, self._partitions, (), "")
        if self._named:
            private.name_jobs(spark.sparkContext, self._text(plan))
        try:
            with private.handled(spark):
                write_plain(self._start.sink, df, epoch, self._start.flow_id)
        except Exception as failed:
            self._store.must_own()  # else a newer driver has caused the failure
            raise find(str(failed)) or failed from failed
        point("driver.written", epoch=epoch, run=0)

    def _look(self) -> None:
        """Take in the epochs that Spark has finished, and check that no newer start owns the checkpoint."""
        assert self.streaming is not None
        for report in private.progress_after(self.streaming, self._newest):
            self._newest = report["batchId"]
            if not self._partitions:
                self._partitions = private.query_partitions(self.streaming)
            self._on_progress(epoch_progress(report, self._partitions or 1))
        now_s = time.monotonic()
        if now_s - self._checked_s > _OWNER_S or not self.streaming.isActive:
            self._checked_s = now_s
            try:
                self._store.must_own()
            except CheckpointError as taken:
                self.error = self.error or taken
            except PenstockError:
                pass  # the store does not answer; the next look asks again
