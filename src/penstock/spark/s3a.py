"""S3 in Spark itself, for the log that it keeps in the checkpoint of a flow in micro-batches: Hadoop's s3a.

PySpark does not bring it. Its version is that of the Hadoop in PySpark, and with it comes AWS's client (a
download of several hundred MB) and the manager of Spark's log that suits object stores.
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
"""Writes a file of Spark's log by one put. The others write it under another name and rename it, which on S3
is a copy and a removal."""
_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_WHERE = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_CLIENTS = {"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""Hadoop's version -> that of AWS's client that it was made with."""
_CLOUD = Artifact("org.apache.spark", "spark-hadoop-cloud_2.13", "4.1.2")
"""The newest that Maven Central had and that ran on PySpark 4.3.0."""
MISSING = SettingError(
    "this Spark has no file system for S3, which its log of a flow in micro-batches needs",
    hint="make the session with ps.session(s3=True), in a process that has none yet; live flows need none",
)


def s3a_jars(environ: Mapping[str, str] = os.environ) -> str:
    """The jars, as `spark.jars` wants them; fetched if the cache does not have them."""
    found = sorted(spark_jars(environ).glob("hadoop-client-api-*.jar"))
    version = found[0].stem.removeprefix("hadoop-client-api-") if found else "unknown"
    if version not in _CLIENTS:
        raise SettingError(
            f"this Spark has Hadoop {version}, whose version of AWS's client is not known here",
            hint="give spark.jars.packages with org.apache.hadoop:hadoop-aws in Hadoop's version",
        )
    wanted = [
        Artifact("org.apache.hadoop", "hadoop-aws", version),
        Artifact("software.amazon.awssdk", "bundle", _CLIENTS[version]),
        Artifact("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        _CLOUD,
    ]
    return jar_list(jar_folder(f"spark-s3a-{version}", wanted))


def with_s3a(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str | None:
    """What `spark.jars` should be so that a session with these settings has s3a; None: it has it.

    >>> with_s3a({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}) is None
    True
    """
    known = spark_defaults(environ) | dict(conf)
    told = [known.get(name, "") for name in _WHERE] + [environ.get("PYSPARK_SUBMIT_ARGS", "")]
    if any("hadoop-aws" in text for text in told) or any(spark_jars(environ).glob("hadoop-aws*")):
        return None
    before = known.get("spark.jars")
    return f"{before},{s3a_jars(environ)}" if before else s3a_jars(environ)


def must_have_s3a(spark: SparkSession) -> None:
    """Refuse a session whose Spark cannot keep its log on S3."""
    if not has_class(spark, _FILE_SYSTEM):
        raise MISSING


@contextmanager
def suited_manager(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """A stream that is started inside keeps its log as suits its checkpoint folder. A manager that somebody
    else than Penstock has chosen stays."""
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
