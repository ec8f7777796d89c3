"""A live flow from Kafka to Kafka on the tests' own Spark session, where a broker is at hand; `tests/kafka`
has the long story."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.spark.query import FlowQuery
from penstock_bench.broker import Broker, has_broker, running_broker
from tests.kafka.flow_process import FIRST, SECOND, start
from tests.kafka.orders import Orders, Output, counting, newest
from tests.spark.test_live import until

pytestmark = pytest.mark.skipif(
    not has_broker(), reason="no broker here: make test-kafka fetches one"
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as broker:
        yield broker


def goes_on(query: FlowQuery) -> None:
    epoch = query.progress[-1].epoch
    until(query, lambda: query.progress[-1].epoch >= epoch + 3 and not query.status.pending_slots)


def test_orders_are_summed_through_moves_and_kills(
    spark: SparkSession, broker: Broker, checkpoint: str
) -> None:
    source, target = broker.create("orders", 3), broker.create("totals")
    orders, output = Orders(broker.servers, source), Output(broker.servers, target)
    query = start(broker.servers, source, target, checkpoint, "at_once")
    try:
        until(query, lambda: query.progress)
        orders.start()
        goes_on(query)
        query.move(FIRST, range(8), f"{FIRST}/1")
        goes_on(query)
        for pid in (query.status.hosts[f"{SECOND}/0"], query.status.couriers["courier/1"]):
            os.kill(pid, signal.SIGKILL)
            goes_on(query)
        orders.end()
        wanted = orders.totals()
        until(query, lambda: newest(output.rows) == wanted)
        latencies = [epoch.latency.p50_ms for epoch in query.progress if epoch.latency]
        assert min(latencies) < 500
        query.stop()
    finally:
        query.stop()
        output.end()
    assert query.status.state == "stopped"
    told = counting(output.rows)
    assert newest(told) == wanted
    assert max(Counter((row.user, row.values[0]) for row in told).values()) == 1
    assert len({row.run for row in output.rows}) >= 2
