"""The definition of a query: its SQL, its flow, and its forms for live loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.flows.flow import Flow
    from penstock.sim.pieces import Numbers
    from penstock_bench.workloads.nexmark.arriving_events import LiveEvents
    from penstock_bench.workloads.nexmark.columns import Stream

CAME = "came"
"""Name of a column with the time at which a batch is read."""


@dataclass(frozen=True)
class Events:
    """The streams that a query reads, with the columns that it needs."""

    spark: SparkSession
    streams: Mapping[Stream, DataFrame]
    delay: str
    """Delay of the watermark: how far out of order event times are."""

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
        """Run SQL on Spark, on views with the streams' names."""
        for stream, df in self.streams.items():
            df.createOrReplaceTempView(stream)
        return self.spark.sql(text)


class BurstContent(Protocol):
    """The rows of a load, without their arrival. Picklable."""

    @property
    def columns(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]: ...


@dataclass(frozen=True)
class BurstForm:
    """A query's form under bursts: the step that gets all rows merges partial states.

    It reads all its streams from one source. Its steps are windowed, by time of arrival.
    """

    reads: Mapping[Stream, Mapping[str, str]]
    """Stream -> names of the row's columns, and the stream's columns that they are."""
    steps: Callable[[Flow, str, int], Flow]
    """Function from a flow of rows, a window and a number of slots to the query's flow."""
    busy: str
    """The step that gets most rows."""
    records: float
    """Records per row that the busy step gets, if couriers do not combine them."""
    truth: str
    """The expected output, as DuckDB SQL on the table `rows`. Times are microseconds since 1970, `$size` is
    the window's length, and `start(t)` the start of the window of t."""
    time: str = "window_end"
    """The output column with the time at which a row is due."""
    content: Callable[[int], BurstContent] | None = None
    """Function from a seed to other rows than NEXMark's. None: those of `reads`."""


@dataclass(frozen=True)
class NexmarkQuery:
    """A query: the columns that it reads, its SQL, its flow, and how to read the flow's final rows."""

    title: str
    needs: Mapping[Stream, tuple[str, ...]]
    """Stream -> columns that the query reads."""
    sql: str
    """The query as the benchmark defines it, in Spark SQL that the oracle understands too. The remaining
    columns break ties between equal prices or times."""
    flow: Callable[[Events], Flow] | None = None
    """Builds the query's flow; None if the flow is the SQL itself, which then keeps no state."""
    latest: tuple[str, ...] = ()
    """Key columns of a flow that emits a key's row again when it changes: the newest row counts."""
    mode: Literal["append", "update"] = "append"
    """Output mode in Spark's own streaming."""
    time: str | None = None
    """Column with a watermark in Spark's own streaming; None if nothing waits for time."""
    instead: str | None = None
    """SQL with the same final rows for Spark's own streaming, where Spark refuses `sql`."""
    truth: str | None = None
    """SQL for DuckDB, where `sql` does not run there."""
    live: Callable[[LiveEvents, int], Flow] | None = None
    """Builds the flow by time of arrival, for a number of slots."""
    burst: BurstForm | None = None

    def on(self, events: Events) -> Flow:
        """The flow on these events."""
        import penstock as ps

        return ps.flow(events.sql(self.sql)) if self.flow is None else self.flow(events)
