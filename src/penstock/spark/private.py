"""The few places where Penstock leans on what Spark does not promise. Checked on PySpark 4.3.0.

`tests/spark/test_private.py` notices when one of them changes.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from pyspark import SparkConf, SparkContext
from pyspark.serializers import SpecialLengths
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

from penstock.errors import CutInputError, ProtocolError
from penstock.state.store.s3 import S3A_SETTINGS

_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)
"""What Spark sends a Python worker behind all input of a task, and only then."""


def builder_settings(builder: SparkSession.Builder) -> dict[str, str]:
    """What a session builder was told so far."""
    found: dict[str, str] = dict(builder._options)
    return found


def partition_count(df: DataFrame) -> int:
    """How many tasks a map-only job over this DataFrame has.

    `df` must stand on an RDD, as the DataFrame of `foreachBatch` and that of `pinned` do. The public
    `df.rdd.getNumPartitions()` says the same, but plans the query once more to do so.
    """
    plan: Any = df._jdf.logicalPlan()
    return int(plan.rdd().getNumPartitions())


def pinned(df: DataFrame) -> DataFrame:
    """The same rows with the partitions fixed, as Spark itself does for `foreachBatch`.

    A static DataFrame is otherwise planned anew for each action, and adaptive execution may then
    choose other partitions.
    """
    spark: Any = df.sparkSession
    rows = df._jdf.queryExecution().toRdd()
    jdf = spark._jsparkSession.internalCreateDataFrame(rows, df._jdf.schema(), False)
    return DataFrame(jdf, df.sparkSession)


def stream_sources(df: DataFrame) -> int:
    """How many sources a streaming DataFrame has in the eyes of Spark's log of offsets."""
    leaves: Any = df._jdf.queryExecution().analyzed().collectLeaves()
    found: list[Any] = []
    for leaf in (leaves.apply(n) for n in range(leaves.size())):
        if leaf.isStreaming() and not any(leaf.equals(other) for other in found):
            found.append(leaf)
    return len(found)


@contextmanager
def clock_now(spark: SparkSession) -> Iterator[None]:
    """Let a source that does not know the trigger "available now" (the clock) be one of a query that has
    it. Spark would otherwise make one batch of all that the other sources have."""
    key = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    before = spark.conf.get(key, None)
    spark.conf.set(key, "true")
    try:
        yield
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)


def own_session(spark: SparkSession) -> SparkSession:
    """A session with the same settings, and settings of its own from here on."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def hadoop_conf(spark: SparkSession) -> Any:
    """What Spark opens file systems with in this session."""
    return spark._jsparkSession.sessionState().newHadoopConf()


def in_own_stage(df: DataFrame) -> DataFrame:
    """The same rows in the same partitions, read from a shuffle; `df` as for `partition_count`.

    Whatever reads them, all of `df` is run, in tasks that know their partitions; and Spark runs those
    tasks again, and no others, whose rows were lost with an executor.
    """
    partitions = max(1, partition_count(df))
    return pinned(df.repartitionById(partitions, F.spark_partition_id()))


def forget_stage(df: DataFrame) -> None:
    """Remove the files behind a DataFrame of `in_own_stage`; else they stay until the JVM collects its
    garbage."""
    cleaner: Any = df.sparkSession.sparkContext._jsc.sc().cleaner()
    rdd: Any = df._jdf.logicalPlan().rdd()
    while cleaner.isDefined():
        behind = rdd.dependencies().head()
        if behind.getClass().getSimpleName() == "ShuffleDependency":
            cleaner.get().doCleanupShuffle(behind.shuffleId(), False)
            return
        rdd = behind.rdd()


def stop_signal(run_id: str) -> str:
    """A message that a stopping query takes for its own cancellation, not for a failure.

    A stream that was told to stop forgives an exception from `foreachBatch` only if its text looks
    like Spark's cancelled job of that run.
    """
    return f"org.apache.spark.SparkException: stopped between epochs, job group {run_id} cancelled"


def keep_jobs_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt and do nothing else.

    PySpark's own handler cancels every job first, and hosts are jobs: a query would lose all of them
    before anybody could stop it.
    """
    handler = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()
    if ours and getattr(handler, "__module__", "").startswith("pyspark."):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def qualified(spark: SparkSession, path: str) -> tuple[str, str, str]:
    """A path as Spark's streaming takes it: the scheme, the authority and the absolute path."""
    jvm: Any = spark.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    found = folder.getFileSystem(_hadoop(spark)).makeQualified(folder).toUri()
    return found.getScheme(), found.getAuthority() or "", found.getPath()


def knows_scheme(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark has a file system for URIs with this scheme."""
    return _hadoop(spark).get(f"fs.{scheme}.impl") is not None


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether Hadoop, on the driver, finds a class."""
    return _hadoop(spark).getClassByNameOrNull(name) is not None


def s3a_settings(spark: SparkSession, bucket: str) -> dict[str, str]:
    """The settings of s3a that somebody has set for a bucket, by their names behind `fs.s3a.`."""
    conf, found = _hadoop(spark), dict[str, str]()
    for prefix in ("fs.s3a.", f"fs.s3a.bucket.{bucket}."):
        for name in S3A_SETTINGS:
            sources = conf.getPropertySources(prefix + name)
            if sources is not None and list(sources) != ["core-default.xml"]:
                found[name] = str(conf.get(prefix + name))
    return found


def _hadoop(spark: SparkSession) -> Any:
    """Hadoop's configuration of this session."""
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


_MARK = "mdc.penstock"
"""The local property of Spark jobs whose failures Penstock handles and tells of. Spark puts local properties
that begin with "mdc." into the logging context of the threads that run the job's tasks."""
_HANDLED = "handled"
_DEFAULT_LOG = "org/apache/spark/log4j2-defaults.properties"
"""The logging configuration that Spark uses where nobody has made one."""
_LOST_EXECUTORS_LOG = "org.apache.spark.network.client.TransportClient"
"""The logger that writes a stack trace for each message to a lost executor. Others say that it is lost."""


def has_default_log(spark: SparkSession) -> bool:
    """Whether Spark logs by its own default configuration."""
    source = _log4j(spark).LogManager.getContext(False).getConfiguration().getConfigurationSource()
    return str(source.getLocation()).endswith(_DEFAULT_LOG)


def quiet_handled_failures(spark: SparkSession) -> None:
    """Have Spark log nothing in threads that carry the mark of `handled`: a killed host or a run that was
    broken off would fill pages with stack traces, though one line of Penstock's says it all."""
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
    """Have Penstock handle the failures of all jobs that this thread runs from now on."""
    sc.setLocalProperty(_MARK, _HANDLED)


@contextmanager
def handled(spark: SparkSession) -> Iterator[None]:
    """Have Penstock handle the failures of jobs inside the block, and what Spark says of them in this
    thread."""
    context = _log4j(spark).ThreadContext
    spark.sparkContext.setLocalProperty(_MARK, _HANDLED)
    context.put(_MARK, _HANDLED)
    try:
        yield
    finally:
        context.remove(_MARK)
        spark.sparkContext.setLocalProperty(_MARK, None)  # type: ignore[arg-type]


def mark_thread_handled(spark: SparkSession) -> None:
    """Have Spark's thread behind this one log nothing more: the query that it runs fails, and Penstock says
    why."""
    _log4j(spark).ThreadContext.put(_MARK, _HANDLED)


def _log4j(spark: SparkSession) -> Any:
    """Log4j's classes in the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.logging.log4j


def executors(spark: SparkSession) -> int:
    """How many executors the application has, beside the driver."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def lost_executors(failed: Exception) -> str:
    """What Spark says of a job that failed since executors died under one of its tasks again and again, of
    whatever cause: as little a fault of the job as the death of a host is. Empty for other failures.

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
    """Whether an executor is there that is being decommissioned. Not for local mode."""
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


def check_input_end() -> None:
    """Raise `CutInputError` unless Spark has said that all input of this task was sent.

    For the function of a `mapInArrow`, when it was given the last batch. If a task's input fails in
    Spark, the worker's socket is closed, mostly between two Arrow batches, and its Arrow reader takes
    that for the end. After a real end Spark's own mark lies next in the socket's stream, which is the
    local `infile` of the worker's `main`. It is only looked at here, and taken by the worker.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "main" or "infile" not in frame.f_locals:
        if frame.f_back is None:
            raise ProtocolError(
                "where Spark's worker reads the input of a task was not found",
                hint="use a PySpark release that this release of Penstock is made for",
            )
        frame = frame.f_back
    try:
        mark = frame.f_locals["infile"].peek(len(_END))[: len(_END)]
    except OSError as broken:
        raise CutInputError(f"the input of this task broke off: {broken}") from broken
    # a buffer may end inside of the mark
    if not mark or not _END.startswith(mark):
        raise CutInputError("the input of this task broke off: Spark has not sent all of it")


def submitted_settings() -> dict[str, str]:
    """What spark-submit, which has started this process and its JVM, was given and has read."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def running_settings() -> dict[str, str]:
    """What is set in the session that this process has, or in its SparkContext; nothing if it has none."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return {}
    session = SparkSession._instantiatedSession
    return dict(context.getConf().getAll()) | ({} if session is None else session.conf.getAll)
