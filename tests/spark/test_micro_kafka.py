"""Kafka in micro-batches, by Spark's connector, where a broker and the connector are at hand: a small part of
`tests/kafka`. And sinks that take an epoch once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError, StoreError
from penstock.faults import Fault, InjectedFault
from penstock.live.sinks.kafka import KafkaSink
from penstock.live.sinks.sink import RowIds
from penstock.spark.connector import has_connector
from penstock.spark.delivery import TransactionalTopic, transactional
from penstock.spark.query import FlowQuery
from penstock_bench.broker import Broker, has_broker, running_broker

USERS = 20
SECRET = "nobody-may-read-this"
pytestmark = pytest.mark.timeout(900)  # a busy machine is no failure


@pytest.fixture
def broker() -> Iterator[Broker]:
    if not has_broker() or not has_connector():
        pytest.skip("no broker, or no connector: make test-kafka fetches them")
    with running_broker() as broker:
        yield broker


def fill(
    broker: Broker, topic: str, numbers: range, age_s: float = 60.0, partitions: int = 3
) -> None:
    sent_ms = int((time.time() - age_s) * 1000)
    broker.produce(
        topic,
        (
            {
                "value": json.dumps({"user": f"u{n % USERS}", "amount": n}),
                "key": f"u{n % USERS}",
                "partition": n % partitions,
                "timestamp": sent_ms,
            }
            for n in numbers
        ),
    )


def run(
    broker: Broker, topic: str, out: str, checkpoint: str, *faults: Fault, **options: Any
) -> FlowQuery:
    orders = ps.kafka(
        broker.servers,
        topic,
        schema="user string, amount long",
        spark_options={"kafka.ssl.key.password": SECRET},
        **options,
    )
    flow = ps.flow(orders).key_by("user", slots=8)
    query = (
        flow.aggregate(n=ps.count(), total=ps.sum("amount"))
        .sla(latency="1s")
        .start(
            ps.to("kafka", servers=broker.servers, topic=out, key="user"),
            checkpoint=checkpoint,
            delivery="transactional",
            trigger="available_now",
            settings=ps.Settings(faults=faults),
        )
    )
    assert query.await_termination(240), query.status
    return query


def test_a_topic_gets_each_epoch_once(
    spark: SparkSession, broker: Broker, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, out = broker.create("orders", 3), broker.create("totals")
    fill(broker, topic, range(600))
    fault = Fault("driver.written", where={"epoch": 1})  # its transaction is committed
    with pytest.raises(InjectedFault):
        run(broker, topic, out, checkpoint, fault, epoch_rows=300)
    query = run(broker, topic, out, checkpoint, epoch_rows=300)
    assert [(p.epoch, p.rows, p.runs) for p in query.progress] == [(1, 300, 1)]
    latency = query.progress[0].latency
    assert latency is not None
    assert 60_000 < latency.p50_ms < 600_000, "it is that of the broker's timestamps"
    assert_once(broker, out, 600)
    written = [path for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert SECRET not in caplog.text


@pytest.mark.kafka
def test_a_host_dies_and_partitions_are_added(
    spark: SparkSession, broker: Broker, checkpoint: str
) -> None:
    topic, out = broker.create("orders", 3), broker.create("totals")
    fill(broker, topic, range(600))
    fault = Fault("host.sealed", "kill", {"epoch": 1, "run": 0})
    query = run(broker, topic, out, checkpoint, fault, epoch_rows=300)
    assert [(p.epoch, p.rows, p.runs) for p in query.progress] == [(0, 300, 1), (1, 300, 2)]
    broker.grow(topic, 4)
    fill(broker, topic, range(600, 660), partitions=4)
    query = run(broker, topic, out, checkpoint)  # the bound is that of the SLA: one epoch
    assert sum(p.rows for p in query.progress) == 60
    assert_once(broker, out, 660)


def assert_once(broker: Broker, out: str, rows: int) -> None:
    """The topic has each row of each epoch once, and the totals of this many rows."""
    messages = broker.messages(out)
    ids = [dict(message.headers())["penstock-id"] for message in messages]
    assert len(set(ids)) == len(ids)
    by_epoch = Counter(
        (message.key(), id.split(b"-")[1]) for message, id in zip(messages, ids, strict=True)
    )
    assert set(by_epoch.values()) == {1}
    totals = {row["user"]: (row["n"], row["total"]) for row in map(_value, messages)}
    assert totals == {
        f"u{user}": (rows // USERS, sum(n for n in range(rows) if n % USERS == user))
        for user in range(USERS)
    }


def _value(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.value())
    return found


def test_which_sinks_take_an_epoch_once() -> None:
    topic = ps.to("kafka", servers="localhost:1", topic="out", spark_options={"p": SECRET})
    assert isinstance(transactional(topic), TransactionalTopic)
    assert SECRET not in repr(topic)
    for sink in (ps.to("parquet", path="out"), ps.to("delta", path="out"), ps.collect()):
        assert transactional(sink) is sink
    for other in (ps.to("console"), ps.to("parquet", path="out", mode="append")):
        with pytest.raises(SettingError, match="exactly once"):
            transactional(other)


def test_a_transaction_that_failed_is_looked_at_anew(spark: SparkSession) -> None:
    """Whether it was committed, only the broker knows."""
    opened: list[Any] = []

    class Deliveries(KafkaSink):
        def delivery(self, courier: int, schema: Any, flow_id: str) -> Any:
            opened.append(Failing(len(opened) == 0))
            return opened[-1]

    class Failing:
        def __init__(self, fails: bool) -> None:
            self.fails, self.got, self.closed = fails, list[RowIds](), False

        def deliver(self, rows: Any, ids: RowIds) -> None:
            if self.fails:
                raise StoreError("the broker did not answer")
            self.got.append(ids)

        def close(self) -> None:
            self.closed = True

    sink, df = TransactionalTopic(Deliveries("localhost:1", "out")), spark.range(3)
    with pytest.raises(StoreError):
        sink.write(df, 7, "flow")
    sink.write(df, 7, "flow")
    assert [one.closed for one in opened] == [True, False]
    (ids,) = opened[1].got
    assert (ids.courier, ids.epoch, ids.since) == (0, 7, 7)
    nothing: DataFrame = spark.range(0)
    sink.write(nothing, 8, "flow")
    sink.close()
    assert opened[1].closed
    assert len(opened[1].got) == 1
