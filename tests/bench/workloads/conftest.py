"""Fixtures for the tests of NEXMark: a session with the settings of its queries, and some events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.generator import generate
from penstock_bench.workloads.nexmark.run import SETTINGS


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The shared Spark session, with the settings of the queries."""
    before = {key: spark.conf.get(key, None) for key in SETTINGS}
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        if old is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, old)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of events over twenty seconds of event time, out of order, so that windows close meanwhile."""
    folder = tmp_path_factory.mktemp("events")
    generate(NexmarkConfig(events=10_000, seed=5, rate=500, disorder_ms=700), folder)
    return folder
