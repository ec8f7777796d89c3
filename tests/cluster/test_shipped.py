"""Executors without Penstock get it with the job: in an archive, or in a zip file in addition to their own
libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.console.cluster import cluster as clusters
from tests.cluster.conftest import SHAPE
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess

pytestmark = pytest.mark.cluster

LIBRARIES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def bare_cluster() -> Iterator[clusters.Cluster]:
    """A cluster whose executors have only the packages of their interpreter."""
    environment = clusters.environment

    def bare(*args: object) -> dict[str, str]:
        return environment(*args) | {"PYTHONPATH": ""}  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "environment", bare)
        with clusters.running_cluster(SHAPE) as started:
            yield started


@pytest.fixture
def flow(bare_cluster: clusters.Cluster, tmp_path: Path) -> Iterator[FlowProcess]:
    process = FlowProcess(bare_cluster.master, tmp_path)
    yield process
    process.end()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that contains only Penstock."""
    folder = tmp_path / "package"
    source, ignore = Path(penstock.__file__).parent, shutil.ignore_patterns("*.pyc")
    shutil.copytree(source, folder / "penstock", ignore=ignore)
    return folder


def has_penstock(python: Path) -> bool:
    done = subprocess.run(
        [python, "-c", "import pyarrow, numba, penstock"],
        env={}, cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or "'penstock'" in done.stderr, done.stderr
    return done.returncode == 0


def runs(flow: FlowProcess, start: Start) -> None:
    flow.start(start)
    flow.goes_on(epochs=2)
    flow.stop()
    flow.check()


def test_an_environment_travels_as_an_archive(
    flow: FlowProcess, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(LIBRARIES)
    assert not has_penstock(environment / "bin/python")
    shutil.copytree(package, site, dirs_exist_ok=True)
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(environment, ".")
    shutil.rmtree(environment)
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    runs(flow, Start(conf={"spark.archives": f"{archive}#environment"}))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter with all libraries except Penstock."""
    made, interpreter = tmp_path / "python", Path(sys.executable).resolve()
    # Not the environment's own interpreter, whose .pth file refers to Penstock.
    made.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{LIBRARIES}" exec {interpreter} "$@"\n')
    made.chmod(0o755)
    if has_penstock(made):
        pytest.skip("Penstock is among the libraries")
    return made


def test_penstock_alone_travels_as_a_zip_file(
    flow: FlowProcess, package: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = shutil.make_archive(str(package.parent / "penstock"), "zip", package)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    runs(flow, Start(conf={"spark.submit.pyFiles": zipped}))


def test_executors_without_penstock_say_so(
    flow: FlowProcess, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    flow.start(Start())
    assert "has no module penstock" in flow.ask("query.await_termination(240)")
