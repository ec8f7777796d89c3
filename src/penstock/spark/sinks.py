"""Where a flow's output goes: any Spark batch writer, a function, or a list for tests; and where rows
go that came behind the watermark of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import SettingError
from penstock.plan.steps import FlowPlan
from penstock.spark.private import forget_stage, in_own_stage

_FILES = ("parquet", "orc", "json", "csv", "text", "avro")
_WHOLE = (*_FILES, "noop", "delta")
"""Formats whose writers run each partition of the output exactly as it is, in one job."""


class Sink(Protocol):
    """Takes the output of one epoch. May be called again for the same epoch after a failure."""

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None: ...


@dataclass(frozen=True)
class Writer:
    """A Spark batch writer. Made by `to`."""

    format: str
    mode: str | None = None
    partition_by: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

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
            mode = "overwrite"
        if self.format == "delta":
            options |= {"txnAppId": flow_id, "txnVersion": str(epoch)}
        writer = df.write.format(self.format).mode(mode).options(**options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save()


def to(
    format: str, *, mode: str | None = None, partition_by: str | Sequence[str] = (), **options: Any
) -> Writer:
    """A sink that is any Spark batch writer: `to("parquet", path=...)`, `to("console")`.

    Files (parquet, orc, json, csv, text, avro) of an epoch go to a folder `epoch=N` below `path`, which is
    replaced when the epoch is run again: exactly once, and readers get the epoch as a column. Delta
    is written with a transaction id, which does the same. Other formats, and files with a `mode` of
    their own, may see an epoch a second time after a crash of the driver.

    >>> to("parquet", path="out").format
    'parquet'
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return Writer(format, mode, columns, options)


@dataclass(frozen=True)
class ForeachBatch:
    """A user's function of (DataFrame, epoch). Made by `foreach_batch`."""

    function: Callable[[DataFrame, int], None]

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        held(df, lambda kept: self.function(kept, epoch))


def foreach_batch(function: Callable[[DataFrame, int], None]) -> ForeachBatch:
    """A sink that calls a function with each epoch's output, as Spark's `foreachBatch` does.

    The output is held (cached) while the function runs: it may read it as often and in whichever
    way it likes. After a crash the last epoch may come a second time, with the same number.
    """
    return ForeachBatch(function)


class Collect:
    """Keeps all output in the driver's memory, for tests and small results.

    >>> Collect().rows()
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, pa.Table] = {}

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        table = df.toArrow()
        with self._lock:
            self._epochs[epoch] = table

    def epochs(self) -> dict[int, pa.Table]:
        """The output by epoch."""
        with self._lock:
            return dict(sorted(self._epochs.items()))

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


def late_sinks(plan: FlowPlan, sinks: Sink | dict[str, Sink] | None) -> dict[tuple[str, int], Sink]:
    """(step, input) -> the sink of its late rows, from what a user gave: by "window-1", "join-2.right"."""
    if sinks is None:
        return {}
    places: dict[str, tuple[str, int]] = {}
    for step in plan.keyed:
        sides = (".left", ".right") if len(step.plan.inputs) == 2 else ("",)
        places |= {step.id + side: (step.id, number) for number, side in enumerate(sides)}
    if not isinstance(sinks, dict):
        if len(places) > 1:
            raise SettingError(
                f"late_rows is one sink, but rows can be late for {', '.join(places)}",
                hint=f'give a sink for each that matters: late_rows={{"{next(iter(places))}": ...}}',
            )
        sinks = dict.fromkeys(places, sinks)
    if unknown := set(sinks) - set(places):
        raise SettingError(
            f"late_rows names unknown steps {sorted(unknown)}",
            hint=f"rows can be late for {', '.join(places)} (see flow.explain())",
        )
    return {places[name]: sink for name, sink in sinks.items()}


@dataclass(frozen=True)
class LateWriter:
    """Gives an epoch's late rows to their sinks, before the epoch is durable: so they come once."""

    spark: SparkSession
    sinks: Mapping[tuple[str, int], Sink]
    flow_id: str

    def __call__(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        for place, table in rows.items():
            sink = self.sinks.get(place)
            if sink is not None:
                sink.write(self.spark.createDataFrame(table), epoch, self.flow_id)
