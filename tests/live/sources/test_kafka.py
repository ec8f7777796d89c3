"""The Kafka source, as far as it can be tested without a broker."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import FlowError, SettingError
from penstock.live.sources.kafka import METADATA, KafkaSource


def test_columns_are_the_fields_of_values_and_the_chosen_metadata() -> None:
    source = ps.kafka(
        "b:1", "t", schema="a long", arrival="sent", metadata={"key": "k", "offset": "o"}
    )
    assert source.schema == pa.schema(
        [("a", pa.int64()), ("sent", METADATA["timestamp"]), ("k", pa.binary()), ("o", pa.int64())]
    )
    assert source.arrival == "sent"
    assert ps.kafka("b:1", "t", schema="a long", arrival=None).arrival is None
    assert pickle.loads(pickle.dumps(source)) == source


def test_columns_of_one_name_are_refused() -> None:
    for schema, args in (("arrival long", {}), ("key long", {"metadata": ["key"]})):
        with pytest.raises(FlowError, match="two columns have the name"):
            ps.kafka("b:1", "t", schema=schema, **args)  # type: ignore[arg-type]


def test_invalid_sources_are_refused() -> None:
    with pytest.raises(FlowError, match="unknown metadata: colour"):
        ps.kafka("b:1", "t", schema="a long", metadata=["colour"])
    with pytest.raises(SettingError, match="unknown value of starting: 'now'"):
        ps.kafka("b:1", "t", schema="a long", starting="now")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="servers and a topic"):
        ps.kafka("b:1", [], schema="a long")


def test_rows_of_spark_are_decoded_as_in_a_courier() -> None:
    source = ps.kafka("b:1", "t", schema="a long", metadata=["key"])
    read = pa.RecordBatch.from_pylist(
        [
            {
                "value": value,
                "topic": "t",
                "partition": 3,
                "offset": n,
                "timestamp": n,
                "key": b"k%d" % n,
            }
            for n, value in enumerate([b'{"a": 1}', b"oops", None])
        ],
        schema=source.decoder.schema,
    )
    rows, bad = source.decoder.decode(read)
    assert rows.schema == source.schema
    assert [(row["a"], row["key"]) for row in rows.to_pylist()] == [(1, b"k0"), (None, b"k2")]
    assert [(letter.key, letter.row) for letter in bad] == [("t/3/1", "oops")]


def test_a_flow_measures_latency_from_the_messages_timestamp() -> None:
    source = ps.kafka("b:1", "t", schema="a long")
    flow = ps.flow(source)
    assert flow.plan.sources[0].arrival == "arrival"
    assert flow.graph.sources[0].live is source
    assert (
        ps.flow(ps.kafka("b:1", "t", schema="at timestamp"), arrival="at").plan.sources[0].arrival
        == "at"
    )


def test_which_setting_limits_the_rows_of_an_epoch() -> None:
    def made(**options: Any) -> KafkaSource:
        return ps.kafka("-", "orders", schema="n long", **options)

    assert made().bounded_by_sla
    assert not made(epoch_rows=0).bounded_by_sla
    assert not made(epoch_rows=500).bounded_by_sla
    assert not made(spark_options={"maxOffsetsPerTrigger": 9}).bounded_by_sla
    assert made(spark_options={"minPartitions": 9}).bounded_by_sla
    with pytest.raises(SettingError, match="epoch_rows"):
        made(epoch_rows=-1)


def test_explain_shows_the_limit_of_rows_of_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    flow = ps.flow(ps.kafka("-", "orders", schema="n long")).key_by("n").aggregate(k=ps.count())
    flow.explain()
    assert "epochs " not in capsys.readouterr().out
    flow.sla(latency="1s").explain()
    assert "for 500 ms, half of the SLA's latency" in (shown := capsys.readouterr().out)
    assert "7,500 at first" in shown


def test_passwords_are_not_shown() -> None:
    secret = {"sasl.password": "hush", "kafka.ssl.key.password": "hush"}
    source = ps.kafka("-", "orders", schema="n long", options=secret, spark_options=secret)
    assert "hush" not in repr(source)
