"""Kafka with a standalone cluster: executors get the connector with the job, and one is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.console.cluster.cluster import Shape, running_cluster
from penstock_bench.broker import Broker
from tests.cluster.flows import executor_of
from tests.kafka.driving import wait
from tests.kafka.orders import Orders
from tests.kafka.test_micro import STEP, MicroProcess, goes_on, newest, rows_of, state, totals

pytestmark = [pytest.mark.kafka, pytest.mark.cluster, pytest.mark.timeout(900)]


def test_an_executor_is_killed_between_two_topics(kafka: Broker, tmp_path: Path) -> None:
    topic, out = kafka.create("on-cluster", 3), kafka.create("on-cluster-out")
    orders, checkpoint = Orders(kafka.servers, topic), str(tmp_path / "checkpoint")
    with running_cluster(Shape(workers=2, cores=6, memory="1g")) as cluster:
        arguments = (kafka.servers, topic, out, checkpoint, "transactional", "2s", cluster.master)
        flow = MicroProcess(*arguments, log=tmp_path / "log")
        try:
            flow.until("query.is_active")
            orders.start()
            goes_on(flow)
            executor = executor_of(flow.pid(f"{STEP}/0"))
            assert executor in cluster.executors()
            executor.kill()
            goes_on(flow)
            orders.end()
            wanted = totals(orders)
            wait(lambda: newest(rows_of(kafka.messages(out))) == wanted)
            flow.stop()
        finally:
            flow.end()
            orders.end() if orders.is_alive() else None
    rows = rows_of(kafka.messages(out))
    assert len({(user, epoch) for user, _, epoch, _ in rows}) == len(rows), "each row once"
    assert state(checkpoint) == wanted
