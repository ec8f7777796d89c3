"""Spark's Kafka connector: whether a session has it, and its jars.

Its version is that of PySpark. If Maven Central does not have that version, the newest tested one is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyspark
from pyspark.sql import SparkSession

from penstock.errors import SettingError
from penstock.spark.known_settings import spark_defaults
from penstock.spark.maven import Artifact, is_cached, jar_folder, jar_list, spark_jars

NAME = "spark-sql-kafka-0-10"
_SCALA = "2.13"
CHECKED = (
    Artifact("org.apache.spark", f"{NAME}_{_SCALA}", "4.2.0"),
    Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{_SCALA}", "4.1.0-preview1"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)
"""Newest connector on Maven Central that works with PySpark 4.3.0, and its dependencies."""
PATIENT_READS = {
    "fetchOffset.numRetries": "30",  # a restarted broker does not know its topics for a second
    "kafkaConsumer.pollTimeoutMs": "300000",
}
PATIENT_WRITES = {"kafka.max.block.ms": "300000", "kafka.delivery.timeout.ms": "300000"}
"""Default options for reads and writes, with which brokers may be unavailable for five minutes."""
_WHERE = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


def must_have_connector(spark: SparkSession) -> None:
    """Raise a `SettingError` if the session has no connector."""
    try:
        spark.readStream.format("kafka").load()
    except Exception as failed:  # with the connector, options are missing
        if "Failed to find data source: kafka" in str(failed):
            raise SettingError(
                "Spark's connector for Kafka is not in the session",
                hint="create the session with ps.session(kafka=True), in a process without another session",
            ) from failed


def has_connector() -> bool:
    """Whether the connector is in the cache. Downloads nothing."""
    return any(is_cached(name) for name in _folders())


def _folders() -> tuple[str, str]:
    """Cache folders of PySpark's version of the connector, and of the tested one."""
    return f"spark-kafka-{pyspark.__version__}", f"spark-kafka-{CHECKED[0].revision}"


def connector_jars() -> str:
    """The connector's jars, in the form of `spark.jars`. They are downloaded unless they are in the cache.

    Their version is that of PySpark, or else the tested one. Jars that are part of Spark are left out.
    """
    exact, checked = _folders()
    if is_cached(checked) and not is_cached(exact):
        return jar_list(jar_folder(checked, CHECKED))
    try:
        wanted = Artifact("org.apache.spark", f"{NAME}_{_SCALA}", pyspark.__version__)
        return jar_list(jar_folder(exact, [wanted], transitive=True))
    except SettingError:
        return jar_list(jar_folder(checked, CHECKED))


def with_connector(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Value of `spark.jars` that adds the connector to a session with these settings; None if it has it.

    >>> with_connector({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0"}) is None
    True
    """
    known = spark_defaults(environ) | dict(conf)
    texts = [known.get(name, "") for name in _WHERE] + [environ.get("PYSPARK_SUBMIT_ARGS", "")]
    if any(NAME in text for text in texts) or any(spark_jars(environ).glob(f"{NAME}*.jar")):
        return None
    before = known.get("spark.jars")
    return f"{before},{connector_jars()}" if before else connector_jars()
