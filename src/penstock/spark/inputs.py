"""All sources of a flow as one DataFrame, since a flow is one Spark query."""

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
    """The union of the sources. Each row is tagged with its source; columns are shared by type."""
    if tagged is None:
        return sources[0]
    if len({df.isStreaming for df in sources}) > 1:
        raise FlowError(
            "a flow joins a streaming DataFrame with a static one",
            hint="join them in Spark, before ps.flow(...), which needs no state",
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
    """Add a clock to the source of a flow with timers, so that epochs run while no rows arrive. Returns the
    source, and whether it has a clock.

    A run with "available_now" needs no clock at first. But the number of sources in Spark's log is fixed: a
    clock stays once there is one, and if it is added later, the log is extended.
    """
    log, own = OffsetLog(checkpoint), private.stream_sources(source)
    logged = log.sources()
    if not running and logged != own + 1:
        return source, False
    if logged == own:
        log.have_sources(own + 1)
    return ticking(source), True


def ticking(source: DataFrame) -> DataFrame:
    """The source with a clock, which adds no rows but makes epochs run while no rows arrive.

    Spark must not be able to optimise the filter away: an empty branch would have no tasks, and an epoch
    without tasks cannot emit the output of timers.
    """
    clock = (
        source.sparkSession.readStream.format("rate")
        .options(rowsPerSecond=1, numPartitions=1)
        .load()
        .where(F.col("value") < 0)
    )
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema]
    return source.union(clock.select(*nothing))
