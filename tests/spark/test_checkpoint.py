"""One checkpoint folder for Spark and Penstock, and a start from one that is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.spark import private
from penstock.spark.checkpoint import locate
from penstock.state.store.store import Store
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_flow import sums


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("some/folder", f"{os.getcwd()}/some/folder"),
        ("~/folder/", f"{Path.home()}/folder"),
        ("/data/a b//c?d%20", "/data/a b/c?d%20"),
        ("file:/data/x", "/data/x"),
        ("file:///data/x/", "/data/x"),
    ],
)
def test_spark_and_penstock_mean_one_folder(spark: SparkSession, given: str, path: str) -> None:
    folder = locate(spark, given)
    assert folder.spark == f"file://{path}"
    assert private.qualified(spark, folder.spark) == ("file", "", path)
    assert Store(folder.store).files._root == f"{path}/penstock"


def test_a_folder_that_spark_cannot_use_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SettingError, match=r"cannot use the checkpoint folder 'nosuch://x/y\?z=1'"):
        locate(spark, "nosuch://x/y?z=1")


def test_the_settings_of_s3a_are_known(spark: SparkSession) -> None:
    """Those that Hadoop itself has as defaults are not."""
    settings = {
        "fs.s3a.access.key": "all", "fs.s3a.bucket.mine.access.key": "mine",
        "fs.s3a.endpoint": "http://127.0.0.1:1", "fs.s3a.proxy.host": "proxy",
    }  # fmt: skip
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        common = {"endpoint": "http://127.0.0.1:1", "proxy.host": "proxy"}
        assert private.s3a_settings(spark, "mine") == common | {"access.key": "mine"}
        assert private.s3a_settings(spark, "other") == common | {"access.key": "all"}
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert private.s3a_settings(spark, "mine") == {}


def test_a_damaged_newest_version_is_made_again(
    spark: SparkSession, tmp_path: Path, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = numbers(files=5, rows=500, keys=50)
    write_files(tmp_path / "in", tables[:3])
    flow = ps.flow(stream(spark, tmp_path / "in"))
    flow = flow.key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())
    run(flow, checkpoint, hosts=2)
    [newest, *_] = sorted(Path(checkpoint, "penstock/deltas").glob("*/*"), reverse=True)
    assert newest.name.startswith("000000000002-")
    os.truncate(newest, newest.stat().st_size // 2)
    write_files(tmp_path / "in", tables[3:], start=3)
    with caplog.at_level("WARNING"):
        query, sink = run(flow, checkpoint, hosts=1)
    told = [r.getMessage() for r in caplog.records if r.name == "penstock.store"]
    assert len(told) == 1
    assert f"is damaged (deltas/{newest.parent.name}/{newest.name} is cut off)" in told[0]
    assert "going back to version 1, and running epoch 2 again" in told[0]
    assert [progress.epoch for progress in query.progress] == [2, 3, 4]
    found = {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()}
    expected = sums(tables)
    assert found == {k: expected[k] for k in found}
    assert len(found) == len(expected)
