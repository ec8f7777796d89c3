"""Sinks for the output of a flow and for late rows: any Spark batch writer, a function, or a list for
tests."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from penstock.driver.clock import wall_ms
from penstock.errors import SettingError
from penstock.live.sinks.files import ENCODERS, FileSink, epoch_of
from penstock.live.sinks.function import ArrowFunction, FunctionSink
from penstock.live.sinks.kafka import MESSAGES, KafkaSink
from penstock.live.sinks.sink import LiveSink, RowIds
from penstock.plan.steps import FlowPlan
from penstock.spark.connector import PATIENT_WRITES
from penstock.spark.private import forget_stage, in_own_stage, is_local, pinned
from penstock.spark.schema import arrow_schema, spark_schema
from penstock.state.store.files import Files

_FILES = ("parquet", "orc", "json", "csv", "text", "avro")
_MERGED = ("parquet", "orc", "json", "csv", "text")
_WHOLE = (*_FILES, "noop", "delta")
"""Formats whose writers run each partition of the output as it is, in one job."""
_ALL_ROWS = (*_WHOLE, "kafka", "jdbc")
"""Formats whose writers read all rows of the output once, though perhaps in other partitions."""


class Sink(Protocol):
    """Writes the output of one epoch, before the epoch is durable.

    `write` is called again for an epoch that is run again: when a host was lost, even after the first call
    returned, and after a crash of the driver. It need not read the DataFrame. A sink may have more members:

    - `takes_once`, true if it ignores an epoch that it has already;
    - `replaces`, the place, as text, where it replaces what the first run of an epoch wrote;
    - `write_plain(df, epoch, flow_id)`, which is called instead of `write` in a flow without hosts and
      couriers. It must read all rows, but no task has to run exactly once;
    - `live()`, which returns the sink that couriers write to in live mode;
    - `close()`, which is called when the query ends.
    """

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None: ...


def write_plain(sink: Sink, df: DataFrame, epoch: int, flow_id: str) -> None:
    """Write the output of an epoch of a flow without hosts and couriers."""
    getattr(sink, "write_plain", sink.write)(df, epoch, flow_id)


def live_sink(sink: Sink) -> LiveSink:
    """The sink that couriers write to in live mode. Raises a `SettingError` if only Spark can write to it."""
    live = getattr(sink, "live", None)
    if live is None:
        raise SettingError(
            f"{type(sink).__name__} does not work in live mode",
            hint="use ps.to with kafka, parquet, json or csv, ps.foreach_arrow(function) or ps.collect()",
        )
    made: LiveSink = live()
    return made


@dataclass(frozen=True)
class Writer:
    """A Spark batch writer. `to` creates it."""

    format: str
    mode: str | None = None
    partition_by: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    merge_epochs: int = 0
    """Number of epoch folders to merge into one; 0: none."""

    @property
    def takes_once(self) -> bool:
        """Whether the sink ignores an epoch that it has already."""
        return self.format == "delta"

    @property
    def replaces(self) -> str | None:
        """Folder in which the files of an epoch are replaced; None for other formats and modes."""
        files = self.format in _FILES and self.mode is None
        return str(self.options["path"]).rstrip("/") if files else None

    @property
    def merges(self) -> bool:
        """Whether the folders of epochs are merged."""
        plain = not {"encoding", "charset"} & {option.lower() for option in self.options}
        return self.format in _MERGED and self.mode is None and self.merge_epochs > 0 and plain

    def live(self) -> LiveSink:
        """The sink that couriers write to in live mode, where options are those of pyarrow."""
        options = dict(self.options)
        if self.format == "kafka":
            return spark_kafka_sink(options)
        if self.format not in ENCODERS or self.mode is not None or self.partition_by:
            how = f", mode={self.mode!r}" if self.mode else ""
            how += f", partition_by={self.partition_by!r}" if self.partition_by else ""
            raise SettingError(
                f"to({self.format!r}{how}) does not work in live mode",
                hint="use kafka, parquet, json or csv without mode and partition_by, "
                "ps.foreach_arrow(function) or ps.collect()",
            )
        path = options.pop("path")
        return FileSink(self.format, str(path), tuple(options.items()))

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        if self.format in _WHOLE:
            self._save(df, epoch, flow_id)
        else:
            held(df, lambda kept: self._save(kept, epoch, flow_id))

    def write_plain(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        """Write without keeping the rows in a shuffle first, where the writer reads all of them."""
        if self.format in _ALL_ROWS:
            self._save(df, epoch, flow_id)
        else:
            self.write(df, epoch, flow_id)

    def _save(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        options = dict(self.options)
        mode = self.mode or "append"
        if self.format in _FILES and self.mode is None:
            options["path"] = f"{options['path']}/epoch={epoch}"
            options.setdefault("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            # Whatever the session says, all earlier output of the epoch must go.
            options["partitionOverwriteMode"] = "static"
            mode = "overwrite"
        if self.format == "delta":
            options |= {"txnAppId": flow_id, "txnVersion": str(epoch)}
        writer = df.write.format(self.format).mode(mode).options(**options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save()


def to(
    format: str,
    *,
    mode: str | None = None,
    partition_by: str | Sequence[str] = (),
    merge_epochs: int = 256,
    **options: Any,
) -> Writer:
    """A sink for any Spark batch writer: `to("parquet", path=...)`, `to("console")`.

    **Files** (parquet, orc, json, csv, text, avro) of an epoch go to the folder `epoch=N` below `path`, which
    is replaced when the epoch is run again. So the folder has each row exactly once, and readers get the
    epoch as a column. A reader may find an epoch missing, or see the output of its first run, while it is
    run again.

    Once there are `merge_epochs` folders of final epochs, their files (except avro) are merged into the
    folder of the last one. Its `epoch` then stands for all of them. While the folders are renamed, readers
    may miss rows of these epochs or find a file missing, but never see a row twice. Spark's file stream would
    read merged files as new ones: set `merge_epochs=0` for it.

    **Kafka**: `to("kafka", servers=..., topic=..., key="user", value_format="json")`. The key is a column.
    The value has all columns, as "json", "arrow" or "avro" (with `avro_schema`), or is the column `value`
    ("raw"). `options` are those of librdkafka, `spark_options` those of Spark's writer. Each message has the
    headers `penstock-id` and `penstock-run`, by which consumers can drop repeated rows (see `RowIds`). With
    `start(delivery="transactional")` consumers see each row once. With the options of Spark's own writer
    (`kafka.bootstrap.servers`, `topic`), the columns `key` and `value` are written as they are.

    **Live mode** supports kafka, parquet, json and csv, with the options of librdkafka and pyarrow. Files
    appear with each checkpoint.

    **Delta** is written with a transaction id, and takes an epoch once. All other formats, and files with a
    `mode`, may get an epoch's rows more than once: after a crash, or if a host is lost after the write.

    >>> to("parquet", path="out").format
    'parquet'
    """
    if merge_epochs < 0 or merge_epochs == 1:
        raise SettingError(
            f"merge_epochs is {merge_epochs}", hint="use 2 or more, or 0 to turn merging off"
        )
    if format == "kafka" and "servers" in options:
        return kafka_topic(**options)
    if format in _FILES and "path" not in options:
        raise SettingError(f"to({format!r}) needs a folder", hint='add path="some/folder"')
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return Writer(format, mode, columns, options, merge_epochs)


@dataclass(frozen=True)
class KafkaTopic(Writer):
    """A Kafka topic whose messages Penstock encodes, in both modes. `to` creates it."""

    sink: KafkaSink = field(kw_only=True)
    spark_options: tuple[tuple[str, str], ...] = field(kw_only=True, repr=False)

    def live(self) -> LiveSink:
        return self.sink

    def _save(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        sink, schema = self.sink, arrow_schema(df.schema, df.sparkSession)
        format, run = sink.encoder(schema), int(wall_ms())

        def encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            ids = RowIds(context.partitionId() if context else 0, epoch, 0, run, epoch)
            for batch in batches:
                yield sink.messages(format, batch, ids)
                ids = replace(ids, first=ids.first + batch.num_rows)

        options = {"kafka.bootstrap.servers": sink.servers, "topic": sink.topic} | PATIENT_WRITES
        messages = df.mapInArrow(encoded, spark_schema(MESSAGES))
        writer = messages.write.format("kafka")
        writer.options(**options | dict(self.spark_options)).save()


def kafka_topic(
    servers: str,
    topic: str,
    *,
    key: str | None = None,
    value_format: str = "json",
    avro_schema: Any = None,
    options: Mapping[str, Any] | None = None,
    spark_options: Mapping[str, Any] | None = None,
) -> KafkaTopic:
    """A Kafka topic whose messages are encoded rows. See `to`."""
    avro = (
        avro_schema
        if avro_schema is None or isinstance(avro_schema, str)
        else json.dumps(avro_schema)
    )
    sink = KafkaSink(servers, topic, value_format, key, avro, tuple((options or {}).items()))
    spark = tuple((name, str(value)) for name, value in (spark_options or {}).items())
    return KafkaTopic("kafka", sink=sink, spark_options=spark)


def spark_kafka_sink(options: dict[str, Any]) -> KafkaSink:
    """The live sink for the options of Spark's Kafka writer."""
    prefix = "kafka."
    clients = {
        name.removeprefix(prefix): v for name, v in options.items() if name.startswith(prefix)
    }
    servers, topic = clients.pop("bootstrap.servers", None), options.get("topic")
    if not servers or not topic:
        raise SettingError(
            "to('kafka') needs servers and a topic",
            hint='write to("kafka", servers="broker:9092", topic="out", key="user")',
        )
    return KafkaSink(servers, topic, "raw", "key", None, tuple(clients.items()))


@dataclass(frozen=True)
class ForeachArrow:
    """A user's function of (Arrow batch, ids of its rows). `foreach_arrow` creates it."""

    function: ArrowFunction

    def live(self) -> LiveSink:
        return FunctionSink(self.function)

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        held(df, lambda kept: self.write_plain(kept, epoch, flow_id))

    def write_plain(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        """Call the function in Spark's tasks, without keeping the rows in a shuffle first."""
        function = self.function

        def called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            partition, first = context.partitionId() if context else 0, 0
            for batch in batches:
                function(batch, RowIds(partition, epoch, first))
                first += batch.num_rows
            yield from ()

        df.mapInArrow(called, "n long").write.format("noop").mode("overwrite").save()


def foreach_arrow(function: ArrowFunction) -> ForeachArrow:
    """A sink that calls a function with each Arrow batch of output and the `RowIds` of its rows.

    The function runs in live couriers, or in Spark's tasks at the end of an epoch. Rows that are repeated
    after a failure have the same epoch as before.
    """
    return ForeachArrow(function)


@dataclass(frozen=True)
class ForeachBatch:
    """A user's function of (DataFrame, epoch). `foreach_batch` creates it."""

    function: Callable[[DataFrame, int], None]

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        held(df, lambda kept: self.function(kept, epoch))


def foreach_batch(function: Callable[[DataFrame, int], None]) -> ForeachBatch:
    """A sink that calls a function with each epoch's output, as Spark's `foreachBatch` does.

    The output is kept while the function runs, so it may be read several times and in any way, even if an
    executor is lost. The function is called once all hosts have their rows. If the epoch is run again,
    because a host or the driver was lost before it was durable, the function is called again with the same
    number, even if the first call had returned.
    """
    return ForeachBatch(function)


class Collect:
    """Keeps all output in the driver's memory, for tests and small results.

    The output of an epoch that is run again replaces the earlier one. In live mode couriers write it to a
    local folder, so this needs a local session.

    >>> Collect().rows()
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, pa.Table] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def live(self) -> LiveSink:
        """The sink that couriers write to in live mode."""
        session = SparkSession.getActiveSession()
        if session is not None and not is_local(session):
            raise SettingError(
                "collect() needs a local session in live mode: executors cannot reach the driver's memory",
                hint="write to files or to Kafka",
            )
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="penstock-collect-")
        return FileSink("arrow", self._folder.name)

    @property
    def replaces(self) -> str:
        """Name of this object: it replaces the rows of an epoch."""
        return f"collect() {id(self)}"

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        table = df.toArrow()
        with self._lock:
            self._epochs[epoch] = table

    def epochs(self) -> dict[int, pa.Table]:
        """The output by epoch."""
        with self._lock:
            tables = dict(self._epochs)
        if self._folder is not None:
            files = Files(self._folder.name)
            for file in sorted(files.below(""), key=lambda file: file.name):
                epoch = epoch_of(file.name)
                if epoch is not None:
                    table = pa.ipc.open_file(files.read(file.name)).read_all()
                    tables[epoch] = (
                        pa.concat_tables([tables[epoch], table]) if epoch in tables else table
                    )
        return dict(sorted(tables.items()))

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of the epochs."""
        return [row for table in self.epochs().values() for row in table.to_pylist()]

    def latest(self, *key: str) -> dict[Any, dict[str, Any]]:
        """The newest row for each value of the key columns, as an upsert sink would have it."""
        pick = (lambda r: r[key[0]]) if len(key) == 1 else (lambda r: tuple(r[k] for k in key))
        return {pick(row): row for row in self.rows()}


def collect() -> Collect:
    """A sink that keeps all output in the driver's memory."""
    return Collect()


def held(df: DataFrame, use: Callable[[DataFrame], None]) -> None:
    """Run all couriers once, and call `use` with their output, which Spark keeps meanwhile.

    Otherwise a sink that reads only some partitions (show, limit) would leave part of the epoch undone, and
    one that merges them (coalesce) would run several couriers in one task. If an executor is lost, Spark
    repeats its couriers, which get the same answers from the hosts.
    """
    kept = in_own_stage(df)
    try:
        kept.isEmpty()
        use(kept)
    finally:
        forget_stage(kept)


def late_inputs(plan: FlowPlan) -> dict[str, tuple[str, int]]:
    """Name of an input that can have late rows, such as "window-1" or "join-2.right" -> (step, input)."""
    places: dict[str, tuple[str, int]] = {}
    for step in plan.keyed:
        sides = (".left", ".right") if len(step.plan.inputs) == 2 else ("",)
        places |= {step.id + side: (step.id, number) for number, side in enumerate(sides)}
    return places


def late_sinks(
    plan: FlowPlan, sinks: Sink | dict[str, Sink] | None, output: Sink
) -> dict[tuple[str, int], Sink]:
    """(step, input) -> sink of its late rows, from the `late_rows` of a user.

    `output` is the flow's own sink. A sink that replaces an epoch's rows cannot be used twice.
    """
    if sinks is None:
        return {}
    places = late_inputs(plan)
    if not isinstance(sinks, dict):
        if len(places) > 1:
            raise SettingError(
                f"late_rows is one sink, but rows can be late for {', '.join(places)}",
                hint=f'set a sink by name: late_rows={{"{next(iter(places))}": ...}}',
            )
        sinks = dict.fromkeys(places, sinks)
    if unknown := set(sinks) - set(places):
        raise SettingError(
            f"late_rows names steps that the flow does not have: {', '.join(sorted(unknown))}",
            hint=f"use {', '.join(places)} (see flow.explain())",
        )
    replaced = [replaces(sink) for sink in (output, *sinks.values())]
    if shared := [where for where in replaced if where is not None and replaced.count(where) > 1]:
        raise SettingError(
            f"two sinks of the flow write to {shared[0]}: each would replace the other's rows of an epoch",
            hint="use a separate path or ps.collect() for the output and for the late rows of each step",
        )
    return {places[name]: sink for name, sink in sinks.items()}


def replaces(sink: Sink) -> str | None:
    """The place where a sink replaces earlier output of an epoch; None if it does not replace any."""
    place: str | None = getattr(sink, "replaces", None)
    return place


@dataclass(frozen=True)
class LateWriter:
    """Writes an epoch's late rows to their sinks, after all hosts have sealed it and before it is durable.

    The loss of a host repeats no late rows. A crash of the driver may, since the epoch is run again; the sink
    decides what that means.
    """

    spark: SparkSession
    sinks: Mapping[tuple[str, int], Sink]
    flow_id: str

    def __call__(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        for place, table in rows.items():
            sink = self.sinks.get(place)
            if sink is not None:
                # A sink that takes an epoch once must tell these rows from others by the id.
                own_id = f"{self.flow_id}/{place[0]}.{place[1]}"
                sink.write(pinned(self.spark.createDataFrame(table)), epoch, own_id)
