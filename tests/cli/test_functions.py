"""`penstock functions package`, as a user calls it."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli.functions import functions
from penstock.errors import FlowError
from penstock.offload.backends.aws.handler import PLAN
from penstock.plan.steps import FlowPlan

FLOW = """
import pyarrow as pa
from penstock.plan.steps import FlowPlan, MapStep, SourcePlan

SCHEMA = pa.schema([("n", pa.int64())])

def half(batch):
    return batch.slice(0, batch.num_rows // 2)

def flow():
    return FlowPlan((SourcePlan(SCHEMA),), (MapStep("map-1", half, SCHEMA, SCHEMA),))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "packed_flow.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_archive_is_written(folder: Path) -> None:
    done = CliRunner().invoke(functions, ["package", "packed_flow:flow", "--to", "out.zip"])
    assert done.exit_code == 0, done.output
    assert "out.zip" in done.output
    assert "pyarrow==" in done.output
    with zipfile.ZipFile(folder / "out.zip") as archive:
        names = set(archive.namelist())
        plan = pickle.loads(archive.read(PLAN))
        assert "numba==" in archive.read("requirements.txt").decode()
    assert {"penstock_handler.py", "Dockerfile", "penstock/offload/backends/worker.py"} <= names
    assert not [name for name in names if name.endswith(".pyc")]
    assert isinstance(plan, FlowPlan)
    [step] = plan.steps
    rows = step.function(pa.record_batch({"n": [1, 2, 3, 4]}))  # type: ignore[union-attr]
    assert rows.num_rows == 2


def test_a_flow_that_is_not_there(folder: Path) -> None:
    done = CliRunner().invoke(functions, ["package", "packed_flow:nothing"])
    assert isinstance(done.exception, FlowError)
    assert not (folder / "functions.zip").exists()
