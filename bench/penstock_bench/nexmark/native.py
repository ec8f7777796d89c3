"""NEXMark's queries on Spark's own streaming.

Whether Spark takes a query is for Spark to say, and so is why not: each is asked for as it stands in
the benchmark's definition. Where Spark refuses that but runs another form with the same rows in the
end (the greatest by time instead of a row number, the size of a set instead of a distinct count),
the other form is run.
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
    """Spark does not run this query; the text is its reason."""


class NativeSide:
    """A query on Spark's own streaming. With its first run it finds out which form Spark takes."""

    def __init__(self, name: str, store: str) -> None:
        self._store, self._query = store, find(name)
        self._forms = [form for form in (self._query.sql, self._query.instead) if form is not None]
        self.refused: str | None = None
        """Why Spark does not run the query as it stands."""

    def run(self, events: Events, most_s: float) -> list[dict[str, Any]] | None:
        """Run it to its end; tell the progress of its triggers, or None if Spark takes no form."""
        sides.keep_state_in(events.spark, self._store)
        while self._forms:
            try:
                with started(self._query, self._forms[0], events) as query:
                    if not query.awaitTermination(int(most_s)):
                        raise PenstockError(f"Spark's side took over {most_s:.0f} s")
                    return [dict(progress) for progress in query.recentProgress]
            except Refused as words:
                self.refused = self.refused or str(words)
                del self._forms[0]
        return None


@contextmanager
def started(
    query: NexmarkQuery, form: str, events: Events, **trigger: Any
) -> Iterator[StreamingQuery]:
    """The query over all that is there now, or as a trigger of Spark's says, into nothing. Raises
    `Refused` before it begins."""
    # Tells on stderr, with a stack trace, what the exception tells too.
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
    """The streams for Spark's own streaming, as late as Penstock's flows take them to be."""
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
    """The words of a refusal, without the plan that Spark prints after them.

    >>> reason("[NOT_SO] Not so. SQLSTATE: 42601;\\nProject [a#1]\\n+- Relation")
    '[NOT_SO] Not so.'
    """
    return text.split("\n")[0].split("SQLSTATE")[0].split(";")[0].strip()
