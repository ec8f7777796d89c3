"""What a query of the catalog is: its SQL, its flow, and how it differs under live loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.flows.flow import Flow
    from penstock_bench.workloads.nexmark.arriving_events import LiveEvents
    from penstock_bench.workloads.nexmark.columns import Stream

CAME = "came"
"""The time of day at which a batch is read, as a column."""


@dataclass(frozen=True)
class Events:
    """The streams that a query asked for, with the columns that it named."""

    spark: SparkSession
    streams: Mapping[Stream, DataFrame]
    delay: str
    """How far out of order the events' times are."""

    @property
    def person(self) -> DataFrame:
        return self.streams["person"]

    @property
    def auction(self) -> DataFrame:
        return self.streams["auction"]

    @property
    def bid(self) -> DataFrame:
        return self.streams["bid"]

    def sql(self, text: str) -> DataFrame:
        """A query of Spark's own on views that are named as the streams are."""
        for stream, df in self.streams.items():
            df.createOrReplaceTempView(stream)
        return self.spark.sql(text)


@dataclass(frozen=True)
class BurstForm:
    """A query as it is run under bursts: where all rows arrive, partial states merge.

    All that it reads comes in one source. Everything is by window and by time of arrival.
    """

    reads: Mapping[Stream, Mapping[str, str]]
    """What its rows hold of each stream: names, and which of the stream's columns they are."""
    steps: Callable[[Flow, str, int], Flow]
    """Makes the flow of its rows, a window and a number of slots."""
    busy: str
    """The step that gets the many rows."""
    records: float
    """Records that this step gets of each row, if nobody combines them before."""
    truth: str
    """What it should give, in DuckDB's SQL on the table `rows`: times are microseconds since 1970,
    `$size` is the window's, and `start(t)` the beginning of a time's window."""
    time: str = "window_end"
    """The column of the output that says when a row was due."""


@dataclass(frozen=True)
class NexmarkQuery:
    """A query: the columns that it reads, its SQL, its flow, and how the flow's end is read."""

    title: str
    needs: Mapping[Stream, tuple[str, ...]]
    """stream -> columns."""
    sql: str
    """The query as the benchmark defines it, in words of Spark that the oracle knows too. Rows that it leaves
    open, of equal prices or times, are decided by the remaining columns."""
    flow: Callable[[Events], Flow] | None = None
    """None: the SQL itself, which then keeps no state."""
    latest: tuple[str, ...] = ()
    """The key of a flow that gives a key's row anew when it changed: the newest one counts."""
    mode: Literal["append", "update"] = "append"
    """The output mode of Spark's own streaming."""
    time: str | None = None
    """The column that has a watermark there; where nothing waits for time, none has."""
    instead: str | None = None
    """What Spark's own streaming runs to the same end where it refuses the SQL."""
    truth: str | None = None
    """The SQL for DuckDB, where it has other words than Spark."""
    live: Callable[[LiveEvents, int], Flow] | None = None
    """The flow by time of arrival, of a number of slots."""
    burst: BurstForm | None = None

    def on(self, events: Events) -> Flow:
        """The flow on these events."""
        import penstock as ps

        return ps.flow(events.sql(self.sql)) if self.flow is None else self.flow(events)
