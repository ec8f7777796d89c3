"""The epochs of a started flow, driven by Spark: micro-batches of a stream, or one of a static input."""

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
from pyspark.util import InheritableThread

from penstock import codec
from penstock.control.epoch_bound import FIRST, EpochBound
from penstock.courier.courier import Courier
from penstock.driver.epochs import EpochRunner
from penstock.driver.progress import EpochProgress
from penstock.errors import HostLostError, PenstockError
from penstock.live.sources.kafka import KafkaDecoder
from penstock.logs import style_here
from penstock.offload.courier.roads import burst_roads
from penstock.plan.epoch import EpochPlan
from penstock.spark import private, task
from penstock.spark.merger import Merger
from penstock.spark.s3a import suited_manager
from penstock.spark.schema import spark_schema
from penstock.spark.started import Start
from penstock.state.store.store import Store
from penstock.wire.access import Access

_log = logging.getLogger("penstock.query")


class StoppedBetweenEpochs(Exception):
    """Ends a stopping query's callback before it has begun its epoch."""


@dataclass(frozen=True, kw_only=True)
class MicroStart(Start):
    """The same of a flow in micro-batches."""

    source: DataFrame
    clock: bool
    """Whether a clock is among the sources."""
    checkpoint: str
    """Spark's name of the checkpoint folder, absolute and with its scheme."""
    trigger: dict[str, Any]
    bound: EpochBound | None = None
    """How many rows an epoch takes, where the SLA says that."""
    bounded: Callable[[int], DataFrame] | None = None
    """Makes the source anew, with epochs of so many rows."""

    @property
    def trigger_ms(self) -> float:
        """The least time from one epoch to the next; 0: there is none."""
        return float(self.trigger.get("processingTime", "0 milliseconds").split()[0])


class EpochStream:
    """Runs all epochs of one started flow, in the thread that calls `stream` or `run_bounded`.

    `stopping` ends it between two epochs; `error` is what an epoch, or Spark, failed with.
    """

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
    ) -> None:
        self._start, self._run_id, self._runner, self._store = start, run_id, runner, store
        self._access = access
        self._stopping, self._on_progress, self._mergers = stopping, on_progress, mergers
        self._spark = start.spark
        self._between_epochs = threading.Lock()
        self.streaming: StreamingQuery | None = None
        self.launched = threading.Event()
        """Spark's query has been started, and is `streaming`."""
        self.error: BaseException | None = None
        self._resizing = False
        """Whether Spark's query is to be started anew, with another bound on epochs."""
        self._kept_pace = start.bound.pace if start.bound is not None else None
        """What the checkpoint says of it."""

    def _output(self, source: DataFrame) -> DataFrame:
        """The source with couriers on it. They learn the epoch's plan when their task starts.

        A flow without steps whose rows come as they are needs none: Spark does it all.
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
        """The source with another bound on epochs, if Spark's query was ended for that; else None."""
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
        """Run Spark's query until it ends, the flow is to stop, or epochs should take more or fewer rows."""
        start = self._start
        self.launched.clear()
        writer = (
            self._output(source)
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", start.checkpoint)
        )
        if start.name:
            writer = writer.queryName(start.name)
        if start.trigger:
            writer = writer.trigger(**start.trigger)
        with private.clock_now(self._spark) if start.clock else nullcontext():
            with suited_manager(self._spark, start.checkpoint):
                streaming = writer.start()
            self.streaming = streaming
            self.launched.set()
            # Event-driven for the common cases, and a poll for a query that ends by itself.
            while streaming.isActive and not self._resizing and not self._stopping.wait(0.1):
                pass
        if streaming.isActive:
            with self._between_epochs:
                stopper = InheritableThread(target=streaming.stop, daemon=True)
                stopper.start()
                _until(lambda: not streaming.isActive)
            stopper.join()
        failure = streaming.exception()
        if failure is not None and self.error is None and not self._is_ending:
            self.error = PenstockError(f"Spark ended the query: {failure}")

    @property
    def _is_ending(self) -> bool:
        """Whether Spark's query is to end between two epochs."""
        return self._resizing or self._stopping.is_set()

    def _on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Spark's callback for one micro-batch: one epoch."""
        with self._between_epochs:
            if self._is_ending:
                self.launched.wait()
                streaming = self.streaming
                assert streaming is not None
                if not streaming.isActive:
                    raise StoppedBetweenEpochs(private.stop_signal(str(streaming.runId)))
            self._epoch(df, batch_id)

    def _epoch(self, df: DataFrame, epoch: int, closing: int = 0) -> None:
        def write(plan: EpochPlan) -> None:
            context = df.sparkSession.sparkContext
            context.setLocalProperty(task.PLAN, codec.text(plan))
            tag = _tag(self._run_id, plan.epoch, plan.run)
            context.addJobTag(tag)
            try:
                with private.handled(df.sparkSession):
                    self._start.sink.write(df, epoch, self._start.flow_id)
                    if self._start.flow.steps and self._runner.reported < plan.partitions:
                        # The sink has the epoch already, or wants only some of it: hosts need all.
                        df.write.format("noop").mode("append").save()
            except Exception as failed:
                if lost := private.lost_executors(failed):
                    raise HostLostError(f"couriers lost their executors: {lost}") from failed
                raise
            finally:
                context.removeJobTag(tag)
                context.setLocalProperty(task.PLAN, None)  # type: ignore[arg-type]

        try:
            for merger in self._mergers:
                merger.begin(epoch)
            partitions = private.partition_count(df)
            progress = self._runner.run(epoch, partitions, write, closing)
            self._on_progress(progress)
            self._note_pace(progress)
            for merger in self._mergers:
                merger.committed(epoch)
        except Exception as failed:
            self.error = failed
            private.mark_thread_handled(self._spark)
            raise
        except BaseException as failed:
            self.error = failed
            # Of anything else py4j tells Spark nothing, which would wait for the callback for ever.
            raise PenstockError(f"epoch {epoch} ended with {failed!r}") from failed

    @property
    def unread(self) -> int:
        """Rows that the sources have and that neither the epoch under way nor those before it have read, as
        far as Spark told with the epoch before; 0 for sources other than Kafka."""
        decoders = [source.decoder for source in self._start.flow.sources]
        if self.streaming is None or not any(isinstance(one, KafkaDecoder) for one in decoders):
            return 0
        last = self.streaming.lastProgress
        sources = [] if last is None else last.sources
        behind = sum(rows_between(one.endOffset, one.latestOffset) for one in sources)
        return max(0, behind - sum(task.rows for task in self._runner.seen))

    def _note_pace(self, progress: EpochProgress) -> None:
        """Follow how long epochs take, and keep it for the next start."""
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
        """A static DataFrame is one epoch, and then one for each step that has something to close."""
        self._epoch(private.pinned(self._output(self._start.source)), 0)
        self._close_flow()

    def _close_flow(self) -> None:
        """The input has ended: an epoch for each step on a row's way closes what is open."""
        start, spark = self._start, self._spark
        if not any(step.has_timers for step in start.flow.keyed):
            return
        rows: Any = spark.sparkContext.parallelize([], 1)
        nothing = spark.createDataFrame(rows, start.source.schema)
        # Said in the store, so that a start after a crash goes on with it, and reads nothing more.
        done = self._runner.next_epoch()
        first = self._store.begin_closing(done)
        for epoch in range(done, first + max(start.flow.depths.values())):
            if self._stopping.is_set():
                return
            df = private.pinned(self._output(nothing))
            self._epoch(df, epoch, closing=epoch - first + 1)
        self._store.close_flow()


def rows_between(end: str | None, latest: str | None) -> int:
    """Rows from one offset of Kafka in Spark's log to another; 0 between other offsets.

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
    """A courier has lost a host: what is left of the run is in vain, and so are its retries."""
    spark.sparkContext.cancelJobsWithTag(_tag(run_id, epoch, run))


def _tag(run_id: str, epoch: int, run: int) -> str:
    """Marks the Spark jobs of one run of an epoch."""
    return f"penstock-{run_id}-{epoch}-{run}"


def _until(condition: Callable[[], bool]) -> None:
    """Wait for Spark to have taken a change that it tells of in no other way."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
