"""Where a flow's output goes: any Spark batch writer, a function, or a list for tests; and where rows
go that came behind the watermark of a step."""

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
"""Formats whose writers run each partition of the output exactly as it is, in one job."""


class Sink(Protocol):
    """Takes the output of one epoch, before the epoch is durable.

    It is called again for the same epoch if that is run again: when a host died under it, even after this
    call returned, and once more by the next start if the driver died. It need not read the DataFrame. One
    that ignores an epoch which it has already says so by an attribute `takes_once` that is true. One that
    replaces what the first run of an epoch wrote has an attribute `replaces`: the place, as text. One that
    can be written to in live mode has a method `live`, which gives what couriers write to. One that holds
    connections has a method `close`, which is called when the query ends.
    """

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None: ...


def live_sink(sink: Sink) -> LiveSink:
    """What couriers write to in live mode; refuses a sink that only Spark can write to."""
    live = getattr(sink, "live", None)
    if live is None:
        raise SettingError(
            f"{type(sink).__name__} cannot be written to in live mode",
            hint="use ps.to with kafka, parquet, json or csv, ps.foreach_arrow(function) or ps.collect()",
        )
    found: LiveSink = live()
    return found


@dataclass(frozen=True)
class Writer:
    """A Spark batch writer. Made by `to`."""

    format: str
    mode: str | None = None
    partition_by: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    merge_epochs: int = 0

    @property
    def takes_once(self) -> bool:
        """Whether an epoch that is run again is ignored."""
        return self.format == "delta"

    @property
    def replaces(self) -> str | None:
        """Folder in which the files of an epoch are replaced; None for other formats and modes."""
        files = self.format in _FILES and self.mode is None
        return str(self.options["path"]).rstrip("/") if files else None

    @property
    def merges(self) -> bool:
        """Whether folders of single epochs are merged."""
        plain = not {"encoding", "charset"} & {option.lower() for option in self.options}
        return self.format in _MERGED and self.mode is None and self.merge_epochs > 0 and plain

    def live(self) -> LiveSink:
        """What couriers write to in live mode. The options are pyarrow's there."""
        options = dict(self.options)
        if self.format == "kafka":
            return spark_kafka_sink(options)
        if self.format not in ENCODERS or self.mode is not None or self.partition_by:
            how = f", mode={self.mode!r}" if self.mode else ""
            how += f", partition_by={self.partition_by!r}" if self.partition_by else ""
            raise SettingError(
                f"to({self.format!r}{how}) cannot be written to in live mode",
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

    def _save(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        options = dict(self.options)
        mode = self.mode or "append"
        if self.format in _FILES and self.mode is None:
            options["path"] = f"{options['path']}/epoch={epoch}"
            options.setdefault("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            # Whatever the session says: what the epoch wrote before goes, all of it.
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
    """A sink that is any Spark batch writer: `to("parquet", path=...)`, `to("console")`.

    Files (parquet, orc, json, csv, text, avro) of an epoch go to a folder `epoch=N` below `path`, which is
    replaced when the epoch is run again, after a crash or because a host died: exactly once for who reads
    the folder, and readers get the epoch as a column. Who reads while an epoch is run again may find it
    missing, or has seen what its first run wrote.

    When there are `merge_epochs` folders of epochs that cannot be run again, their files (all but avro) are
    merged into few, in the folder of the last of them: its `epoch` then stands for all since the merged one
    before. While that takes their place, as long as it takes to rename so many folders, readers may miss
    rows of these epochs, or find a file gone; they never see a row twice. Who follows new files as they
    come (Spark's own file stream) would take merged ones for new: 0 turns merging off.

    `to("kafka", servers=..., topic=..., key="user", value_format="json")` makes the messages: the key is a
    column, the value all columns as JSON, as "arrow" or as "avro" (with `avro_schema`), or as "raw" the
    column `value`; `options` are librdkafka's, `spark_options` those of Spark's writer. Each message has the
    headers `penstock-id` and `penstock-run`, which tell what counts of rows that come again (see `RowIds`);
    `start(delivery="transactional")` lets each be seen once. With the options of Spark's
    writer (`kafka.bootstrap.servers`, `topic`) the columns `key` and `value` are written as they are.

    In live mode there are kafka, parquet, json and csv, with the options of librdkafka and pyarrow; files
    appear with each checkpoint.

    Delta is written with a transaction id, and takes an epoch once. All other formats, and files with a
    `mode` of their own, may get an epoch's rows again: after a crash, and when a host died after they were
    written.

    >>> to("parquet", path="out").format
    'parquet'
    """
    if merge_epochs < 0 or merge_epochs == 1:
        raise SettingError(
            f"merge_epochs is {merge_epochs}", hint="use 2 or more, or 0 to merge nothing"
        )
    if format == "kafka" and "servers" in options:
        return kafka_topic(**options)
    if format in _FILES and "path" not in options:
        raise SettingError(
            f"files of format {format} need a folder", hint='give path="some/folder"'
        )
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return Writer(format, mode, columns, options, merge_epochs)


@dataclass(frozen=True)
class KafkaTopic(Writer):
    """A topic of Kafka with messages that Penstock makes, in both modes. Made by `to`."""

    sink: KafkaSink = field(kw_only=True)
    spark_options: tuple[tuple[str, str], ...] = field(kw_only=True, repr=False)

    def live(self) -> LiveSink:
        return self.sink

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        sink, schema = self.sink, arrow_schema(df.schema, df.sparkSession)
        format, run = sink.encoder(schema), int(wall_ms())

        def encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            ids = RowIds(context.partitionId() if context else 0, epoch, 0, run, epoch)
            for batch in batches:
                yield sink.messages(format, batch, ids)
                ids = replace(ids, first=ids.first + batch.num_rows)

        options = {"kafka.bootstrap.servers": sink.servers, "topic": sink.topic} | PATIENT_WRITES

        def save(kept: DataFrame) -> None:
            messages = kept.mapInArrow(encoded, spark_schema(MESSAGES))
            writer = messages.write.format("kafka")
            writer.options(**options | dict(self.spark_options)).save()

        held(df, save)


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
    """A topic whose messages are made of rows. See `to`."""
    avro = (
        avro_schema
        if avro_schema is None or isinstance(avro_schema, str)
        else json.dumps(avro_schema)
    )
    sink = KafkaSink(servers, topic, value_format, key, avro, tuple((options or {}).items()))
    spark = tuple((name, str(value)) for name, value in (spark_options or {}).items())
    return KafkaTopic("kafka", sink=sink, spark_options=spark)


def spark_kafka_sink(options: dict[str, Any]) -> KafkaSink:
    """What the options of Spark's writer to Kafka mean in live mode."""
    prefix = "kafka."
    clients = {
        name.removeprefix(prefix): v for name, v in options.items() if name.startswith(prefix)
    }
    servers, topic = clients.pop("bootstrap.servers", None), options.get("topic")
    if not servers or not topic:
        raise SettingError(
            "to('kafka') needs servers and a topic",
            hint='give to("kafka", servers="broker:9092", topic="out", key="user")',
        )
    return KafkaSink(servers, topic, "raw", "key", None, tuple(clients.items()))


@dataclass(frozen=True)
class ForeachArrow:
    """A user's function of (Arrow batch, ids of its rows), run in couriers. Made by `foreach_arrow`."""

    function: ArrowFunction

    def live(self) -> LiveSink:
        return FunctionSink(self.function)

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        function = self.function

        def called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            partition, first = context.partitionId() if context else 0, 0
            for batch in batches:
                function(batch, RowIds(partition, epoch, first))
                first += batch.num_rows
            yield from ()

        held(
            df,
            lambda kept: (
                kept.mapInArrow(called, "n long").write.format("noop").mode("overwrite").save()
            ),
        )


def foreach_arrow(function: ArrowFunction) -> ForeachArrow:
    """A sink that calls a function with each Arrow batch of output and the `RowIds` of its rows.

    It is called where the rows are: in live couriers, or in Spark's tasks at the end of an epoch. Rows that
    leave again after a failure have the epoch that they had.
    """
    return ForeachArrow(function)


@dataclass(frozen=True)
class ForeachBatch:
    """A user's function of (DataFrame, epoch). Made by `foreach_batch`."""

    function: Callable[[DataFrame, int], None]

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        held(df, lambda kept: self.function(kept, epoch))


def foreach_batch(function: Callable[[DataFrame, int], None]) -> ForeachBatch:
    """A sink that calls a function with each epoch's output, as Spark's `foreachBatch` does.

    The output is held while the function runs: it may read it as often and in whichever way it likes, and
    does not notice when an executor dies with some of it. It is called once all hosts have their rows. If
    the epoch is run again, because a host died before it was durable or the driver did, the function is
    called again with the same number, be it that the first call was done or broke off.
    """
    return ForeachBatch(function)


class Collect:
    """Keeps all output in the driver's memory, for tests and small results.

    The output of an epoch that is run again takes the place of what it gave before. In live mode couriers
    leave it in a folder of the machine, as the epoch passes: there it is for local sessions.

    >>> Collect().rows()
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, pa.Table] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def live(self) -> LiveSink:
        """What couriers write to in live mode."""
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
            found = dict(self._epochs)
        if self._folder is not None:
            files = Files(self._folder.name)
            for file in sorted(files.below(""), key=lambda found: found.name):
                epoch = epoch_of(file.name)
                if epoch is not None:
                    table = pa.ipc.open_file(files.read(file.name)).read_all()
                    found[epoch] = (
                        pa.concat_tables([found[epoch], table]) if epoch in found else table
                    )
        return dict(sorted(found.items()))

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of the epochs."""
        return [row for table in self.epochs().values() for row in table.to_pylist()]

    def latest(self, *key: str) -> dict[Any, dict[str, Any]]:
        """The newest row for each value of the key columns: what an upsert sink would hold."""
        pick = (lambda r: r[key[0]]) if len(key) == 1 else (lambda r: tuple(r[k] for k in key))
        return {pick(row): row for row in self.rows()}


def collect() -> Collect:
    """A sink that keeps all output in the driver's memory."""
    return Collect()


def held(df: DataFrame, use: Callable[[DataFrame], None]) -> None:
    """Run the couriers once, whole, and let `use` read their output from where Spark keeps it.

    What reads only some partitions (show, limit) would otherwise leave part of the epoch undone, and
    what merges them (coalesce) would run several couriers in one task. Output that is lost with an
    executor is made again by Spark: its couriers get the answers that hosts keep for them.
    """
    kept = in_own_stage(df)
    try:
        kept.isEmpty()
        use(kept)
    finally:
        forget_stage(kept)


def late_inputs(plan: FlowPlan) -> dict[str, tuple[str, int]]:
    """Name of an input that rows can be late for, such as "window-1" or "join-2.right" -> (step, input)."""
    places: dict[str, tuple[str, int]] = {}
    for step in plan.keyed:
        sides = (".left", ".right") if len(step.plan.inputs) == 2 else ("",)
        places |= {step.id + side: (step.id, number) for number, side in enumerate(sides)}
    return places


def late_sinks(
    plan: FlowPlan, sinks: Sink | dict[str, Sink] | None, output: Sink
) -> dict[tuple[str, int], Sink]:
    """(step, input) -> the sink of its late rows, from what a user gave: by "window-1", "join-2.right".

    `output` is the flow's own sink: what replaces an epoch's rows cannot be shared by several.
    """
    if sinks is None:
        return {}
    places = late_inputs(plan)
    if not isinstance(sinks, dict):
        if len(places) > 1:
            raise SettingError(
                f"late_rows is one sink, but rows can be late for {', '.join(places)}",
                hint=f'give a sink for each that matters: late_rows={{"{next(iter(places))}": ...}}',
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
            f"two sinks of the flow are one, {shared[0]}: each would replace the other's rows of an epoch",
            hint="give the output, and the late rows of each step, a path or ps.collect() of its own",
        )
    return {places[name]: sink for name, sink in sinks.items()}


def replaces(sink: Sink) -> str | None:
    """The one place where a sink replaces what an epoch wrote before; None: it does not."""
    place: str | None = getattr(sink, "replaces", None)
    return place


@dataclass(frozen=True)
class LateWriter:
    """Gives an epoch's late rows to their sinks, when all hosts have sealed it and it is not durable yet.

    A lost host repeats nothing. After a crash of the driver they may come again, as the epoch does: what
    that means, the sink says.
    """

    spark: SparkSession
    sinks: Mapping[tuple[str, int], Sink]
    flow_id: str

    def __call__(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        for place, table in rows.items():
            sink = self.sinks.get(place)
            if sink is not None:
                # A sink that takes an epoch once, by this id, must not take these for others.
                of = f"{self.flow_id}/{place[0]}.{place[1]}"
                sink.write(pinned(self.spark.createDataFrame(table)), epoch, of)
