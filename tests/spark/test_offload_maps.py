"""Functions on Spark for a flow that has no hosts: its couriers are helped."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from penstock_bench.workloads.shaped import shaped
from tests.spark.test_faults import await_condition
from tests.spark.test_offload import carried_since, services, told

PACE = Pace(400.0)
SLOW = (
    Fault("courier.work", PACE, where={"step": "map-2"}, hits=()),
    Fault("burst.work", PACE, hits=()),
)
SETTINGS = Settings(faults=SLOW, progress_kept=10_000)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("v")
    return batch.set_column(place, "v", pc.multiply(batch.column("v"), 2))


@pytest.mark.slow
def test_a_burst_of_a_flow_without_hosts_is_carried_by_functions(
    spark: SparkSession, checkpoint: str
) -> None:
    sink = ps.collect()
    source = ps.flow(shaped(spark, "burst(400, 5, 15s, 12s)"), arrival="arrival")
    made = source.select("v", "arrival").map_batches(doubled).select("v").sla("2s")
    flow = made.elastic(functions=ps.LocalFunctions(at_most=12))
    query = flow.start(sink, checkpoint=checkpoint, settings=SETTINGS)
    try:
        await_condition(lambda: carried_since(query, -1) > 500, 120)
        facts = query.control.facts()
        assert facts["functions"]["state"] == "up"
        await_condition(lambda: bool(told(query)) and told(query)[-1].facts["functions"] == 0, 90)
        await_condition(lambda: query.progress[-1].functions.rows == 0, 60)
        assert query.status.hosts == {}
        assert [one.courier for one in query.progress[-1].couriers] == ["map-3/0", "map-3/1"]
    finally:
        query.stop()
    assert query.exception() is None
    count = sum(p.rows for p in query.progress)
    values = 2 * (np.arange(count) % 1000)
    assert Counter(row["v"] for row in sink.rows()) == Counter(values.tolist())
    assert query.money.hosts > 0, "couriers are paid for where there are no hosts"
    assert query.money.functions > 0
    assert query.control.facts()["functions"]["state"] == "ended"
    assert services() == []
