"""One million keys with state of any size, and updates at a steady rate: the load of `bench migration`.

First every key arrives once and gets a payload. Then updates arrive, row *j* at `start + j / rate`, with
keys drawn uniformly or by Zipf's law. A *dial*, a small file, says when updates begin and how skewed
they are; it can change while the query runs. Its values are part of the offsets, so an epoch that is run
again gets the same rows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.live.sources.source import LiveReader, LiveSource, Polled
from penstock.operators.process.processor import KeyedProcessor
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.values import Row

Numbers = npt.NDArray[np.int64]
_TICK_S = 0.001
"""Seconds between a courier's checks for new rows."""
_KEYS_S = 0.1
"""Seconds between batches of keys in live mode: hosts need time to make them durable."""


@dataclass(frozen=True)
class TallyLoad:
    """Size and rate of the load."""

    keys: int
    rate: int
    """Updates per second."""
    payload: int
    """Bytes of state per key."""
    keys_at_once: int
    """Keys that arrive in one epoch at the start; in live mode, in a tenth of a second."""
    partitions: int = 2


@dataclass(frozen=True)
class Dial:
    """Settings that can change while the query runs."""

    start_ms: int | None = None
    """Arrival of the first update, in milliseconds of Unix time; None if updates have not begun."""
    skew: float = 0.0
    """Zipf's exponent; 0 draws all keys with the same probability."""
    keys: bool = True
    """Whether keys may arrive. Live couriers wait for it."""

    def turn(self, file: Path) -> None:
        """Write the settings to the file, atomically."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.rename(file)


def drawn_keys(numbers: Numbers, keys: int, skew: float) -> Numbers:
    """The key of each update. It depends only on the update's number.

    >>> drawn_keys(np.arange(4), keys=10, skew=0.0).tolist() == drawn_keys(
    ...     np.arange(4), keys=10, skew=0.0).tolist()
    True
    """
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    even = (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2.0**64
    if skew == 0:
        return (even * keys).astype(np.int64)
    ranks = np.searchsorted(_reached(keys, skew), even)
    # Scattered, so that keys of neighbouring ranks are not neighbours.
    return (np.minimum(ranks, keys - 1) * 2_654_435_761) % keys


@cache
def _reached(keys: int, skew: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    reached: npt.NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    return reached


@dataclass
class _UpdateRows(InputPartition):
    start: int
    end: int
    start_ms: int | None
    skew: float


def _rows(load: TallyLoad, part: _UpdateRows) -> pa.RecordBatch:
    """The rows of a range of numbers: keys, or updates if `start_ms` is set."""
    type = pa.timestamp("us", tz="UTC")
    number = np.arange(part.start, part.end, dtype=np.int64)
    if part.start_ms is None:
        keys, size, arrival = number, load.payload, pa.nulls(len(number), type)
    else:
        keys, size = drawn_keys(number - load.keys, load.keys, part.skew), 0
        after_us = (number - load.keys) * 1_000_000 // load.rate
        arrival = pa.array(part.start_ms * 1000 + after_us).cast(type)
    sizes = pa.array(np.full(len(number), size, np.int32))
    return pa.RecordBatch.from_arrays([arrival, pa.array(keys), sizes], ["arrival", "k", "payload"])


class _Reader(DataSourceStreamReader):
    """Reads first a row for each key, then updates. Offsets are {"row", "start_ms", "skew"}."""

    def __init__(self, load: TallyLoad, dial: Path) -> None:
        self._load, self._dial = load, dial

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"row": 0, "start_ms": None, "skew": 0.0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        load, row = self._load, start["row"]
        if row < load.keys:
            return start | {"row": min(load.keys, row + load.keys_at_once)}
        dial = Dial(**json.loads(self._dial.read_text()))
        if dial.start_ms is None:
            return start
        arrived = int((time.time() * 1000 - dial.start_ms) * load.rate / 1000)
        if load.keys + arrived <= row:
            return start
        return {"row": load.keys + arrived, "start_ms": dial.start_ms, "skew": dial.skew}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        cuts = np.linspace(start["row"], end["row"], self._load.partitions + 1).astype(np.int64)
        return [
            _UpdateRows(int(a), int(b), end["start_ms"], end["skew"])
            for a, b in pairwise(cuts)
            if b > a
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _UpdateRows)
        yield _rows(self._load, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the source holds no resources for committed rows."""


class TallySource(DataSource):
    """`spark.readStream.format("tally")` with the fields of `TallyLoad`, and `dial`, a file."""

    @classmethod
    def name(cls) -> str:
        return "tally"

    def schema(self) -> str:
        return "arrival timestamp, k long, payload int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = {key.lower(): value for key, value in self.options.items()}
        load = TallyLoad(**{name: int(options[name]) for name in TallyLoad.__dataclass_fields__})
        return _Reader(load, Path(options["dial"]))


def updates(spark: SparkSession, load: TallyLoad, dial: Path) -> DataFrame:
    """The stream of a load, controlled by the file `dial`."""
    spark.dataSource.register(TallySource)
    options = asdict(load) | {"dial": str(dial)}
    return spark.readStream.format("tally").options(**options).load()


@dataclass(frozen=True)
class TallyFeed(LiveSource):
    """The same rows for live couriers, in one partition, with uniform keys. A position is the number of rows
    read: {"row": n}."""

    load: TallyLoad
    dial: Path

    @property
    def schema(self) -> pa.Schema:
        return schema_of("arrival timestamp, k long, payload int")

    @property
    def arrival(self) -> str | None:
        return "arrival"

    def partitions(self) -> list[str]:
        return ["0"]

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        return {partition: {"row": 0} for partition in partitions}

    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        return TallyReader(self, positions["0"]["row"])


class TallyReader(LiveReader):
    """Returns keys in batches, then updates as they arrive."""

    def __init__(self, feed: TallyFeed, row: int) -> None:
        self._load, self._dial, self._row = feed.load, feed.dial, row
        self._start_ms: int | None = None
        self._next_keys = 0.0

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        until = time.monotonic() + wait_ms / 1000
        while (end := min(self._due(), self._row + most_rows)) <= self._row:
            if time.monotonic() > until:
                return []
            time.sleep(_TICK_S)
        part = _UpdateRows(self._row, end, self._start_ms, 0.0)
        self._row = end
        return [Polled(_rows(self._load, part), "0", {"row": end})]

    def _due(self) -> int:
        """Number of rows that have arrived by now."""
        load = self._load
        if self._start_ms is None:
            dial = Dial(**json.loads(self._dial.read_text()))
            if self._row < load.keys:
                now = time.monotonic()
                if not dial.keys or now < self._next_keys:
                    return self._row
                self._next_keys = now + _KEYS_S
                return min(load.keys, self._row + load.keys_at_once)
            if dial.start_ms is None:
                return self._row
            self._start_ms = dial.start_ms
        return load.keys + max(0, int((time.time() * 1000 - self._start_ms) * load.rate / 1000))

    def close(self) -> None:
        """Do nothing: the reader holds no resources."""


class TallyProcessor(KeyedProcessor):
    """Counts the updates of each key. A key's state is its count and a payload that never changes."""

    output_schema = "k long, n long"

    def init(self, handle: StateHandle) -> None:
        self._count = handle.get_value_state("count", "n long")
        self._payload = handle.get_value_state("payload", "bytes binary")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        size = batch.column("payload")[0].as_py()
        codes = batch.column("k").dictionary_encode()
        groups = codes.indices.to_numpy()
        before = pc.fill_null(pc.struct_field(self._count.get_many(batch), "n"), 0).to_numpy()
        now = before + np.bincount(groups)[groups]
        self._count.update_many(batch, pa.RecordBatch.from_arrays([pa.array(now)], ["n"]))
        if size:
            chance = np.random.default_rng(int(codes.dictionary[0].as_py()))
            data = pa.py_buffer(chance.bytes(size * batch.num_rows))
            ends = pa.array(np.arange(batch.num_rows + 1, dtype=np.int32) * size)
            payload = pa.BinaryArray.from_buffers(
                pa.binary(), batch.num_rows, [None, ends.buffers()[1], data]
            )
            self._payload.update_many(batch, pa.RecordBatch.from_arrays([payload], ["bytes"]))
        counts = np.zeros(len(codes.dictionary), np.int64)
        counts[groups] = now
        return pa.RecordBatch.from_arrays([codes.dictionary, pa.array(counts)], ["k", "n"])


class TallyByKey(KeyedProcessor):
    """The same as `TallyProcessor`, called for one key at a time.

    A batch of `handle_batch` holds rows of one slot. Chunks of live couriers have few rows per slot, so
    batch calls would cost about ten times as much there.
    """

    output_schema = TallyProcessor.output_schema

    def init(self, handle: StateHandle) -> None:
        self._count = handle.get_value_state("count", "n long")
        self._payload = handle.get_value_state("payload", "bytes binary")

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> list[tuple[int, int]]:
        (count,) = self._count.get() or (0,)
        for row in rows:
            count += 1
            if row.payload:
                self._payload.update((random.Random(key[0]).randbytes(row.payload),))
        self._count.update((count,))
        return [(key[0], count)]
