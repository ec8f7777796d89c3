"""Trials on Spark: faults of the settings reach the driver, hosts and couriers, and nobody else."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.settings import Settings
from penstock.testing import Delay, Fault, Pace, Uncombined
from penstock_bench.workloads.shaped import shaped
from tests.spark.test_faults import await_condition

STEP, RATE, KEYS = "aggregate-1", 500.0, 160
SETTINGS = Settings(
    faults=(
        Fault("driver.host", Delay(600_000), where={"host": f"{STEP}/1"}),
        Fault("host.work", Pace(RATE), where={"host": f"{STEP}/0"}, hits=()),
        Fault("courier.sender", Uncombined(), where={"step": STEP}, hits=()),
    )
)


@pytest.mark.parametrize("number", [1, 2])
def test_hosts_are_slow_and_late_and_get_all_rows(
    spark: SparkSession, checkpoint: str, number: int
) -> None:
    """The second host does not come, the third does, and the query can end.

    So it is with the next query, too: each begins to count anew.
    """
    source = shaped(spark, "steady(300)", keys=KEYS, slots=8)
    flow = ps.flow(source, arrival="arrival").key_by("k", slots=8).aggregate(n=ps.count())
    query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=1, settings=SETTINGS)
    try:
        await_condition(lambda: sum(p.rows for p in query.progress) > 2 * KEYS, 120)
        query.scale(STEP, 3)
        await_condition(lambda: f"{STEP}/2" in query.status.hosts, 60)
        assert f"{STEP}/1" not in query.status.hosts
    finally:
        query.stop()
    assert query.exception() is None
    for epoch in query.progress:
        applied = sum(host.rows for host in epoch.hosts) + epoch.migration.helped_rows
        assert applied == epoch.rows, "none are combined"
    first = [host for epoch in query.progress for host in epoch.hosts if host.host == f"{STEP}/0"]
    paced_ms = 1000 * sum(host.rows for host in first) / RATE
    # On a busy machine the work takes longer than the processor time that is useful.
    assert sum(host.useful_ms for host in first) >= 0.5 * paced_ms
