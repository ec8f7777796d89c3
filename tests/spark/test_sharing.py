"""On Spark, hosts that were added in the middle of an epoch take part in its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from tests.spark.test_faults import await_condition

STEP, RATE, ROWS, KEYS = "process-1", 400.0, 8_000, 2_000
SETTINGS = Settings(faults=(Fault("host.work", Pace(RATE), hits=()),))


class Count(ps.KeyedProcessor):
    """Counts the rows and the calls of each key."""

    output_schema = "k long, n long, calls long"

    def init(self, handle: Any) -> None:
        self._seen = handle.get_value_state("seen", "n long, calls long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        n, calls = self._seen.get() or (0, 0)
        n, calls = n + sum(1 for _ in rows), calls + 1
        self._seen.update((n, calls))
        yield (key[0], n, calls)


def test_hosts_that_come_in_the_middle_of_an_epoch_share_its_rows(
    spark: SparkSession, checkpoint: str
) -> None:
    """The user's code runs on new hosts, on state of the old one, and each key is called once per task."""
    rows = spark.range(ROWS, numPartitions=1).selectExpr(f"id % {KEYS} as k")
    flow = ps.flow(rows).key_by("k", slots=32).process(Count())
    sink = ps.collect()
    query = flow.start(sink, checkpoint=checkpoint, hosts=1, settings=SETTINGS)
    await_condition(lambda: bool(query.status.hosts), 60)
    query.scale(STEP, 3)
    query.await_termination(120)
    assert query.exception() is None
    progress = query.progress
    assert sum(epoch.migration.helped_rows for epoch in progress) > 0
    output = sink.rows()
    assert len(output) == KEYS
    assert {(row["n"], row["calls"]) for row in output} == {(ROWS // KEYS, 1)}
