"""The few places where Penstock leans on what Spark does not promise. Checked on PySpark 4.3.0.

`tests/spark/test_private.py` notices when one of them changes.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.state.store.places import S3A_SETTINGS


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


def is_local(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "").startswith("local")
