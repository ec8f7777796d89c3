"""Every check of the doctor, also on machines that fail it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.console import doctor
from penstock.console.doctor import GIB, Finding

HERE = sys.version_info[:2]
SPARK = Path("site-packages", "pyspark")


def program(folder: Path, name: str, says: str) -> str:
    """Create a program that prints a line on stderr; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    file.chmod(0o755)
    return str(folder)


def failing(error: Exception) -> Callable[[], Any]:
    """A probe that fails."""

    def probe() -> Any:
        raise error

    return probe


@pytest.mark.parametrize(
    ("version", "ok"),
    [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True), ("25-ea", True)],
)
def test_java_on_the_path(tmp_path: Path, version: str, ok: bool) -> None:
    path = program(tmp_path, "java", f'openjdk version "{version}" 2025-04-15')
    finding = doctor.java({"PATH": path})
    assert finding.ok is ok
    assert bool(finding.hint) is not ok


def test_no_java() -> None:
    finding = doctor.java({"PATH": "/nowhere"})
    assert not finding.ok
    assert "install Java 17" in finding.hint


def test_java_that_does_not_run(tmp_path: Path) -> None:
    path = program(tmp_path, "java", "Unable to locate a Java Runtime.")
    finding = doctor.java({"PATH": path})
    assert not finding.ok
    assert "Unable to locate" in finding.detail


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    program(tmp_path / "home" / "bin", "java", 'openjdk version "11.0.2"')
    path = program(tmp_path / "bin", "java", 'openjdk version "17.0.2"')
    assert not doctor.java({"PATH": path, "JAVA_HOME": str(tmp_path / "home")}).ok
    assert doctor.java({"PATH": path, "JAVA_HOME": ""}).ok


def test_java_home_without_java(tmp_path: Path) -> None:
    finding = doctor.java({"JAVA_HOME": str(tmp_path)})
    assert not finding.ok
    assert "JAVA_HOME" in finding.hint


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_python_not_supported(version: tuple[int, int]) -> None:
    assert not doctor.python(version, Path(sys.prefix), {}).ok


def test_python_of_the_workers_is_this_one() -> None:
    finding = doctor.python(HERE, Path(sys.prefix), {"PYSPARK_PYTHON": sys.executable})
    assert finding.status == "ok"


def test_python_of_the_workers_is_of_another_version(tmp_path: Path) -> None:
    program(tmp_path, "other", "3.9 /usr")
    environ = {"PYSPARK_PYTHON": str(tmp_path / "other")}
    finding = doctor.python(HERE, Path(sys.prefix), environ)
    assert not finding.ok
    assert "3.9" in finding.detail
    assert "PYSPARK_PYTHON" in finding.hint


def test_python_of_the_workers_does_not_exist() -> None:
    assert not doctor.python(HERE, Path(sys.prefix), {"PYSPARK_PYTHON": "/nowhere/python"}).ok


def test_python_of_the_workers_is_of_another_environment(tmp_path: Path) -> None:
    finding = doctor.python(HERE, tmp_path, {"PYSPARK_PYTHON": sys.executable})
    assert finding.status == "warn"


def test_python_of_the_workers_is_left_to_penstock() -> None:
    assert doctor.python(HERE, Path(sys.prefix), {"PATH": "/nowhere"}).status == "ok"


def test_spark() -> None:
    assert doctor.spark(lambda: ("4.3.1", SPARK), {}).status == "ok"
    assert doctor.spark(lambda: ("4.3.1", SPARK), {"SPARK_HOME": str(SPARK)}).status == "ok"
    assert doctor.spark(lambda: ("4.3.1", SPARK), {"SPARK_HOME": "/opt/spark"}).status == "warn"
    assert doctor.spark(lambda: ("3.5.0", SPARK), {}).status == "fail"
    assert doctor.spark(lambda: ("4.30.0", SPARK), {}).status == "fail"


def test_no_spark() -> None:
    finding = doctor.spark(failing(ImportError("No module named 'pyspark'")), {})
    assert not finding.ok
    assert "pip install" in finding.hint


def test_pandas() -> None:
    assert doctor.pandas(lambda: ("2.3.3", SPARK)).ok
    assert not doctor.pandas(lambda: ("3.0.0", SPARK)).ok
    assert not doctor.pandas(lambda: ("20.0.0", SPARK)).ok
    assert not doctor.pandas(failing(ImportError("no pandas"))).ok


@pytest.mark.parametrize(
    ("cores", "memory", "status"),
    [(2, 8 * GIB, "ok"), (1, 8 * GIB, "warn"), (1.5, 8 * GIB, "warn"), (4, 3 * GIB, "warn")],
)
def test_machine(cores: float, memory: int, status: str) -> None:
    assert doctor.machine(cores, memory).status == status


def limits(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_limits_of_a_container(tmp_path: Path) -> None:
    files = {"cpu.max": "50000 100000\n", "memory.max": "1048576\n"}
    assert doctor.capacity(limits(tmp_path, files)) == (0.5, 1048576)


def test_limits_of_an_older_container(tmp_path: Path) -> None:
    files = {
        "cpu/cpu.cfs_quota_us": "50000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": "1048576\n",
    }
    assert doctor.capacity(limits(tmp_path, files)) == (0.5, 1048576)


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "max 100000\n", "memory.max": "max\n"},
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
)
def test_a_container_without_limits(tmp_path: Path, files: dict[str, str]) -> None:
    bare = doctor.capacity(tmp_path / "nowhere")
    assert doctor.capacity(limits(tmp_path, files)) == bare
    assert bare[0] >= 1
    assert bare[1] > 0


# 192.0.2.1 is reserved for documentation, so no machine has it.
def test_port() -> None:
    assert doctor.port("127.0.0.1").ok
    assert not doctor.port("192.0.2.1").ok


def test_flight() -> None:
    assert doctor.flight("127.0.0.1").ok
    finding = doctor.flight("192.0.2.1")
    assert not finding.ok
    assert "192.0.2.1" in finding.hint


def test_kernels() -> None:
    assert doctor.kernels(lambda: "/cache").status == "ok"
    no_cache = RuntimeError("cannot cache function: no locator available")
    finding = doctor.kernels(failing(no_cache))
    assert not finding.ok
    assert "NUMBA_CACHE_DIR" in finding.hint


def test_folder_is_left_as_it_was(tmp_path: Path) -> None:
    assert doctor.folder("temp folder", str(tmp_path)).ok
    assert doctor.folder("checkpoint", f"file://{tmp_path}/new/deeper").ok
    assert not list(tmp_path.iterdir())


def test_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.folder("checkpoint", "new").ok


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "nosuch://bucket/x"):
        finding = doctor.folder("checkpoint", place)
        assert not finding.ok, place
        assert place in finding.detail
        assert finding.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert not doctor.folder("checkpoint", str(tmp_path)).ok


def test_folder_that_is_nearly_full(tmp_path: Path) -> None:
    assert doctor.folder("temp folder", str(tmp_path), least_free=2**62).status == "warn"


def test_kafka_is_reported_but_not_required() -> None:
    def missing() -> tuple[str, Path]:
        raise ModuleNotFoundError("confluent_kafka")

    here = doctor.kafka(lambda: ("2.8.0", Path()), lambda: True)
    assert (here.status, here.detail) == ("ok", "confluent-kafka 2.8.0; Spark's connector")
    absent = doctor.kafka(missing, lambda: False)
    assert absent.status == "ok"
    assert "penstock[kafka]" in absent.detail
    assert "ps.session(kafka=True)" in absent.detail


def test_examine_here(tmp_path: Path) -> None:
    findings = doctor.examine(str(tmp_path))
    assert [f.name for f in findings if not f.ok] == []
    assert findings[-1].name == "checkpoint"
    assert "checkpoint" not in [f.name for f in doctor.examine()]


def test_report_takes_any_text() -> None:
    findings = [Finding("Java", False, "[/red] is no markup", "[install] it")]
    table = doctor.report(findings)
    assert table.row_count == 1


@pytest.mark.parametrize(
    ("waiting", "free", "says"),
    [(1.0, 3 * GIB, ""), (9.0, 3 * GIB, "more cores"), (1.0, GIB // 4, "memory is short")],
)
def test_a_busy_machine(waiting: float, free: int, says: str) -> None:
    finding = doctor.load(2, waiting, free, 4 * GIB)
    assert finding.ok
    assert says in finding.hint
    assert bool(finding.hint) is bool(says)
    assert f"{waiting / 2:.1f} for each" in finding.detail
