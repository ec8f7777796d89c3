"""The sink with a real broker: keys, values and ids; a failed delivery is an error."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeliveryError, StoreError
from penstock.live.sinks.sink import RowIds
from penstock.live.sources.formats import FormatName
from penstock.spark.sinks import live_sink
from penstock_bench.broker import Broker
from tests.kafka.driving import wait

pytestmark = pytest.mark.kafka
ROWS = pa.record_batch({"user": pa.array(["a", "b", "a"]), "n": pa.array([1, 2, 3])})


def test_rows_arrive_in_their_order_with_key_and_id(kafka: Broker, topic: str) -> None:
    sink = live_sink(ps.to("kafka", servers=kafka.servers, topic=topic, key="user"))
    writer = sink.writer(2, ROWS.schema)
    writer.write(ROWS, RowIds(2, 7, 0, run=88, since=5))
    writer.write(ROWS, RowIds(2, 7, 3, run=88, since=5))
    writer.flush(7)
    messages = kafka.messages(topic)
    writer.close()
    of_a = [message for message in messages if message.key() == b"a"]
    assert [json.loads(m.value()) for m in of_a] == [{"user": "a", "n": n} for n in (1, 3, 1, 3)]
    assert [m.headers() for m in of_a] == [
        [("penstock-id", f"2-7-{n}".encode()), ("penstock-run", b"88-5")] for n in (0, 2, 3, 5)
    ]
    assert len(messages) == 6


def test_columns_key_and_value_as_in_sparks_writer(kafka: Broker, topic: str) -> None:
    rows = pa.record_batch({"key": pa.array([b"k", None]), "value": pa.array(["one", "two"])})
    options: dict[str, Any] = {"kafka.bootstrap.servers": kafka.servers, "topic": topic}
    writer = live_sink(ps.to("kafka", **options)).writer(0, rows.schema)
    writer.write(rows, RowIds(0, 1, 0))
    writer.flush(1)
    writer.close()
    messages = {(message.key(), message.value()) for message in kafka.messages(topic)}
    assert messages == {(b"k", b"one"), (None, b"two")}


def test_a_topic_that_is_not_there_is_an_error(kafka: Broker) -> None:
    options = {"message.timeout.ms": 2000}
    sink = live_sink(ps.to("kafka", servers=kafka.servers, topic="not-there", options=options))
    writer = sink.writer(0, ROWS.schema)
    writer.write(ROWS, RowIds(0, 1, 0))
    with pytest.raises(StoreError, match="did not accept 3 rows for topic 'not-there'"):
        writer.flush(1)
    writer.close()


def test_values_go_through_all_formats(kafka: Broker) -> None:
    avro = {"type": "record", "name": "r", "fields": [
        {"name": "user", "type": "string"}, {"name": "n", "type": "long"}]}  # fmt: skip
    cases: list[tuple[FormatName, Any, dict[str, Any]]] = [
        ("json", ROWS.schema, {}),
        ("arrow", ROWS.schema, {}),
        ("avro", avro, {"avro_schema": avro}),
    ]
    for format, schema, extra in cases:
        topic = kafka.create(f"round-{format}")
        sink = live_sink(
            ps.to("kafka", servers=kafka.servers, topic=topic, value_format=format, **extra)
        )
        writer = sink.writer(0, ROWS.schema)
        writer.write(ROWS, RowIds(0, 1, 0))
        writer.flush(1)
        writer.close()
        source = ps.kafka(kafka.servers, topic, schema=schema, format=format, arrival=None)
        reader, rows = source.reader({f"{topic}/0": 0}), 0
        results = []
        while rows < 3:
            results += reader.poll(1000, 100)
            rows = sum(polled.batch.num_rows for polled in results)
        reader.close()
        assert pa.Table.from_batches([p.batch for p in results]).to_pylist() == ROWS.to_pylist()


def test_transactions_go_on_after_the_broker_was_killed(kafka: Broker, topic: str) -> None:
    sink = live_sink(ps.to("kafka", servers=kafka.servers, topic=topic, key="user"))
    delivery = sink.delivery(0, ROWS.schema, "killed-broker")
    delivered: list[int] = []
    ended = threading.Event()

    def deliver() -> None:
        epoch = 0
        while not ended.is_set():
            try:
                delivery.deliver(ROWS, RowIds(0, epoch, 0, 1, 0))
            except DeliveryError:  # The same epoch again: it counts once.
                continue
            delivered.append(epoch)
            epoch += 1

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        wait(lambda: len(delivered) > 5)
        kafka.kill()
        time.sleep(2)
        kafka.start()
        first = len(delivered)
        wait(lambda: len(delivered) > first + 5)
    finally:
        ended.set()
        thread.join()
        delivery.close()
    ids = [dict(message.headers())["penstock-id"] for message in kafka.messages(topic)]
    assert sorted(ids) == sorted(f"0-{e}-{row}".encode() for e in delivered for row in range(3))
