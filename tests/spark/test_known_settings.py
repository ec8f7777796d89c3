"""Settings of a user stay; Penstock's own are only defaults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark.known_settings import submitted
from penstock.spark.private import builder_settings

ADAPTIVE = "spark.sql.adaptive.enabled"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DAEMON = "spark.python.daemon.module"
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
THREADS = "spark.executorEnv.OMP_NUM_THREADS"


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with the folder of spark-defaults.conf and no other settings."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("penstock.spark.private.running_settings", dict)
    return tmp_path


def configured(builder: SparkSession.Builder | None = None) -> dict[str, str]:
    return builder_settings(ps.configure(builder or SparkSession.Builder()))


def test_defaults_are_for_who_has_said_nothing(conf_dir: Path) -> None:
    found = configured()
    assert found[ADAPTIVE] == "false"
    assert found[DAEMON] == "penstock.spark.daemon"
    assert found[THREADS] == "1"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_is_on_the_builder_stays(conf_dir: Path) -> None:
    mine = {ADAPTIVE: "true", MANAGER: "mine.Manager", DAEMON: "mine.daemon", BATCH: "7"}
    builder = SparkSession.Builder()
    for name, value in mine.items():
        builder = builder.config(name, value)
    found = configured(builder.config(THREADS, "4"))
    assert found.items() >= (mine | {THREADS: "4"}).items()
    later = ps.configure(SparkSession.Builder()).config(ADAPTIVE, "true")
    assert builder_settings(later)[ADAPTIVE] == "true"


@pytest.mark.parametrize("own", ["spark.network.timeout", "spark.executor.heartbeatInterval"])
def test_how_soon_executors_are_lost_is_set_as_a_whole(conf_dir: Path, own: str) -> None:
    """Spark refuses an interval that is longer than the time after which an executor is lost."""
    lost_after = "spark.storage.blockManagerHeartbeatTimeoutMs"
    assert configured()[lost_after] == "30s"
    assert lost_after not in configured(SparkSession.Builder().config(own, "90s"))


def test_what_is_in_spark_defaults_stays(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{ADAPTIVE}  true", "# " + BATCH + " 7", f"{DAEMON}=mine.daemon"]
    (conf_dir / "spark-defaults.conf").write_text("\n".join(lines))
    found = configured()
    assert ADAPTIVE not in found  # which leaves it to the file
    assert DAEMON not in found
    assert found[BATCH] == "25000"
    other = conf_dir / "other.conf"
    other.write_text(f"{BATCH}: 7")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {other} pyspark-shell")
    found = configured()
    assert BATCH not in found
    assert ADAPTIVE in found


def test_what_spark_submit_is_given_stays(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        f"--conf {ADAPTIVE}=true -c '{MANAGER}=mine.Manager' --master spark://m:7077 pyspark-shell"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    found = configured()
    assert ADAPTIVE not in found
    assert MANAGER not in found
    assert BATCH in found
    environ = {"PYSPARK_SUBMIT_ARGS": given, "SPARK_CONF_DIR": str(conf_dir)}
    assert submitted(environ)["spark.master"] == "spark://m:7077"


@pytest.mark.parametrize("told", ["conf", "environ"])
def test_the_interpreter_of_workers_stays(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    builder = SparkSession.Builder()
    if told == "environ":
        monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back after the test
        monkeypatch.delenv("PYSPARK_PYTHON")
        builder = builder.config("spark.pyspark.python", "./environment/bin/python")
    ps.configure(builder)
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_the_daemon_finds_penstock_among_the_files_of_a_job(conf_dir: Path) -> None:
    builder = SparkSession.Builder().config("spark.submit.pyFiles", "/x/a.zip,/x/penstock.zip")
    assert configured(builder)["spark.executorEnv.PYTHONPATH"] == "penstock.zip"
    mine = SparkSession.Builder().config("spark.submit.pyFiles", "/x/penstock.zip")
    mine = mine.config("spark.executorEnv.PYTHONPATH", "elsewhere")
    assert configured(mine)["spark.executorEnv.PYTHONPATH"] == "elsewhere"
    assert "spark.executorEnv.PYTHONPATH" not in configured()


SUBMITTED = """
import penstock as ps
spark = ps.session(conf={"spark.sql.shuffle.partitions": "3"})
names = ["spark.sql.adaptive.enabled", "spark.python.daemon.module", "spark.ui.enabled", "spark.master",
         "spark.sql.shuffle.partitions"]
print("found", *[spark.conf.get(name) for name in names])
spark.stop()
"""


@pytest.mark.slow
def test_a_job_of_spark_submit_keeps_what_it_was_given(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    submit = Path(sys.executable).with_name("spark-submit")
    given = {ADAPTIVE: "true", "spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "9"}
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    command = [str(submit), "--master", "local[2]", *words, "--conf", "spark.ui.port=0", str(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "found true penstock.spark.daemon true local[2] 3" in done.stdout
