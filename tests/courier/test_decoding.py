"""Decoding in a courier: rows of one source or several, and dead letters."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.courier.courier import Streams
from penstock.courier.witness import Witness
from penstock.errors import InputError
from penstock.exchange.aside import Aside
from penstock.plan.steps import FlowPlan

ZONE = pa.timestamp("us", tz="Asia/Tokyo")


def source(topic: str, schema: str) -> ps.Flow:
    return ps.flow(ps.kafka("b:1", topic, schema=schema))


def read_by_spark(flow: FlowPlan, number: int, values: list[bytes]) -> pa.RecordBatch:
    """Return a batch as Spark's connector reads it, with times in the session's time zone."""
    schema = flow.sources[number].as_read
    rows = [
        {"value": value, "topic": "t", "partition": 0, "offset": n, "timestamp": 1_000 + n}
        for n, value in enumerate(values)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    if flow.tagged is not None:
        batch = flow.tagged.pack(number, batch)
    zoned = [f.with_type(ZONE) if pa.types.is_timestamp(f.type) else f for f in batch.schema]
    return batch.cast(pa.schema(zoned))


def decoded(flow: FlowPlan, batches: list[pa.RecordBatch], aside: Aside) -> list[list[dict]]:
    """Return the rows of each source."""
    streams = Streams(flow, iter(batches), Witness(flow.sources), aside)
    read = [list(streams.read(number)) for number in range(len(flow.sources))]
    for number, rows in enumerate(read):
        assert {batch.schema for batch in rows} <= {flow.sources[number].schema}
    return [[row for batch in rows for row in batch.to_pylist()] for rows in read]


def test_two_sources_in_one_stream() -> None:
    joined = source("a", "k long, x string").join(source("b", "k long, y double"), on="k", ttl="1m")
    flow = joined.plan
    batches = [
        read_by_spark(flow, 1, [b'{"k": 1, "y": 0.5}']),
        read_by_spark(flow, 0, [b'{"k": 1, "x": "p"}', b'{"k": 2}']),
    ]
    left, right = decoded(flow, batches, Aside())
    assert [(row["k"], row["x"]) for row in left] == [(1, "p"), (2, None)]
    assert [(row["k"], row["y"]) for row in right] == [(1, 0.5)]
    assert left[1]["arrival"].timestamp() == pytest.approx(0.001001)


def test_unreadable_rows_are_set_aside_or_end_the_flow() -> None:
    plan = source("a", "k long").plan
    batch, aside = read_by_spark(plan, 0, [b'{"k": 1}', b"oops"]), Aside()
    (rows,) = decoded(replace(plan, on_error="dead_letter"), [batch], aside)
    assert [row["k"] for row in rows] == [1]
    assert [(letter.step, letter.key) for letter in aside.dead] == [("kafka", "t/0/1")]
    with pytest.raises(InputError, match="cannot read the record at t/0/1"):
        decoded(plan, [batch], Aside())
