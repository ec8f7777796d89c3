"""A short soak: every look at the query finds all its processes and files."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock_bench.soak.bench import GOALS, report, soak
from penstock_bench.soak.samples import ROLES


@pytest.mark.slow
def test_everything_is_looked_at(spark: SparkSession) -> None:
    samples = soak(spark, 8.0, print)
    assert len(samples) >= 4
    last = samples[-1]
    assert all(last.roles[role].memory_mb > 20 for role in ROLES)
    assert all(last.roles[role].threads >= 1 for role in ROLES)
    assert last.hosts >= 4
    assert last.checkpoint.number > 10
    assert last.sink_entries >= samples[0].sink_entries > 0
    assert last.heap_mb > 5
    assert report(samples, 8.0).ratios.keys() == GOALS.keys()
