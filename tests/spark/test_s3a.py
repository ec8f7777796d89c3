"""Jars that Spark needs for checkpoints on S3, and the error if they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.spark import private, s3a
from penstock.spark.checkpoint import locate
from penstock.spark.maven import Artifact, spark_jars
from penstock.spark.s3a import MANAGER, suited_manager, with_s3a

KEY = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Artifact]:
    """Jars that would have been downloaded."""
    found: list[Artifact] = []

    def jar_folder(name: str, artifacts: list[Artifact]) -> Path:
        found.extend(artifacts)
        (tmp_path / "a.jar").touch()
        return tmp_path

    monkeypatch.setattr(s3a, "jar_folder", jar_folder)
    return found


def test_the_jars_are_those_of_the_hadoop_in_spark(asked: list[Artifact], tmp_path: Path) -> None:
    assert with_s3a({"spark.jars": "mine.jar"}, {}) == f"mine.jar,{tmp_path}/a.jar"
    hadoop = next(spark_jars({}).glob("hadoop-client-api-*.jar")).stem.rsplit("-", 1)[1]
    assert Artifact("org.apache.hadoop", "hadoop-aws", hadoop) in asked


def test_a_session_that_has_them_fetches_nothing(asked: list[Artifact]) -> None:
    assert with_s3a({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}, {}) is None
    submit = "--packages org.apache.hadoop:hadoop-aws:3.5.0 pyspark-shell"
    assert with_s3a({}, {"PYSPARK_SUBMIT_ARGS": submit}) is None
    assert asked == []


def test_a_hadoop_that_is_not_known_is_told(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-client-api-9.9.9.jar").touch()
    with pytest.raises(SettingError, match=r"Hadoop 9\.9\.9.*hadoop-aws"):
        with_s3a({}, {"SPARK_HOME": str(tmp_path)})


def test_micro_batches_without_s3a_are_refused_at_the_start(spark: SparkSession) -> None:
    """A folder on S3 is located without Spark, since live flows need none of its jars."""
    folder = locate(spark, "s3://bucket/a b/?region=eu-west-1")
    assert folder.spark == "s3a://bucket/a b"
    assert folder.place.uri == "s3://bucket/a%20b?region=eu-west-1"
    flow = ps.flow(ps.rate(10)).key_by("key").aggregate(n=ps.count())
    with pytest.raises(SettingError, match=r"ps\.session\(s3=True\)"):
        flow.start(ps.collect(), checkpoint="s3a://bucket/flow")


def test_a_manager_of_spark_s_log_that_suits_s3(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spark.conf.get(KEY) or ""
    with suited_manager(spark, "s3a://bucket/flow"):
        assert spark.conf.get(KEY) == before  # this Spark has no other
    monkeypatch.setattr(s3a, "has_class", lambda *_: True)
    with suited_manager(spark, "file:///flow"):
        assert spark.conf.get(KEY) == before
    with suited_manager(spark, "s3a://bucket/flow"):
        assert spark.conf.get(KEY) == MANAGER
    assert spark.conf.get(KEY) == before
    spark.conf.set(KEY, "my.own.Manager")
    try:
        with suited_manager(spark, "s3a://bucket/flow"):
            assert spark.conf.get(KEY) == "my.own.Manager"
    finally:
        spark.conf.set(KEY, before)


def test_classes_are_found(spark: SparkSession) -> None:
    assert private.has_class(spark, "org.apache.hadoop.fs.LocalFileSystem")
    assert not private.has_class(spark, "org.apache.hadoop.fs.NoSuchFileSystem")
