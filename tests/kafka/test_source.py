"""The source, with a real broker: positions, several partitions, starting offsets, what is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import InputError, SettingError
from penstock.live.sources.kafka import KafkaSource
from penstock.live.sources.source import Polled
from penstock_bench.broker import Broker

pytestmark = pytest.mark.kafka
SCHEMA = "n long, word string"


def fill(kafka: Broker, topic: str, numbers: range) -> None:
    kafka.produce(
        topic,
        (
            {
                "value": json.dumps({"n": n, "word": f"w{n % 7}"}),
                "key": str(n),
                "partition": n % 3,
                "timestamp": 1_700_000_000_000 + n,
                "headers": [("h", str(n))] if n % 2 else None,
            }
            for n in numbers
        ),
    )


def read(
    source: KafkaSource, positions: Mapping[str, int], rows: int, most: int = 1000
) -> list[Polled]:
    reader = source.reader(positions)
    found: list[Polled] = []
    try:
        for _ in range(200):
            if sum(polled.batch.num_rows + len(polled.bad) for polled in found) >= rows:
                break
            found += reader.poll(100, most)
        return found
    finally:
        reader.close()


def numbers(polled: list[Polled]) -> list[int]:
    return sorted(n for one in polled for n in one.batch.column("n").to_pylist())


def test_all_rows_of_all_partitions_come_with_what_their_messages_have(
    kafka: Broker, topic: str
) -> None:
    fill(kafka, topic, range(3000))
    source = ps.kafka(
        kafka.servers,
        topic,
        schema=SCHEMA,
        metadata=["key", "headers", "topic", "partition", "offset"],
    )
    assert source.partitions() == [f"{topic}/{n}" for n in range(3)]

    found = read(source, source.first(source.partitions()), 3000)

    assert {polled.batch.schema for polled in found} == {source.schema}
    rows = sorted((row for one in found for row in one.batch.to_pylist()), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(3000))
    for row in rows[:50]:
        n = row["n"]
        assert row["word"] == f"w{n % 7}"
        assert (row["key"], row["topic"], row["partition"]) == (str(n).encode(), topic, n % 3)
        assert row["offset"] == n // 3
        assert row["arrival"].timestamp() == pytest.approx(1_700_000_000 + n / 1000)
        assert row["headers"] == ([{"key": "h", "value": str(n).encode()}] if n % 2 else None)


def test_a_new_reader_goes_on_where_another_was(kafka: Broker, topic: str) -> None:
    fill(kafka, topic, range(300))
    source = ps.kafka(kafka.servers, topic, schema=SCHEMA)
    positions: dict[str, Any] = source.first(source.partitions())
    first = read(source, positions, 100, most=50)
    for polled in first:
        positions[polled.partition] = polled.position
    rest = read(source, positions, 300 - len(numbers(first)))
    assert sorted(numbers(first) + numbers(rest)) == list(range(300))
    assert 100 <= len(numbers(first)) < 300


def test_a_reader_has_only_its_partitions(kafka: Broker, topic: str) -> None:
    fill(kafka, topic, range(300))
    source = ps.kafka(kafka.servers, topic, schema=SCHEMA)
    found = read(source, {f"{topic}/1": 10}, 90)
    assert numbers(found) == [n for n in range(300) if n % 3 == 1][10:]
    assert {polled.partition for polled in found} == {f"{topic}/1"}


def test_starting_offsets(kafka: Broker, topic: str) -> None:
    fill(kafka, topic, range(30))
    names = [f"{topic}/{n}" for n in range(3)]

    def first(starting: Any) -> list[int]:
        source = ps.kafka(kafka.servers, topic, schema=SCHEMA, starting=starting)
        return list(source.first(names).values())

    assert first("earliest") == [0, 0, 0]
    assert first("latest") == [10, 10, 10]
    assert first({topic: {1: 4, 2: -1}}) == [0, 4, 10]
    with pytest.raises(SettingError, match="unknown partitions"):
        first({topic: {7: 4}})


def test_a_missing_topic_is_told(kafka: Broker) -> None:
    with pytest.raises(SettingError, match="no topic 'nowhere'"):
        ps.kafka(kafka.servers, "nowhere", schema=SCHEMA).partitions()


def test_messages_that_are_gone_are_an_error(kafka: Broker, topic: str) -> None:
    fill(kafka, topic, range(30))
    source = ps.kafka(kafka.servers, topic, schema=SCHEMA)
    with pytest.raises(InputError, match=r"offset in .* is out of range"):
        read(source, {f"{topic}/0": 5_000}, 1)


def test_what_cannot_be_read_is_told_with_its_place(kafka: Broker, topic: str) -> None:
    kafka.produce(topic, [{"value": v, "partition": 0} for v in ('{"n": 1}', "oops", '{"n": 3}')])
    source = ps.kafka(kafka.servers, topic, schema=SCHEMA)
    (polled,) = read(source, {f"{topic}/0": 0}, 3)
    assert polled.batch.column("n").to_pylist() == [1, 3]
    assert [(bad.key, bad.row) for bad in polled.bad] == [(f"{topic}/0/1", "oops")]
    assert polled.position == 3


def test_uncommitted_messages_are_not_read(kafka: Broker, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(20)
    for n, end in ((1, producer.abort_transaction), (2, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"n": n}), partition=0)
        producer.flush()
        end(20)
    source = ps.kafka(kafka.servers, topic, schema=SCHEMA)
    assert numbers(read(source, {f"{topic}/0": 0}, 1)) == [2]


def test_arrow_messages_of_many_rows(kafka: Broker, topic: str) -> None:
    rows = pa.record_batch({"n": pa.array([1, 2, 3]), "word": pa.array(["a", "b", "c"])})
    values = ps.kafka("-", "-", schema=rows.schema, format="arrow").format.encode(rows)
    kafka.produce(topic, [{"value": value, "partition": 0, "key": "k"} for value in values * 2])
    source = ps.kafka(kafka.servers, topic, schema=rows.schema, format="arrow", metadata=["offset"])
    found = read(source, {f"{topic}/0": 0}, 6)
    rows_read = [row for one in found for row in one.batch.to_pylist()]
    assert [(row["n"], row["offset"]) for row in rows_read] == [
        (n, o) for o in (0, 1) for n in (1, 2, 3)
    ]
