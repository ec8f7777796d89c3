"""The image file refers only to files that exist, and its entrypoint starts what Spark asks for."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """Pairs (name, arguments) of each instruction, with continued lines joined."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    joined = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined]


def test_everything_that_is_copied_is_there() -> None:
    copies = [arguments.split() for name, arguments in instructions() if name == "COPY"]
    assert copies
    for *sources, _ in copies:
        for source in sources:
            assert (ROOT / source).exists(), source


def test_it_installs_what_is_locked_and_runs_as_somebody_without_rights() -> None:
    steps = instructions()
    runs = " ".join(arguments for name, arguments in steps if name == "RUN")
    assert "--require-hashes -r requirements.lock" in " ".join(runs.split())
    assert [arguments for name, arguments in steps if name == "USER"] == ["185"]
    assert steps[-1][0] == "ENTRYPOINT"


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (
            ["driver", "--class", "X", "job.py"],
            "spark-submit --conf spark.driver.bindAddress=10.0.0.9 --deploy-mode client --class X job.py",
        ),
        (
            ["executor"],
            "java -Da=b -Dc=d e -Xms1g -Xmx1g -cp HOME/jars/* "
            "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url spark://d "
            "--executor-id 3 --cores 4 --app-id app --hostname 10.0.0.8 --resourceProfileId 0 --podName p",
        ),
        (["java", "-version"], "java -version"),
    ],
)
def test_what_the_entrypoint_starts(tmp_path: Path, words: list[str], started: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        program.chmod(0o755)
    variables = """
        SPARK_DRIVER_BIND_ADDRESS=10.0.0.9 SPARK_EXECUTOR_MEMORY=1g SPARK_DRIVER_URL=spark://d
        SPARK_EXECUTOR_ID=3 SPARK_EXECUTOR_CORES=4 SPARK_APPLICATION_ID=app SPARK_EXECUTOR_POD_IP=10.0.0.8
        SPARK_RESOURCE_PROFILE_ID=0 SPARK_EXECUTOR_POD_NAME=p
        SPARK_JAVA_OPT_0=-Da=b 'SPARK_JAVA_OPT_1=-Dc=d e'
    """
    env = dict(variable.split("=", 1) for variable in shlex.split(variables))
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        [str(DEPLOY / "entrypoint.sh"), *words],
        env=env | {"SPARK_HOME": str(tmp_path), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip().replace(str(tmp_path), "HOME") == started
