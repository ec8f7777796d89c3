"""Which jars a session gets for Kafka: none if it has them, those of PySpark's version, or checked ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.spark import maven
from penstock.spark.connector import CHECKED, with_connector
from penstock.spark.known_settings import spark_defaults
from penstock.spark.maven import Artifact, is_cached, jar_folder, jar_list
from penstock.spark.private import builder_settings

CHECKED_FOLDER = f"spark-kafka-{CHECKED[0].revision}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a registry that has the checked artifacts, but not those of PySpark's version."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))

    def fetch(artifacts: Iterable[Artifact], transitive: bool, folder: Path) -> None:
        for one in artifacts:
            if one not in CHECKED:
                raise OSError(f"{one.name};{one.revision}: not found")
            (folder / f"{one.name}-{one.revision}.jar").touch()

    monkeypatch.setattr(maven, "_fetch", fetch)
    return tmp_path / "cache"


def test_a_session_that_has_the_connector_is_left_alone(cache: Path, tmp_path: Path) -> None:
    jar = "/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar"
    assert with_connector({"spark.jars": f"/other.jar,{jar}"}) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / Path(jar).name).touch()
    assert with_connector({}, {"SPARK_HOME": str(tmp_path)}) is None
    assert with_connector({}, {"PYSPARK_SUBMIT_ARGS": f"--jars {jar} pyspark-shell"}) is None
    assert not cache.exists()


def test_the_checked_version_where_there_is_no_other(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jars = with_connector({"spark.jars": "/mine.jar"}, {})
    assert jars is not None
    first, *others = jars.split(",")
    assert first == "/mine.jar"
    assert {Path(jar).name for jar in others} == {f"{a.name}-{a.revision}.jar" for a in CHECKED}
    assert {Path(jar).parent for jar in others} == {cache / CHECKED_FOLDER}
    assert f"Fetching {CHECKED_FOLDER} from Maven Central" in capsys.readouterr().err

    assert with_connector({}, {}) == ",".join(others), "it is in the cache"
    assert "Fetching" not in capsys.readouterr().err


def test_no_network_is_told_with_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(artifacts: Iterable[Artifact], transitive: bool, folder: Path) -> None:
        raise OSError("UnknownHostException")

    monkeypatch.setattr(maven, "_fetch", fetch)
    with pytest.raises(SettingError, match=r"UnknownHost.*check the network, or copy"):
        with_connector({}, {})
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [], "nothing half done"


def test_what_spark_brings_is_not_shipped(tmp_path: Path) -> None:
    for name in ("scala-library-2.13.1.jar", "kafka-clients-3.9.2.jar"):
        (tmp_path / name).touch()
    assert jar_list(tmp_path) == str(tmp_path / "kafka-clients-3.9.2.jar")


def test_defaults_of_spark_are_heeded(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# jars\nspark.jars  /a.jar,/b.jar\nspark.driver.memory=2g\n"
    )
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    told = {"spark.jars": "/a.jar,/b.jar", "spark.driver.memory": "2g"}
    assert spark_defaults(environ) == told
    assert (with_connector({}, environ) or "").startswith("/a.jar,/b.jar,")


def test_a_builder_gets_the_connector(cache: Path) -> None:
    builder = ps.configure(SparkSession.Builder().config("spark.jars", "/mine.jar"), kafka=True)
    assert builder_settings(builder)["spark.jars"].startswith(f"/mine.jar,{cache}")
    builder = ps.configure(SparkSession.Builder().config("spark.jars", "/mine.jar"))
    assert builder_settings(builder)["spark.jars"] == "/mine.jar"


def test_two_that_want_the_same_jars_get_them_once(cache: Path) -> None:
    folder = jar_folder("some", CHECKED)
    assert jar_folder("some", CHECKED) == folder == cache / "some"
    assert is_cached("some")
