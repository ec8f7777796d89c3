"""Private APIs of Spark that Penstock uses: these tests fail when a release changes one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.spark import private
from tests.spark.sources import numbers, stream, write_files


def test_a_builder_tells_its_settings() -> None:
    builder = SparkSession.Builder().config("spark.jars", "a.jar").config(map={"spark.x": "1"})
    told = private.builder_settings(builder)
    assert (told["spark.jars"], told["spark.x"]) == ("a.jar", "1")


def test_a_session_logs_by_sparks_defaults_and_quiet_where_failures_are_handled(
    spark: SparkSession,
) -> None:
    """`test_log_lines.py` has what that comes to."""
    assert private.has_default_log(spark)
    configuration = private._log4j(spark).LogManager.getContext(False).getConfiguration()
    assert "mdc.penstock=[handled]" in str(configuration.getFilter())
    marks = private._log4j(spark).ThreadContext
    with private.handled(spark):
        assert marks.get("mdc.penstock") == "handled"
    assert marks.get("mdc.penstock") is None


def test_a_setting_is_read_without_a_copy_of_all(spark: SparkSession) -> None:
    context = spark.sparkContext
    with py4j_calls() as calls:
        assert private.setting(context, "spark.app.name") == context.getConf().get("spark.app.name")
        copied = len(calls)
        assert private.setting(context, "spark.not.there") == ""
        assert private.setting(context, "spark.not.there", "1") == "1"
    assert len(calls) == copied + 2
    assert private.running_settings().items() >= dict(context.getConf().getAll()).items()


def test_all_batches_of_a_query_have_the_session_that_spark_made_for_it(
    spark: SparkSession, checkpoint: str
) -> None:
    """`on_each_batch` looks it up once; a release might clone it more often."""
    told: list[tuple[int, bool, int]] = []
    spark.conf.set("spark.penstock.test", "before")

    def note(df: DataFrame, epoch: int) -> None:
        jdf: Any = df._jdf
        session: Any = df.sparkSession
        own = bool(session._jsparkSession.equals(jdf.sparkSession()))
        told.append((epoch, own, df.count()))

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    writer = private.on_each_batch(rows, note).option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        while len(told) < 3:
            assert not query.awaitTermination(0.05)  # type: ignore[arg-type]
    finally:
        query.stop()
    assert told[:3] == [(epoch, True, 7) for epoch in range(3)]


def test_an_error_of_the_callback_reaches_the_user(spark: SparkSession, checkpoint: str) -> None:
    def fail(df: DataFrame, epoch: int) -> None:
        raise ValueError(f"no epoch {epoch}")

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    query = private.on_each_batch(rows, fail).option("checkpointLocation", checkpoint).start()
    with pytest.raises(StreamingQueryException, match="no epoch 0"):
        query.awaitTermination(60)


def test_a_thread_names_its_jobs(spark: SparkSession) -> None:
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    context.setJobGroup("renamed", "before")
    private.name_jobs(context, "a name for good")
    context.runJob(context.parallelize([1], 1), list)
    job = tracker.getJobInfo(tracker.getJobIdsForGroup("renamed")[0])
    assert job is not None
    stage = tracker.getStageInfo(job.stageIds[0])
    assert stage is not None
    assert stage.name == context.getLocalProperty("spark.job.description") == "a name for good"
    for name in ("spark.jobGroup.id", "spark.job.description", "callSite.short"):
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_a_mark_of_a_thread_takes_two_calls(spark: SparkSession) -> None:
    with private.handled(spark):
        pass
    with py4j_calls() as calls, private.handled(spark):
        pass
    assert len(calls) == 2


def test_an_epoch_takes_few_calls_of_the_jvm(spark: SparkSession, checkpoint: str) -> None:
    """Each takes 0.2 ms or more of a trigger. Those of Spark's own callback and of an elastic flow's control
    count too."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2)
    flow = ps.flow(source.load()).key_by("value").aggregate(n=ps.count())
    flow = flow.sla(latency="30s").elastic(at_most=2)
    query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=1)
    try:
        _until_epoch(query, 3)
        with py4j_calls(beside=threading.current_thread()) as calls:
            first = len(query.progress)
            _until_epoch(query, first + 5)
            epochs = len(query.progress) - first
        # The thread that waits for the query asks ten times a second whether it runs.
        of_epochs = [thread for thread in calls if not thread.startswith("penstock-")]
        assert len(of_epochs) <= MOST_CALLS * (epochs + 1)
        assert len(of_epochs) >= 5 * (epochs - 1)  # or this counts nothing
    finally:
        query.stop()


MOST_CALLS = 15


def _until_epoch(query: ps.FlowQuery, epochs: int) -> None:
    while len(query.progress) < epochs:
        assert not query.await_termination(0.02)


@contextmanager
def py4j_calls(beside: threading.Thread | None = None) -> Iterator[list[str]]:
    """The names of the threads that call the JVM inside the block, one for each call, except this one's."""
    calls: list[str] = []
    send = JavaClient.send_command

    def counted(self: Any, command: str, *arguments: Any, **options: Any) -> Any:
        # Objects that Python has dropped are released at any time.
        if not command.startswith("m\n") and threading.current_thread() is not beside:
            calls.append(threading.current_thread().name)
        return send(self, command, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaClient, "send_command", counted)
        yield calls


def test_jobs_inside_a_block_have_its_name(spark: SparkSession) -> None:
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    context.setJobGroup("named", "before")
    with private.named(context, "a telling name"):
        context.runJob(context.parallelize([1], 1), list)
        assert context.getLocalProperty("spark.job.description") == "a telling name"
    assert context.getLocalProperty("spark.job.description") == "before"
    assert context.getLocalProperty("callSite.short") is None
    job = tracker.getJobInfo(tracker.getJobIdsForGroup("named")[0])
    assert job is not None
    stage = tracker.getStageInfo(job.stageIds[0])
    assert stage is not None
    assert stage.name == "a telling name"
    for name in ("spark.jobGroup.id", "spark.job.description"):
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_a_local_session_has_no_executor_beside_its_driver(spark: SparkSession) -> None:
    assert private.executors(spark) == 0


def test_pinned_keeps_rows_and_partitions(spark: SparkSession) -> None:
    df = spark.range(0, 100, 1, 5).withColumn("x", F.col("id") * 2)
    fixed = private.pinned(df)
    assert private.partition_count(fixed) == 5 == fixed.rdd.getNumPartitions()
    assert fixed.schema == df.schema
    assert sorted(fixed.collect()) == sorted(df.collect())


def test_a_query_stopped_under_load_ends_without_an_error(
    spark: SparkSession, checkpoint: str
) -> None:
    """Spark forgives the signal that a stopping callback raises; hosts and jobs are gone after it."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2)
    flow = ps.flow(source.load()).key_by("value").aggregate(n=ps.count())
    query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=1)
    streaming = query.spark_query()
    while len(query.progress) < 3:
        assert not query.await_termination(0.05)
    query.stop()
    assert query.status.state == "stopped"
    assert query.exception() is None
    assert streaming.exception() is None
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_interrupts_leave_jobs_alone(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbers(files=1, rows=10, keys=3))
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k").aggregate(n=ps.count())
    query = flow.start(ps.collect(), checkpoint=str(tmp_path / "ck"), trigger="available_now")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    query.await_termination(60)


def test_local_properties_reach_python_tasks(spark: SparkSession) -> None:
    from pyspark import TaskContext

    spark.sparkContext.setLocalProperty("penstock.test", "told")
    try:
        seen = spark.range(1).rdd.map(
            lambda _: TaskContext.get().getLocalProperty("penstock.test")  # type: ignore[union-attr]
        )
        assert seen.collect() == ["told"]
    finally:
        spark.sparkContext.setLocalProperty("penstock.test", None)  # type: ignore[arg-type]


def test_sessions_that_cannot_hold_hosts_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(3)
    elsewhere = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    with pytest.raises(ps.SettingError, match=r"Spark Connect.*What to do: .*ps\.session"):
        ps.flow(elsewhere())
    conf = SparkConf(loadDefaults=False).set("spark.speculation", "true")
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    with pytest.raises(ps.SettingError, match=r"What to do: .*spark\.speculation=false"):
        ps.flow(rows)


def test_what_a_running_session_has_stays(spark: SparkSession) -> None:
    adaptive = "spark.sql.adaptive.enabled"
    assert private.running_settings()["spark.app.name"] == spark.conf.get("spark.app.name")
    before = str(spark.conf.get(adaptive))
    spark.conf.set(adaptive, "true")
    try:
        builder = ps.configure(SparkSession.Builder())
        assert adaptive not in private.builder_settings(builder)
        assert builder.getOrCreate().conf.get(adaptive) == "true"
    finally:
        spark.conf.set(adaptive, before)


def test_spark_tells_which_executors_are_decommissioned(spark: SparkSession) -> None:
    """`tests/cluster/test_elastic.py` tests the reply for a decommissioned executor."""
    context = spark.sparkContext
    context.setJobGroup("decommissioned", "a job with a task")
    try:
        assert context.parallelize([1, 2], 2).count() == 2
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert context.statusTracker().getJobIdsForGroup("decommissioned")
    assert not private.any_decommissioned(context)
    assert not private.runs_decommissioned(context, "decommissioned")


def test_spark_tells_the_progress_and_the_tasks_of_a_query(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", numbers(files=3, rows=100, keys=10))
    rows = stream(spark, tmp_path / "in").repartition(3)
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert [report["batchId"] for report in private.progress_after(query, 0)] == [1, 2]
    assert private.progress_after(query, 2) == []
    assert private.progress_after(query, 1)[0]["numInputRows"] == 100
    assert private.query_partitions(query) == 3


def test_jobs_of_a_tag_tell_their_tasks(spark: SparkSession) -> None:
    context, before_ms = spark.sparkContext, time.time() * 1000 - 1
    context.addJobTag("an-epoch")
    try:
        context.runJob(context.parallelize([1, 2, 3], 3), list)
    finally:
        context.clearJobTags()
    tasks = private.tagged_tasks(context, "an-epoch")
    assert sorted(partition for partition, _, _ in tasks) == [0, 1, 2]
    assert all(before_ms <= start_ms <= end_ms for _, start_ms, end_ms in tasks)
    assert private.tagged_tasks(context, "another") == []
