"""Functions of a user's own backend on Spark: couriers in other processes reach them."""

from __future__ import annotations

import importlib

import pyspark.cloudpickle
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.examples import FOLDER
from tests.spark.test_faults import await_condition
from tests.spark.test_offload import SETTINGS, carried_since, expected, flow, told


@pytest.mark.slow
def test_couriers_reach_a_backend_of_the_user_and_the_journal_says_what_was_measured(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    own = importlib.import_module("own_functions")
    # as a class of the user's main program: executors cannot import it
    pyspark.cloudpickle.register_pickle_by_value(own)
    sink = ps.collect()
    bursting = flow(spark, "burst(300, 5, 12s, 60s)")
    elastic = bursting.elastic(at_most=2, functions=own.SocketFunctions(at_most=8))
    query = elastic.start(sink, checkpoint=checkpoint, hosts=2, settings=SETTINGS)
    try:
        await_condition(lambda: carried_since(query, -1) > 500, 120)
        await_condition(lambda: any(e.facts["speed_by"] == "measured" for e in told(query)), 120)
    finally:
        query.stop()
        pyspark.cloudpickle.unregister_pickle_by_value(own)
    assert query.exception() is None
    found = {k: (r["s"], r["n"]) for k, r in sink.latest("k").items()}
    assert found == expected(sum(p.rows for p in query.progress))
    entry = next(e for e in told(query) if e.facts["speed_by"] == "measured")
    assert 0.2 < entry.facts["speed"] < 5
    assert entry.facts["cpu"] is not None
