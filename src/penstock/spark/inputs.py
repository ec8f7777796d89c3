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
from penstock.spark.schema import spark_schema
from penstock.state.store.files import Files


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


def with_clock(source: DataFrame, checkpoint: str, running: bool) -> tuple[DataFrame, bool]:
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
        log.add_source()
    return ticking(source), True


class OffsetLog:
    """Spark's log of how far each source was read, in a checkpoint folder.

    A file for each batch: a version, the batch's facts, then a line for each source.
    """

    def __init__(self, checkpoint: str) -> None:
        self._files = Files(checkpoint)
        found = [entry.name.rpartition("/")[2] for entry in self._files.below("offsets")]
        newest = max((int(name) for name in found if name.isdigit()), default=-1)
        # Of these Spark reads how far it has come.
        read = {n: self._files.read(f"offsets/{n}") for n in (newest - 1, newest) if n >= 0}
        self._entries = {n: data.decode() for n, data in read.items() if data is not None}

    def sources(self) -> int | None:
        """How many sources the newest batch had; None: there was none."""
        newest = self._entries.get(max(self._entries, default=-1), "").split("\n")
        return len(newest) - 2 if newest[0] == "v1" else None

    def add_source(self) -> None:
        """Have one more source, of which nothing was read. The newest batch comes last: it is the one
        that counts."""
        for number, text in sorted(self._entries.items()):
            self._files.remove(f"offsets/.{number}.crc")  # Hadoop's checksum of what it was
            self._files.write(f"offsets/{number}", f"{text}\n-".encode())


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
