"""One Spark session for all tests, and a check that nothing is left behind by any of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.testing.left_behind import MARK, left_behind, present


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary folder of this run's own, also for its child processes."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv(MARK, str(os.getpid()))
        patch.setattr(tempfile, "tempdir", folder)
        yield


def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = present()
    yield
    left = left_behind(before)
    if left and os.environ.get("LEFTLOG"):
        with open(os.environ["LEFTLOG"], "a") as f:
            f.write("\n  ".join([request.node.nodeid, *left])+"\n")
        return
    assert not left, "\n  ".join([f"{request.node.nodeid} left behind:", *left])


nothing_left_by_module = pytest.fixture(scope="module", autouse=True)(_nothing_left)
nothing_left_by_test = pytest.fixture(autouse=True)(_nothing_left)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = ps.session("penstock-tests", cores=16)
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
