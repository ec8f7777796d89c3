"""Runs a query over files of events to their end, and writes its final rows.

The events are first cut into small files, which Spark's file source reads one after the other: each is
an epoch. Queries use event time, so their output depends only on the events, not on the cuts, the number
of hosts, or failures of hosts.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark.schema import spark_schema
from penstock.spark.session import quiet_session
from penstock_bench.workloads.nexmark.catalog import find
from penstock_bench.workloads.nexmark.columns import SCHEMAS
from penstock_bench.workloads.nexmark.files import ReplayInfo, chunked
from penstock_bench.workloads.nexmark.output import (
    check_output,
    final_rows,
    final_schema,
    read_epochs,
    rows_file,
)
from penstock_bench.workloads.nexmark.query import Events, NexmarkQuery

PARTS = 2
"""Files per stream and epoch, each read by one task."""
_MOST_STEPS = 4
"""Most keyed steps of a query; each has its own hosts."""
_LOOK_S = 0.25

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Files keep times of the years 1 to 9999 unchanged.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Each file gets a task, however small it is.
    "spark.sql.files.minPartitionNum": str(PARTS),
}
"""Spark settings that the session of a query needs."""

Tell = Callable[[str], None]
Done = Callable[[int, int], None]


@dataclass(frozen=True)
class Replay:
    """A query's events, cut into files and ready to be streamed."""

    query: NexmarkQuery
    folder: Path
    info: ReplayInfo
    batch_rows: int

    @property
    def events(self) -> int:
        return sum(self.info.rows.values())

    def flow(self, spark: SparkSession) -> ps.Flow:
        """The query's flow on these events, in a session with `SETTINGS`."""
        return self.query.on(self.streams(spark))

    def streams(self, spark: SparkSession) -> Events:
        """The events as streams of Spark's file source, one batch per trigger."""
        streams = {
            stream: spark.readStream.schema(
                spark_schema(pa.schema([SCHEMAS[stream].field(name) for name in columns]))
            )
            .option("maxFilesPerTrigger", self.info.parts)
            .parquet(str(self.folder / stream))
            for stream, columns in self.query.needs.items()
        }
        delay_ms = max(self.info.disorder_ms.values(), default=0)
        return Events(spark, streams, f"{delay_ms} ms")

    def done(self, epochs: int) -> int:
        """Number of events that `epochs` epochs have processed."""
        return min(self.events, epochs * self.batch_rows)


def prepare(name: str, events: Path, folder: Path, batch_rows: int) -> Replay:
    """Cut the events of a folder into files for a query, below another folder."""
    query = find(name)
    info = chunked(events, folder, batch_rows, query.needs, parts=PARTS)
    return Replay(query, folder, info, batch_rows)


def write_final(replay: Replay, schema: pa.Schema, rows: Path, output: Path) -> int:
    """Write the final rows of a flow whose output is in the folder `rows`; return their number."""
    written = 0
    with rows_file(output, final_schema(schema)) as write:
        for batch in final_rows(read_epochs(rows, schema), schema, replay.query.latest):
            write(batch)
            written += len(batch)
    return written


def run(
    name: str,
    events: str,
    output: str,
    *,
    opened: ExitStack,
    hosts: int = 2,
    batch_rows: int = 100_000,
    master: str | None = None,
    tell: Tell = lambda text: None,
    done: Done = lambda events, of: None,
) -> int:
    """Run a query on a folder of events to its end, write its final rows to a file, and return their number.

    Resources to close afterwards, even after an error, are put on the stack `opened`. `tell` is called
    with a text when a phase begins, `done` several times a second with the number of processed events
    and of all events. With a master that is not local, hosts must be able to access the output's folder:
    temporary files are there.
    """
    find(name)
    path = Path(output)
    check_output(path)
    local = master is None or master.startswith("local")
    folder = tempfile.TemporaryDirectory(
        prefix=".penstock-nexmark-",
        dir=None if local else path.parent.absolute(),
        ignore_cleanup_errors=True,
    )
    work = Path(opened.enter_context(folder))
    tell("Reading the events")
    replay = prepare(name, Path(events), work / "events", batch_rows)
    tell("Starting Spark; it takes about 10 s to come up")
    cores = _MOST_STEPS * hosts + 2 * PARTS + 1
    session = quiet_session(f"penstock-nexmark-{name}", cores, SETTINGS, master)
    flow = replay.flow(opened.enter_context(session))
    tell("Starting the query and its hosts; the first run takes longer, since numba compiles")
    query = flow.start(
        ps.to("parquet", path=str(work / "rows")),
        checkpoint=str(work / "checkpoint"),
        hosts=hosts,
        trigger="available_now",
        close=True,
    )
    opened.callback(query.stop)
    _watch(query, replay, done)
    tell("Writing the rows")
    return write_final(replay, flow.schema, work / "rows", path)


def _watch(query: ps.FlowQuery, replay: Replay, done: Done) -> None:
    """Wait for the query's end, and report its progress."""
    pause = threading.Event()
    while not query.await_termination(0):
        newest = query.status.epoch
        done(replay.done(0 if newest is None else newest + 1), replay.events)
        pause.wait(_LOOK_S)
    done(replay.events, replay.events)
