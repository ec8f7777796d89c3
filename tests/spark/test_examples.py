"""An example from its start to its end, on Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from tests.examples import FOLDER, example


@pytest.mark.slow
def test_clickstream(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    example("clickstream").main(seconds=20)
    shown = capsys.readouterr().out
    assert "latency of the last epoch: Latency(" in shown
    assert int(shown.splitlines()[-1].split()[0]) > 0, shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["join", "ported_processor", "bursts"])
def test_others(name: str) -> None:
    """In a process of its own, as users run it: what is pickled there goes along by value."""
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = {"join": "site", "ported_processor": "silent_since", "bursts": "in functions"}
    assert wanted[name] in done.stdout
