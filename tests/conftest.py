"""One Spark session for all tests, and a check that nothing is left behind by any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = ps.session("penstock-tests", cores=16)
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
