"""Hadoop's s3a file system, which Spark needs for its log in a checkpoint on S3, in micro-batches.

It is not part of PySpark. It is downloaded in the version of PySpark's Hadoop, with AWS's client (several
hundred MB) and a checkpoint file manager for object stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.errors import SettingError
from penstock.spark.known_settings import spark_defaults
from penstock.spark.maven import Artifact, jar_folder, jar_list, spark_jars
from penstock.spark.private import has_class

MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
"""Checkpoint file manager that writes each file of Spark's log by one put. Others write and rename a file,
which on S3 is a copy and a delete."""
_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_WHERE = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_CLIENTS = {"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""Version of Hadoop -> version of AWS's client that it was built with."""
_CLOUD = Artifact("org.apache.spark", "spark-hadoop-cloud_2.13", "4.1.2")
"""Newest version on Maven Central that works with PySpark 4.3.0."""
MISSING = SettingError(
    "this Spark has no file system for S3, which a flow in micro-batches needs for a checkpoint there",
    hint="create the session with ps.session(s3=True), in a process without another session, or start the "
    'flow with mode="live"',
)


def s3a_jars(environ: Mapping[str, str] = os.environ) -> str:
    """The jars of s3a, in the form of `spark.jars`. They are downloaded unless they are in the cache."""
    jars = sorted(spark_jars(environ).glob("hadoop-client-api-*.jar"))
    version = jars[0].stem.removeprefix("hadoop-client-api-") if jars else "unknown"
    if version not in _CLIENTS:
        raise SettingError(
            f"this Spark has Hadoop {version}, for which the version of AWS's client is not known",
            hint="set spark.jars.packages to org.apache.hadoop:hadoop-aws in Hadoop's version",
        )
    wanted = [
        Artifact("org.apache.hadoop", "hadoop-aws", version),
        Artifact("software.amazon.awssdk", "bundle", _CLIENTS[version]),
        Artifact("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        _CLOUD,
    ]
    return jar_list(jar_folder(f"spark-s3a-{version}", wanted))


def with_s3a(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Value of `spark.jars` that adds s3a to a session with these settings; None if it has it.

    >>> with_s3a({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}) is None
    True
    """
    known = spark_defaults(environ) | dict(conf)
    texts = [known.get(name, "") for name in _WHERE] + [environ.get("PYSPARK_SUBMIT_ARGS", "")]
    if any("hadoop-aws" in text for text in texts) or any(spark_jars(environ).glob("hadoop-aws*")):
        return None
    before = known.get("spark.jars")
    return f"{before},{s3a_jars(environ)}" if before else s3a_jars(environ)


def must_have_s3a(spark: SparkSession) -> None:
    """Raise a `SettingError` if Spark cannot keep its log on S3."""
    if not has_class(spark, _FILE_SYSTEM):
        raise MISSING


@contextmanager
def suited_manager(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Use the checkpoint file manager for S3 in streams that are started inside the block, if their
    checkpoint is there. A manager that the user has chosen stays."""
    before = spark.conf.get(_MANAGER_KEY, None)
    ours = before is None or before.endswith(".FileSystemBasedCheckpointFileManager")
    if not (checkpoint.startswith("s3a://") and ours and has_class(spark, MANAGER)):
        yield
        return
    spark.conf.set(_MANAGER_KEY, MANAGER)
    try:
        yield
    finally:
        spark.conf.unset(_MANAGER_KEY) if before is None else spark.conf.set(_MANAGER_KEY, before)
