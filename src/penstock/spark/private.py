"""All uses of private APIs of Spark. Tested with PySpark 4.3.0.

`tests/spark/test_private.py` fails if one of them changes.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.serializers import SpecialLengths
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.utils import ForeachBatchFunction

from penstock.errors import CutInputError, ProtocolError
from penstock.state.store.s3 import S3A_SETTINGS

_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)
"""Bytes that Spark sends to a Python worker after all input of a task."""


def builder_settings(builder: SparkSession.Builder) -> dict[str, str]:
    """The settings of a session builder."""
    settings: dict[str, str] = dict(builder._options)
    return settings


def setting(sc: SparkContext, name: str, default: str = "") -> str:
    """A setting with which the SparkContext was created. They do not change as long as it lives.

    The public `getConf()` copies all settings, in some thousand calls of the JVM. This is one.
    """
    return str(cast(Any, sc)._conf.get(name, default))


def on_each_batch(
    output: DataFrame, function: Callable[[DataFrame, int], None]
) -> DataStreamWriter:
    """Spark's writer that calls a function with each micro-batch of a streaming DataFrame.

    This is `output.writeStream.foreachBatch(function)`, but all batches have one session in Python.
    """
    writer, gateway = output.writeStream, cast(Any, output.sparkSession.sparkContext._gateway)
    helper = gateway.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
    helper.callForeachBatch(writer._jwrite, _Batches(output.sparkSession, function))
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return writer


class _Batches(ForeachBatchFunction):
    """PySpark's callback, without a new wrapper of the batch's session for each batch.

    Spark clones the session once for each start of a query. To wrap it takes seven calls of the JVM.
    """

    _of_batches: SparkSession | None = None

    def call(self, jdf: Any, batch_id: int) -> None:
        try:
            if self._of_batches is None:
                self._of_batches = SparkSession(self.session.sparkContext, jdf.sparkSession())
            self.func(DataFrame(jdf, self._of_batches), batch_id)
        except Exception as failed:
            self.error = failed
            raise


def partition_count(df: DataFrame) -> int:
    """Number of tasks of a map-only job over this DataFrame.

    `df` must be based on an RDD, like the DataFrames of `foreachBatch` and `pinned`. The public
    `df.rdd.getNumPartitions()` returns the same, but plans the query once more.
    """
    plan: Any = df._jdf.logicalPlan()
    return int(plan.rdd().getNumPartitions())


def pinned(df: DataFrame) -> DataFrame:
    """The same rows in fixed partitions, as Spark itself does for `foreachBatch`.

    Otherwise Spark plans a static DataFrame again for each action, and adaptive execution may choose other
    partitions.
    """
    spark: Any = df.sparkSession
    rows = df._jdf.queryExecution().toRdd()
    jdf = spark._jsparkSession.internalCreateDataFrame(rows, df._jdf.schema(), False)
    return DataFrame(jdf, df.sparkSession)


def stream_sources(df: DataFrame) -> int:
    """Number of sources of a streaming DataFrame, as Spark's log of offsets counts them."""
    leaves: Any = df._jdf.queryExecution().analyzed().collectLeaves()
    sources: list[Any] = []
    for leaf in (leaves.apply(n) for n in range(leaves.size())):
        if leaf.isStreaming() and not any(leaf.equals(other) for other in sources):
            sources.append(leaf)
    return len(sources)


def progress_after(query: StreamingQuery, epoch: int) -> list[dict[str, Any]]:
    """Spark's progress reports of the epochs after this one that a query has run, in order.

    The public `recentProgress` would parse the reports of all epochs that Spark keeps each time. Reports of
    triggers without an epoch are left out.
    """
    jquery: Any = query._jsq
    kept, found = jquery.recentProgress(), []
    for number in reversed(range(len(kept))):
        report = json.loads(kept[number].json())
        if report["batchId"] <= epoch:
            break
        if "addBatch" in report["durationMs"]:
            found.append(report)
    return found[::-1]


def query_partitions(query: StreamingQuery) -> int:
    """Number of tasks that have written the newest epoch of a query, after its first one."""
    jquery: Any = query._jsq
    write = jquery.streamingQuery().lastExecution().executedPlan()
    return int(write.children().head().execute().getNumPartitions())


@contextmanager
def clock_now(spark: SparkSession) -> Iterator[None]:
    """Allow a source without support for the trigger "available now" (the clock) in a query with that
    trigger. Otherwise Spark would read all other sources in one batch."""
    key = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    before = spark.conf.get(key, None)
    spark.conf.set(key, "true")
    try:
        yield
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)


def own_session(spark: SparkSession) -> SparkSession:
    """A copy of the session, whose settings can be changed separately."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def hadoop_conf(spark: SparkSession) -> Any:
    """Hadoop's configuration of this session, with which Spark opens file systems."""
    return spark._jsparkSession.sessionState().newHadoopConf()


def in_own_stage(df: DataFrame) -> DataFrame:
    """The same rows in the same partitions, but read from a shuffle. `df` must be as for `partition_count`.

    All of `df` is then run, however much of it is read. If an executor is lost, Spark only repeats the tasks
    whose rows were on it.
    """
    partitions = max(1, partition_count(df))
    return pinned(df.repartitionById(partitions, F.spark_partition_id()))


def forget_stage(df: DataFrame) -> None:
    """Remove the shuffle files of a DataFrame from `in_own_stage`. Otherwise they stay until the JVM's
    garbage collection."""
    cleaner: Any = df.sparkSession.sparkContext._jsc.sc().cleaner()
    rdd: Any = df._jdf.logicalPlan().rdd()
    while cleaner.isDefined():
        behind = rdd.dependencies().head()
        if behind.getClass().getSimpleName() == "ShuffleDependency":
            cleaner.get().doCleanupShuffle(behind.shuffleId(), False)
            return
        rdd = behind.rdd()


def stop_signal(run_id: str) -> str:
    """An error message that Spark takes for a cancellation of the run, and not for a failure.

    A stopping stream ignores an exception from `foreachBatch` only if its text looks like that of a cancelled
    job.
    """
    return f"org.apache.spark.SparkException: stopped between epochs, job group {run_id} cancelled"


def keep_jobs_on_interrupt() -> None:
    """Make Ctrl-C only raise KeyboardInterrupt.

    PySpark's own handler cancels all jobs first. Hosts are jobs, so a query would lose all hosts before it
    could be stopped.
    """
    handler = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()
    if ours and getattr(handler, "__module__", "").startswith("pyspark."):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def qualified(spark: SparkSession, path: str) -> tuple[str, str, str]:
    """Scheme, authority and absolute path of a path, as Spark's streaming understands it."""
    jvm: Any = spark.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    uri = folder.getFileSystem(_hadoop(spark)).makeQualified(folder).toUri()
    return uri.getScheme(), uri.getAuthority() or "", uri.getPath()


def knows_scheme(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark has a file system for URIs with this scheme."""
    return _hadoop(spark).get(f"fs.{scheme}.impl") is not None


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether Hadoop finds a class on the driver."""
    return _hadoop(spark).getClassByNameOrNull(name) is not None


def s3a_settings(spark: SparkSession, bucket: str) -> dict[str, str]:
    """The s3a settings for a bucket that differ from Hadoop's defaults, by their names after `fs.s3a.`."""
    conf, settings = _hadoop(spark), dict[str, str]()
    for prefix in ("fs.s3a.", f"fs.s3a.bucket.{bucket}."):
        for name in S3A_SETTINGS:
            sources = conf.getPropertySources(prefix + name)
            if sources is not None and list(sources) != ["core-default.xml"]:
                settings[name] = str(conf.get(prefix + name))
    return settings


def _hadoop(spark: SparkSession) -> Any:
    """Hadoop's configuration of this session."""
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


_MARK = "mdc.penstock"
"""Local property of Spark jobs whose failures Penstock handles and logs. Spark copies local properties that
begin with "mdc." to the logging context of the threads that run the job's tasks."""
_HANDLED = "handled"
_DEFAULT_LOG = "org/apache/spark/log4j2-defaults.properties"
"""Logging configuration that Spark uses by default."""
_LOST_EXECUTORS_LOG = "org.apache.spark.network.client.TransportClient"
"""Logger that writes a stack trace for each message to a lost executor. Other loggers report the loss."""


def has_default_log(spark: SparkSession) -> bool:
    """Whether Spark uses its default logging configuration."""
    source = _log4j(spark).LogManager.getContext(False).getConfiguration().getConfigurationSource()
    return str(source.getLocation()).endswith(_DEFAULT_LOG)


def quiet_handled_failures(spark: SparkSession) -> None:
    """Suppress Spark's log messages in threads that are marked by `handled`. Otherwise a killed host or a
    cancelled run would fill pages with stack traces, although one line of Penstock's says it all."""
    log4j, gateway = _log4j(spark), cast(Any, spark.sparkContext._gateway)
    configuration = log4j.LogManager.getContext(False).getConfiguration()
    if _MARK in str(configuration.getFilter()):
        return
    pairs = gateway.new_array(log4j.core.util.KeyValuePair, 1)
    pairs[0] = log4j.core.util.KeyValuePair(_MARK, _HANDLED)
    result = log4j.core.Filter.Result
    quiet = log4j.core.filter.ThreadContextMapFilter.createFilter(
        pairs, "or", result.DENY, result.NEUTRAL
    )
    configuration.addFilter(quiet)
    log4j.core.config.Configurator.setLevel(_LOST_EXECUTORS_LOG, log4j.Level.OFF)


def mark_handled(sc: SparkContext) -> None:
    """Mark all jobs that this thread runs from now on: Penstock handles their failures."""
    sc.setLocalProperty(_MARK, _HANDLED)


@contextmanager
def handled(spark: SparkSession) -> Iterator[None]:
    """Mark this thread inside the block, in which it runs jobs with `mark_handled`."""
    put, remove = _thread_marks(spark.sparkContext._gateway)
    put(_MARK, _HANDLED)
    try:
        yield
    finally:
        remove(_MARK)


@lru_cache(maxsize=1)
def _thread_marks(gateway: Any) -> tuple[Any, Any]:
    """Log4j's functions that set and remove a mark of the calling thread. To find both again takes seven
    calls of the JVM."""
    context = gateway.jvm.org.apache.logging.log4j.ThreadContext
    return context.put, context.remove


def names_jobs(sc: SparkContext) -> bool:
    """Whether anyone can see the names of jobs: in Spark's UI, or in its event log."""
    return "true" in (
        setting(sc, "spark.ui.enabled", "true"),
        setting(sc, "spark.eventLog.enabled", "false"),
    )


_DESCRIPTION, _CALL_SITE = "spark.job.description", "callSite.short"
"""Local properties of Spark: the description of a job, and the name of its stages, in Spark's UI."""


@contextmanager
def named(sc: SparkContext, text: str) -> Iterator[None]:
    """Name jobs and stages inside the block in Spark's UI. The public way to name a stage sets the same
    property, but only in Scala."""
    before = {name: sc.getLocalProperty(name) for name in (_DESCRIPTION, _CALL_SITE)}
    for name in before:
        sc.setLocalProperty(name, text)
    try:
        yield
    finally:
        for name, old in before.items():
            sc.setLocalProperty(name, old)  # type: ignore[arg-type]


def name_jobs(sc: SparkContext, text: str) -> None:
    """Name all jobs and stages in Spark's UI that this thread runs from now on, as `named` does. Without
    asking for the earlier names, which takes as many calls of the JVM again."""
    for name in (_DESCRIPTION, _CALL_SITE):
        sc.setLocalProperty(name, text)


def mark_thread_handled(spark: SparkSession) -> None:
    """Mark Spark's thread of a streaming query for good: the query fails, and Penstock logs why."""
    _log4j(spark).ThreadContext.put(_MARK, _HANDLED)


def _log4j(spark: SparkSession) -> Any:
    """Log4j's package in the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.logging.log4j


def executors(spark: SparkSession) -> int:
    """Number of executors of the application, without the driver."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def lost_executors(failed: Exception) -> str:
    """Spark's message about a job that failed because its executors were lost too often, which is not the
    fault of the job; "" for other failures.

    >>> lost_executors(ValueError("An error occurred\\n failed 4 times: ExecutorLostFailure (executor 3)"))
    'failed 4 times: ExecutorLostFailure (executor 3)'
    """
    lines = str(failed).splitlines()
    return next((line.strip() for line in lines if "ExecutorLostFailure" in line), "")


def is_local(spark: SparkSession | SparkContext) -> bool:
    """Whether tasks run on the driver's machine."""
    context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    return (context.master or "").startswith("local")


def any_decommissioned(sc: SparkContext) -> bool:
    """Whether any executor is being decommissioned. Not for local mode."""
    scheduler: Any = sc._jsc.sc().taskScheduler()
    return not scheduler.executorsPendingDecommission().isEmpty()


def runs_decommissioned(sc: SparkContext, group: str) -> bool:
    """Whether a task of a job group runs on an executor that is being decommissioned."""
    context: Any = sc._jsc.sc()
    scheduler, store, tracker = context.taskScheduler(), context.statusStore(), sc.statusTracker()
    infos = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    for stage in (stage for info in infos if info is not None for stage in info.stageIds):
        tasks = store.taskList(stage, 0, 100)
        for task in (tasks.apply(n) for n in range(tasks.size())):
            state = scheduler.getExecutorDecommissionState(task.executorId())
            if task.status() == "RUNNING" and state.isDefined():
                return True
    return False


def tagged_tasks(sc: SparkContext, tag: str) -> list[tuple[int, float, float]]:
    """(partition, start, end) of the ended tasks of all jobs with this tag, in milliseconds since 1970."""
    context: Any = sc._jsc.sc()
    tracker, store = context.statusTracker(), context.statusStore()
    found = []
    for job in tracker.getJobIdsForTag(tag):
        stages = store.job(job).stageIds()
        for stage in (stages.apply(n) for n in range(stages.size())):
            tasks = store.taskList(stage, 0, 1_000)
            for task in (tasks.apply(n) for n in range(tasks.size())):
                if task.duration().isDefined():
                    start_ms = float(task.launchTime().getTime())
                    took_ms = float(task.duration().get())
                    found.append((int(task.partitionId()), start_ms, start_ms + took_ms))
    return found


def check_input_end() -> None:
    """Raise `CutInputError` unless this task has received all its input.

    The function of a `mapInArrow` calls this after its last batch. If a task's input fails in Spark, the
    worker's socket is closed, and its Arrow reader takes that for the end of the input. After a real end,
    Spark's end mark is next in the stream, which is the local variable `infile` of the worker's `main`. This
    function only peeks at it; the worker reads it.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "main" or "infile" not in frame.f_locals:
        if frame.f_back is None:
            raise ProtocolError(
                "the input stream of Spark's Python worker was not found",
                hint="use a PySpark version that this version of Penstock supports",
            )
        frame = frame.f_back
    try:
        mark = frame.f_locals["infile"].peek(len(_END))[: len(_END)]
    except OSError as broken:
        raise CutInputError(f"the input of this task was cut off: {broken}") from broken
    # a buffer may end inside the mark
    if not mark or not _END.startswith(mark):
        raise CutInputError("the input of this task was cut off: Spark has not sent all of it")


def submitted_settings() -> dict[str, str]:
    """All settings of the spark-submit that has started this process."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def running_settings() -> dict[str, str]:
    """Settings of the running session, or of the SparkContext, of this process; empty if it has none."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return {}
    session = SparkSession._instantiatedSession
    return dict(context._conf.getAll()) | ({} if session is None else session.conf.getAll)
