"""The sources of a flow as one DataFrame: a flow is one Spark query, however many sources it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.types import StructField

from penstock.errors import FlowError
from penstock.operators.tagged import INPUT, TaggedSchema
from penstock.spark import private
from penstock.spark.checkpoint import Folder, OffsetLog
from penstock.spark.schema import spark_schema


def one_stream(sources: Sequence[DataFrame], tagged: TaggedSchema | None) -> DataFrame:
    """A union of the sources, each row tagged with its source, columns shared by type."""
    if tagged is None:
        return sources[0]
    if len({df.isStreaming for df in sources}) > 1:
        raise FlowError(
            "a flow joins a streaming DataFrame with a static one",
            hint="join them in Spark, before ps.flow(...): it needs no state for that",
        )
    shared = list(spark_schema(tagged.schema))[1:]
    parts = [
        df.select(*_columns(df, number, tagged.places(number), shared))
        for number, df in enumerate(sources)
    ]
    return reduce(DataFrame.unionAll, parts)


def _columns(
    df: DataFrame, number: int, places: list[int], shared: list[StructField]
) -> list[Column]:
    names = dict(zip(places, df.columns, strict=True))
    columns = [F.lit(number).cast("byte").alias(INPUT)]
    for place, field in enumerate(shared):
        name = names.get(place)
        value = F.lit(None) if name is None else F.col(f"`{name.replace('`', '``')}`")
        columns.append(value.cast(field.dataType).alias(field.name))
    return columns


def with_clock(source: DataFrame, checkpoint: Folder, running: bool) -> tuple[DataFrame, bool]:
    """The source of a flow with timers, and beside it a clock that lets epochs happen when it is quiet;
    and whether there is one.

    A run over what is there now is never quiet and begins without a clock. But the number of sources in
    Spark's log cannot change: once there was a clock it stays, and where one comes later the log is told.
    """
    log, own = OffsetLog(checkpoint), private.stream_sources(source)
    logged = log.sources()
    if not running and logged != own + 1:
        return source, False
    if logged == own:
        log.have_sources(own + 1)
    return ticking(source), True


def ticking(source: DataFrame) -> DataFrame:
    """The source with a clock beside it that brings no rows but lets epochs happen when it is quiet.

    The filter is one that Spark cannot see through: a branch known to be empty would have no tasks,
    and an epoch without tasks has nowhere to send what its timers say.
    """
    clock = (
        source.sparkSession.readStream.format("rate")
        .options(rowsPerSecond=1, numPartitions=1)
        .load()
        .where(F.col("value") < 0)
    )
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema]
    return source.union(clock.select(*nothing))
