"""The commands of the runbook run against a query, and print what the runbook says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.app import app
from tests.pages import ROOT

_RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
_COMMANDS = sorted(set(re.findall(r"^ {4}penstock (.*\bCK\b.*)$", _RUNBOOK, re.MULTILINE)))


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The checkpoint of a running query with an SLA, a controller and functions, as in the runbook."""
    folder = str(tmp_path_factory.mktemp("runbook") / "checkpoint")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 2_000).load()
    flow = (
        ps.flow(rows.selectExpr("timestamp", "value % 100 AS user"), arrival="timestamp")
        .key_by("user", slots=16)
        .aggregate(n=ps.count(), name="clicks")
        .sla(latency="2s", window="1s")
        .elastic(at_most=2, functions=ps.LocalFunctions())
    )
    query = flow.start(ps.to("noop"), checkpoint=folder, hosts=1)
    try:
        while not any(epoch.rows for epoch in query.progress[1:]):
            query.await_termination(timeout=0.1)
        yield folder
    finally:
        query.stop()


def _run(command: str, checkpoint: str) -> str:
    ran = CliRunner().invoke(app, shlex.split(command.replace("CK", checkpoint)))
    assert ran.exit_code == 0, f"penstock {command}: {ran.output}"
    return ran.output


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_command_of_the_runbook_runs(command: str, checkpoint: str) -> None:
    shown = _run(command, checkpoint)
    assert shown.strip() or command == "state letters CK", (
        "only a query without dead letters has none"
    )


def test_the_status_has_the_lines_that_the_runbook_reads(checkpoint: str) -> None:
    sample = _RUNBOOK.split("\n    penstock ctl status CK\n", 1)[1].split("The block **where", 1)[0]
    labels = re.findall(r"^    ([a-zA-Z][a-z ]*?)  ", sample, re.MULTILINE)
    shown = _run("ctl status CK", checkpoint)
    assert len(labels) >= 8
    assert [label for label in labels if label not in shown] == ["pages"], "the sample's step"
    assert "where the time goes" in shown


def test_the_runbook_has_its_commands() -> None:
    assert {command.split(" CK")[0] for command in _COMMANDS} == {
        *("ctl status", "ctl journal", "state ls", "state letters", "state show"),
        "doctor --checkpoint",
    }
