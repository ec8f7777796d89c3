"""Live sources as DataFrames for micro-batches, and Spark's Python data sources as live sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.errors import FlowError, SettingError
from penstock.live.sources.kafka import KafkaSource
from penstock.live.sources.python_source import PythonSource
from penstock.live.sources.rate import RateSource
from penstock.live.sources.source import LiveSource
from penstock.spark.arriving import Arriving, arriving
from penstock.spark.connector import PATIENT_READS, must_have_connector
from penstock.spark.schema import spark_schema
from penstock.state.variables.ddl import schema_of


def active_session() -> SparkSession:
    """The active session, for a flow without a DataFrame. Raises a `SettingError` if there is none."""
    session = SparkSession.getActiveSession()
    if session is None:
        raise SettingError(
            "there is no Spark session for the flow", hint="create one first: spark = ps.session()"
        )
    return session


@singledispatch
def frame(source: LiveSource, spark: SparkSession, bound: int | None = None) -> DataFrame:
    """The source as a DataFrame of undecoded rows. An epoch takes at most `bound` rows, if the source
    supports a limit and the user has set none."""
    raise FlowError(
        f"{type(source).__name__} cannot be read in micro-batches",
        hint='start the flow with mode="live"',
    )


@frame.register
def _kafka(source: KafkaSource, spark: SparkSession, bound: int | None = None) -> DataFrame:
    starting = source.starting
    if not isinstance(starting, str):
        starting = json.dumps(source.offset_at(source.first(source.partitions())))
    options: dict[str, str | bool] = {
        "kafka.bootstrap.servers": source.servers,
        "subscribe": ",".join(source.topics),
        "startingOffsets": starting,
        "includeHeaders": "headers" in dict(source.metadata),
        "kafka.isolation.level": "read_committed",
        **PATIENT_READS,
    }
    most = bound if source.bounded_by_sla else source.epoch_rows
    if most:
        options["maxOffsetsPerTrigger"] = str(most)
    must_have_connector(spark)
    df = spark.readStream.format("kafka").options(**options | dict(source.spark_options)).load()
    return df.select(*source.decoder.schema.names)


@frame.register
def _rate(source: RateSource, spark: SparkSession, bound: int | None = None) -> DataFrame:
    start_ms = int(source.clock() * 1000)
    load = Arriving(source.arrivals, source.content, source.count, start_ms, rows=source.rows)
    return arriving(spark, "penstock_rate", load)


@frame.register
def _python(source: PythonSource, spark: SparkSession, bound: int | None = None) -> DataFrame:
    assert isinstance(source.make, StreamReaderMaker)
    spark.dataSource.register(source.make.kind)
    return spark.readStream.format(source.name).options(**dict(source.options)).load()


@dataclass(frozen=True)
class StreamReaderMaker:
    """Creates the stream reader of a Python data source."""

    kind: type[DataSource]
    options: tuple[tuple[str, str], ...]

    def __call__(self) -> Any:
        made = self.made()
        schema = made.schema()
        # Spark's parser of DDL needs a session, which couriers do not have.
        full = schema if isinstance(schema, StructType) else spark_schema(schema_of(schema))
        try:
            return made.streamReader(full)
        except PySparkNotImplementedError:
            return made.simpleStreamReader(full)

    def made(self) -> DataSource:
        return self.kind(dict(self.options))


def source(kind: type[DataSource], **options: Any) -> PythonSource:
    """A Python data source of Spark as the source of a flow. `kind` is its class.

    In micro-batches Spark reads it. In live mode its `streamReader` (or `simpleStreamReader`) runs in one
    courier. Rows between two offsets must be the same each time, as Spark also requires. Its `commit` is
    called when a checkpoint is durable. Times without a time zone are UTC.
    """
    texts = tuple((name, str(value)) for name, value in options.items())
    maker = StreamReaderMaker(kind, texts)
    made = maker.made()
    columns = schema_of(made.schema())
    for method in ("streamReader", "simpleStreamReader"):
        if getattr(kind, method) is not getattr(DataSource, method):
            return PythonSource(columns, maker, made.name(), texts)
    raise FlowError(
        f"{kind.__name__} has no stream reader", hint="add streamReader or simpleStreamReader to it"
    )
