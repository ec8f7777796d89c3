"""The beginning of a flow: its source, and the columns that tell the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import FlowError
from penstock.flows.flow import Flow
from penstock.flows.graph import Graph, Source
from penstock.live.sources.source import LiveSource
from penstock.model import milliseconds
from penstock.plan.steps import SourcePlan
from penstock.spark.schema import arrow_schema
from penstock.spark.session import check_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def flow(
    source: DataFrame | LiveSource,
    *,
    arrival: str | None = None,
    event_time: str | None = None,
    delay: str | float = 0,
    partition: str | None = None,
    idle: str | float | None = None,
) -> Flow:
    """Begin a flow on a source.

    The source is a DataFrame, streaming or static, or one that couriers can read without Spark: `kafka`,
    `rate` or `source`. Only the latter can run in live mode.

    - `arrival`: timestamp column from which latency is measured. By default the source's own, such as
      Kafka's timestamp; without one latency is measured from ingestion.
    - `event_time`: timestamp column for windows and event-time timers.
    - `delay`: how long event times may be out of order, such as "5s". The watermark is the newest event
      time less the delay.
    - `partition`: column with the partition of the source, where partitions do not advance together. Then
      the watermark is that of the partition that is furthest behind.
    - `idle`: duration without a row after which a partition, or a source joined with others, no longer
      holds the watermark back.
    """
    decoder = None
    if isinstance(source, LiveSource):
        schema, decoder, arrival = source.schema, source.decoder, arrival or source.arrival
    else:
        check_session(source)
        schema = arrow_schema(source.schema, source.sparkSession)
    times, names = (pa.types.is_timestamp,), (pa.types.is_integer, pa.types.is_string)
    for purpose, column, what, kinds in (
        ("arrival", arrival, "a timestamp column", times),
        ("event_time", event_time, "a timestamp column", times),
        ("partition", partition, "a column of integers or text", names),
    ):
        place = -1 if column is None else schema.get_field_index(column)
        type = schema.field(place).type if place >= 0 else None
        if column is not None and (type is None or not any(kind(type) for kind in kinds)):
            actual = "missing" if type is None else f"of type {type}"
            raise FlowError(
                f"{purpose}={column!r} must be {what}, but it is {actual}",
                hint=f"the columns of the source are {', '.join(schema.names)}",
            )
    if event_time is None and (partition is not None or idle is not None):
        raise FlowError(
            "partition and idle are for the watermark, but the flow has no event time",
            hint='name its column: ps.flow(df, event_time="ts", ...)',
        )
    idle_ms = None if idle is None else milliseconds(idle)
    plan = SourcePlan(schema, event_time, milliseconds(delay), partition, idle_ms, arrival, decoder)
    return Flow(Graph((Source(source, plan),)), time=event_time)
