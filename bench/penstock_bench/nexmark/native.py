"""NEXMark's queries on Spark's own streaming.

Each query is first started as the benchmark defines it. Where Spark refuses it, its error is the reason
in the report, and another form with the same final rows runs if there is one (the maximum by time instead
of a row number, the size of a set instead of a distinct count).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError
from penstock.model import milliseconds
from penstock_bench import sides
from penstock_bench.workloads.nexmark.catalog import find
from penstock_bench.workloads.nexmark.query import CAME, Events, NexmarkQuery


class Refused(Exception):
    """Spark cannot run this query; the text is Spark's reason."""


class NativeSide:
    """A query on Spark's own streaming. Its first run finds the form that Spark accepts."""

    def __init__(self, name: str, store: str) -> None:
        self._store, self._query = store, find(name)
        self._forms = [form for form in (self._query.sql, self._query.instead) if form is not None]
        self.refused: str | None = None
        """Spark's reason not to run the query as defined; None if it runs."""

    def run(self, events: Events, most_s: float) -> list[dict[str, Any]] | None:
        """Run the query to its end; return its triggers' progress, or None if Spark accepts no form."""
        sides.keep_state_in(events.spark, self._store)
        while self._forms:
            try:
                with started(self._query, self._forms[0], events) as query:
                    if not query.awaitTermination(int(most_s)):
                        raise PenstockError(f"the query did not end on Spark within {most_s:.0f} s")
                    return [dict(progress) for progress in query.recentProgress]
            except Refused as refusal:
                self.refused = self.refused or str(refusal)
                del self._forms[0]
        return None


@contextmanager
def started(
    query: NexmarkQuery, form: str, events: Events, **trigger: Any
) -> Iterator[StreamingQuery]:
    """Start the query with the `noop` sink, by default over all available input. Raises `Refused` if Spark
    cannot run it."""
    # This logger prints the same error as the exception, with a stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with sides.folder(events.spark) as checkpoint:
        df = with_watermarks(query, events).sql(form)
        writer = df.writeStream.format("noop").outputMode(query.mode)
        writer = writer.option("checkpointLocation", checkpoint)
        writer = writer.trigger(**(trigger or {"availableNow": True}))
        try:
            running = writer.start()
        except AnalysisException as error:
            raise Refused(reason(str(error))) from error
        try:
            yield running
        finally:
            running.stop()


def with_watermarks(query: NexmarkQuery, events: Events) -> Events:
    """The streams with Spark's watermarks, with the same delay as in Penstock's flows."""
    streams = dict(events.streams)
    for stream, df in events.streams.items():
        if query.time == CAME:
            came = df.withColumn(CAME, F.current_timestamp())
            streams[stream] = came.withWatermark(CAME, "0 seconds")
        elif query.time is not None:
            delay = f"{milliseconds(events.delay)} milliseconds"
            streams[stream] = df.withWatermark(query.time, delay)
    return replace(events, streams=streams)


def reason(text: str) -> str:
    """The message of a refusal, without the plan that Spark prints after it.

    >>> reason("[NOT_SO] Not so. SQLSTATE: 42601;\\nProject [a#1]\\n+- Relation")
    '[NOT_SO] Not so.'
    """
    return text.split("\n")[0].split("SQLSTATE")[0].split(";")[0].strip()
