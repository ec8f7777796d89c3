"""The epochs of a started flow, run by Spark: micro-batches of a stream, or one epoch of a static input."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.util import InheritableThread

from penstock import codec
from penstock.control.epoch_bound import FIRST, EpochBound
from penstock.courier.courier import Courier
from penstock.driver.epochs import EpochRunner, Write
from penstock.driver.phases import SparkTrigger
from penstock.driver.progress import EpochProgress
from penstock.errors import HostLostError, PenstockError, find
from penstock.live.sources.kafka import KafkaDecoder
from penstock.logs import style_here
from penstock.observe.figures import NewestFigures
from penstock.offload.courier.roads import burst_roads
from penstock.plan.epoch import EpochPlan
from penstock.spans import now_ms
from penstock.spark import listener, private, task
from penstock.spark.merger import Merger
from penstock.spark.s3a import suited_manager
from penstock.spark.schema import spark_schema
from penstock.spark.started import Start
from penstock.spark.triggers import triggers_of, with_tasks
from penstock.state.store.store import Store
from penstock.wire.access import Access

_log = logging.getLogger("penstock.query")


class StoppedBetweenEpochs(Exception):
    """Raised in the callback of a stopping query, to end it before its next epoch."""


@dataclass(frozen=True, kw_only=True)
class MicroStart(Start):
    """The options of a flow that is started in micro-batches."""

    source: DataFrame
    clock: bool
    """Whether the sources include a clock."""
    checkpoint: str
    """Absolute URI of the checkpoint folder, for Spark."""
    trigger: dict[str, Any]
    """Arguments of Spark's `trigger`; empty for its default."""
    plain: bool = False
    """Whether it runs as plain Spark, since it keeps no state."""
    bound: EpochBound | None = None
    """Most rows of an epoch, where the SLA determines it; else None."""
    bounded: Callable[[int], DataFrame] | None = None
    """Creates the source again, with this many rows per epoch at most."""

    @property
    def trigger_ms(self) -> float:
        """Least milliseconds between the starts of two epochs; 0 if there is no limit."""
        return float(self.trigger.get("processingTime", "0 milliseconds").split()[0])


class EpochStream:
    """Runs all epochs of one started flow, in the thread that calls `stream` or `run_bounded`.

    It ends between two epochs once `stopping` is set. `error` is the error of a failed epoch, or of Spark.
    """

    look_s = 0.1
    """Seconds between two looks at Spark's query."""

    def __init__(
        self,
        start: MicroStart,
        run_id: str,
        access: Access,
        runner: EpochRunner,
        store: Store,
        stopping: threading.Event,
        on_progress: Callable[[EpochProgress], None],
        mergers: Sequence[Merger] = (),
        figures: NewestFigures | None = None,
    ) -> None:
        self._start, self._run_id, self._runner, self._store = start, run_id, runner, store
        self._access = access
        self._stopping, self._on_progress, self._mergers = stopping, on_progress, mergers
        self._spark, self._figures = start.spark, figures
        self._between_epochs = threading.Lock()
        self.streaming: StreamingQuery | None = None
        self.launched = threading.Event()
        """Set once Spark's query has been started; it is then `streaming`."""
        self.error: BaseException | None = None
        self._resizing = False
        """Whether Spark's query must be restarted with another limit of rows per epoch."""
        self._kept_pace = start.bound.pace if start.bound is not None else None
        """Pace that is stored in the checkpoint."""
        self._marked = False
        """Whether `_mark_thread` was called in the thread that runs the epochs."""
        self._named = True
        """Whether to name jobs."""

    def _output(self, source: DataFrame) -> DataFrame:
        """The source with couriers added. They get the epoch's plan when their task starts.

        A static flow without steps and without a decoder needs no couriers.
        """
        flow = self._start.flow
        if not flow.steps and flow.sources[0].decoder is None:
            return source
        settings = self._start.settings
        courier = Courier(
            flow,
            task.current,
            self._access,
            settings.rpc_timeout_ms,
            settings.exchange_timeout_ms,
            bool(self._start.late_rows),
            burst_roads,
            settings.faults,
            private.check_input_end,
            settings.host_lost_ms,
            style_here(),
        )
        if self._figures is not None:
            return listener.with_observed(source, courier.__call__, flow.output)
        return source.mapInArrow(courier.__call__, spark_schema(flow.output))

    def stream(self) -> None:
        if self._store.closing:
            self._close_flow()
            return
        source: DataFrame | None = self._start.source
        while source is not None:
            self._stream(source)
            source = self._resized()
        if self._start.close and self.error is None and not self._stopping.is_set():
            self._close_flow()

    def _resized(self) -> DataFrame | None:
        """The source with another limit of rows per epoch, if Spark's query was ended for that; else None."""
        bound, bounded = self._start.bound, self._start.bounded
        if not self._resizing or self._stopping.is_set() or self.error is not None:
            return None
        assert bound is not None and bounded is not None
        rows = bound.due or bound.rows
        _log.info(
            "Epochs take up to %d rows from now on, instead of %d, to keep to the SLA.",
            rows,
            bound.rows,
            extra={"rows": rows, "before": bound.rows},
        )
        bound.change(rows)
        self._resizing = False
        return bounded(rows)

    def _stream(self, source: DataFrame) -> None:
        """Run Spark's query until it ends, the flow stops, or the limit of rows per epoch changes."""
        start = self._start
        self.launched.clear()
        self._marked = False
        writer = self._writer(self._output(source)).option("checkpointLocation", start.checkpoint)
        if start.name:
            writer = writer.queryName(start.name)
        if start.trigger:
            writer = writer.trigger(**start.trigger)
        with private.clock_now(self._spark) if start.clock else nullcontext():
            with suited_manager(self._spark, start.checkpoint):
                streaming = writer.start()
            self.streaming = streaming
            self.launched.set()
            # Polling is only needed for a query that ends by itself.
            while streaming.isActive and not self._is_ending and self.error is None:
                self._look()
                self._stopping.wait(self.look_s)
        if streaming.isActive:
            with self._between_epochs:
                stopper = InheritableThread(target=streaming.stop, daemon=True)
                stopper.start()
                _until(lambda: not streaming.isActive)
            stopper.join()
        self._look()
        failure = streaming.exception()
        if failure is not None and self.error is None and not self._is_ending:
            text = str(failure)
            self.error = find(text) or PenstockError(f"Spark ended the query: {text}")

    def _writer(self, output: DataFrame) -> DataStreamWriter:
        """Spark's writer of the output."""
        return private.on_each_batch(output, self._on_batch)

    def _look(self) -> None:
        """Look at the running query from time to time, and once after its end."""

    @property
    def _is_ending(self) -> bool:
        """Whether Spark's query should end after the current epoch."""
        return self._resizing or self._stopping.is_set()

    def _on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Run one micro-batch as an epoch. Spark calls this."""
        with self._between_epochs:
            if self._is_ending:
                self.launched.wait()
                streaming = self.streaming
                assert streaming is not None
                if not streaming.isActive:
                    raise StoppedBetweenEpochs(private.stop_signal(str(streaming.runId)))
            self._epoch(df, batch_id)

    def _epoch(self, df: DataFrame, epoch: int, closing: int = 0) -> None:
        began_ms = now_ms()

        def write(plan: EpochPlan) -> None:
            # Each of these is a call of the JVM, which takes 0.3 ms or more of the trigger.
            context = df.sparkSession.sparkContext
            context.setLocalProperty(task.PLAN, codec.text(plan))
            if self._figures is not None:
                context.setLocalProperty(listener.PROPERTY, json.dumps(self._figures.now))
            tag = _tag(self._run_id, plan.epoch, plan.run)
            context.addJobTag(tag)
            if self._named:
                private.name_jobs(context, self._text(plan))
            try:
                with private.handled(df.sparkSession):
                    self._start.sink.write(df, epoch, self._start.flow_id)
                    if self._start.flow.steps and self._runner.reported < plan.partitions:
                        # The sink has skipped the epoch or read only a part of it, but hosts need all rows.
                        df.write.format("noop").mode("append").save()
            except Exception as failed:
                if lost := private.lost_executors(failed):
                    raise HostLostError(f"couriers lost their executors: {lost}") from failed
                raise
            finally:
                # A late message about a lost host must not cancel what this thread does later. The plan may
                # stay: the next epoch replaces it.
                context.removeJobTag(tag)

        try:
            self._mark_thread()
            for merger in self._mergers:
                merger.begin(epoch)
            self._run(df, epoch, write, closing, began_ms)
            for merger in self._mergers:
                merger.committed(epoch)
            self._runner.ended()
        except Exception as failed:
            self.error = failed
            private.mark_thread_handled(self._spark)
            raise
        except BaseException as failed:
            self.error = failed
            # py4j reports only exceptions of this kind to Spark, which would wait forever otherwise.
            raise PenstockError(f"epoch {epoch} ended with {failed!r}") from failed

    def _run(self, df: DataFrame, epoch: int, write: Write, closing: int, began_ms: float) -> None:
        """Run an epoch until its output is in the sink and it is durable."""
        partitions = private.partition_count(df)
        progress = self._runner.run(epoch, partitions, write, closing, began_ms)
        self._on_progress(progress)
        self._note_pace(progress)

    def _mark_thread(self) -> None:
        """Mark the jobs of Spark's thread that runs the epochs, before the first of them."""
        if not self._marked:
            context = self._spark.sparkContext
            private.mark_handled(context)
            self._named = private.names_jobs(context)
            self._marked = True

    def _text(self, plan: EpochPlan) -> str:
        """Name of an epoch's jobs and stages in Spark's UI."""
        start, sink = self._start, self._start.sink
        couriers = f"{plan.partitions} courier{'s' * (plan.partitions != 1)}"
        to = getattr(sink, "format", type(sink).__name__)
        again = f", run {plan.run + 1}" if plan.run else ""
        return f"epoch {plan.epoch} of {start.name or start.flow_id}: {couriers} -> {to}{again}"

    def triggers(self) -> list[SparkTrigger]:
        """The newest triggers by Spark's own progress; empty if there is no Spark query, or no more."""
        if self.streaming is None:
            return []
        try:
            return triggers_of(self.streaming)
        except Exception:  # the session has ended
            return []

    def traced(self) -> list[SparkTrigger]:
        """The same, with the tasks of the sink's jobs."""
        context = self._spark.sparkContext
        return with_tasks(
            self.triggers(),
            lambda epoch: private.tagged_tasks(context, _tag(self._run_id, epoch, 0)),
        )

    @property
    def unread(self) -> int:
        """Number of rows in the sources that no epoch has read, from Spark's last progress report; 0 for
        sources other than Kafka."""
        decoders = [source.decoder for source in self._start.flow.sources]
        if self.streaming is None or not any(
            isinstance(decoder, KafkaDecoder) for decoder in decoders
        ):
            return 0
        last = self.streaming.lastProgress
        sources = [] if last is None else last.sources
        behind = sum(rows_between(s.endOffset, s.latestOffset) for s in sources)
        return max(0, behind - sum(task.rows for task in self._runner.seen))

    def _note_pace(self, progress: EpochProgress) -> None:
        """Track the speed of epochs, and store it for the next start."""
        bound = self._start.bound
        if bound is None or progress.runs > 1:
            return
        took_ms = progress.sink_ms + progress.seal_ms
        bound.note(progress.rows, progress.started_ms, progress.started_ms + took_ms)
        if not bound.pace.is_like(self._kept_pace or FIRST):
            self._kept_pace = bound.pace
            self._store.write_pace(asdict(bound.pace))
        if bound.due is not None and self._start.bounded is not None:
            self._resizing = True

    def run_bounded(self) -> None:
        """Run a static DataFrame as one epoch, then an epoch for each step with something to close."""
        self._epoch(private.pinned(self._output(self._start.source)), 0)
        self._close_flow()

    def _close_flow(self) -> None:
        """Close all windows after the end of the input: one epoch for each keyed step on a row's path."""
        start, spark = self._start, self._spark
        if not any(step.has_timers for step in start.flow.keyed):
            return
        rows: Any = spark.sparkContext.parallelize([], 1)
        nothing = spark.createDataFrame(rows, start.source.schema)
        # Stored, so that a restart after a crash continues to close, and reads no more input.
        done = self._runner.next_epoch()
        first = self._store.begin_closing(done)
        for epoch in range(done, first + max(start.flow.depths.values())):
            if self._stopping.is_set():
                return
            df = private.pinned(self._output(nothing))
            self._epoch(df, epoch, closing=epoch - first + 1)
        self._store.close_flow()


def rows_between(end: str | None, latest: str | None) -> int:
    """Number of rows between two Kafka offsets of Spark's log; 0 for other sources.

    >>> rows_between('{"orders":{"0":10,"1":5}}', '{"orders":{"0":14,"1":5,"2":3}}')
    7
    >>> rows_between("12", "15"), rows_between(None, None)
    (0, 0)
    """
    first, last = (json.loads(text) if text else None for text in (end, latest))
    if not isinstance(first, dict) or not isinstance(last, dict):
        return 0
    return sum(
        max(0, offset - first.get(topic, {}).get(number, 0))
        for topic, offsets in last.items()
        if isinstance(offsets, dict)
        for number, offset in offsets.items()
    )


def cancel_run(spark: SparkSession, run_id: str, epoch: int, run: int) -> None:
    """Cancel the Spark jobs of a run that cannot succeed, since a courier has lost a host."""
    spark.sparkContext.cancelJobsWithTag(_tag(run_id, epoch, run))


def _tag(run_id: str, epoch: int, run: int) -> str:
    """Tag of the Spark jobs of one run of an epoch."""
    return f"penstock-{run_id}-{epoch}-{run}"


def _until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for changes that Spark does not notify of."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
