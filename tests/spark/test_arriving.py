"""The source of arriving rows: each once, when its time has come, and the same again when asked."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.sim.shapes import Steady, shape
from penstock.sim.skews import Hotspot, Uniform, Zipf
from penstock.spark import arriving
from penstock.spark.arriving import Arriving, ArrivingReader
from penstock_bench.workloads.shaped import KeyedRows, shaped

CONTENT = KeyedRows(keys=2000, skew=Uniform())


class Clock:
    """Stands in for the module `time`."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def time(self) -> float:
        return self.now_ms / 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1_000_000)
    monkeypatch.setattr(arriving, "time", clock)
    return clock


def taken(reader: ArrivingReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    # partitions go to workers, and so does the reader
    copy = pickle.loads(pickle.dumps(reader))
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]
    return pa.Table.from_batches([batch for part in parts for batch in copy.read(part)])


def test_an_epoch_gets_what_has_arrived_and_no_more(clock: Clock) -> None:
    load = shape("burst(100, 5, 2s, 2s)")
    reader = ArrivingReader(Arriving(load, CONTENT, start_ms=1_000_000))
    offset, tables = reader.initialOffset(), []
    for now_ms in (1_000_500, 1_002_345, 1_002_345, 1_002_346, 1_006_000):
        clock.now_ms = now_ms
        newer = reader.latestOffset(offset, None)
        if newer != offset:
            tables.append(taken(reader, offset, newer))
            assert tables[-1]["arrival"].cast(pa.int64()).to_numpy().max() <= now_ms * 1000
        offset = newer
    rows = pa.concat_tables(tables)
    arrival_us = rows["arrival"].cast(pa.int64()).to_numpy() - 1_000_000_000
    assert len(rows) == 200 + 1000 + 200
    assert arrival_us.tolist() == load.arrival_us(np.arange(1400)).tolist()
    assert rows["v"].to_pylist() == [n % 1000 for n in range(1400)]


def test_without_a_start_rows_arrive_when_some_epochs_have_passed(clock: Clock) -> None:
    reader = ArrivingReader(Arriving(Steady(1000), CONTENT))
    offset: dict[str, Any] = reader.initialOffset()
    while offset["row"] < 600:
        newer = reader.latestOffset(offset, None)
        assert newer["row"] == offset["row"] + 100
        assert taken(reader, offset, newer)["arrival"].null_count == 100
        offset, clock.now_ms = newer, clock.now_ms + 300
    began_ms = clock.now_ms
    assert reader.latestOffset(offset, None) == offset
    clock.now_ms += 50
    newer = reader.latestOffset(offset, None)
    assert newer == {"row": 650, "start_ms": began_ms, "first": 600}
    rows = taken(reader, offset, newer)
    assert rows["v"].to_pylist() == list(range(600, 650))
    assert rows["arrival"].cast(pa.int64())[0].as_py() == began_ms * 1000 + 1000
    # a reader that comes later, after a restart, goes on with the same beginning
    clock.now_ms += 50
    again = ArrivingReader(Arriving(Steady(1000), CONTENT))
    assert again.latestOffset(newer, None) == {"row": 700, "start_ms": began_ms, "first": 600}


def test_many_rows_come_in_batches_and_are_the_same_in_any_cut(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = ({"row": row, "start_ms": 1_000_000, "first": 0} for row in (0, 10_000))
    whole = taken(ArrivingReader(Arriving(Steady(500), CONTENT, partitions=1)), begin, end)
    monkeypatch.setattr(arriving, "_AT_ONCE", 999)
    cut = taken(ArrivingReader(Arriving(Steady(500), CONTENT, partitions=7)), begin, end)
    assert cut.column("k").num_chunks > 10
    assert cut.combine_chunks() == whole.combine_chunks()


def test_a_hotspot_of_slots_is_one_of_slots() -> None:
    content = KeyedRows(keys=5000, skew=Hotspot(0.5, of=3, every_s=10), slots=64)
    number = np.arange(60_000)
    slots = content.slots_of(content.chosen_keys(number, number * 500))
    part = slots * 3 // 64
    for turn in range(3):
        shares = np.bincount(part[turn * 20_000 : (turn + 1) * 20_000], minlength=3) / 20_000
        assert shares[turn] == pytest.approx(0.5, abs=0.02)
        assert np.delete(shares, turn) == pytest.approx([0.25, 0.25], abs=0.02)


def test_zipf_is_one_of_keys() -> None:
    content = KeyedRows(keys=100, skew=Zipf(1.0))
    keys = content.chosen_keys(np.arange(50_000), np.zeros(50_000, np.int64))
    counts = np.sort(np.bincount(keys, minlength=100))[::-1]
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


def test_a_slot_without_a_key_is_refused() -> None:
    with pytest.raises(SettingError, match="are too few"):
        KeyedRows(keys=10, skew=Uniform(), slots=64)


@pytest.mark.slow
def test_a_flow_gets_every_row_once(spark: SparkSession, checkpoint: str) -> None:
    rows = shaped(spark, "burst(2000, 3, 1s, 1s)", "hotspot(0.8, 5, 2)", keys=2000, slots=64)
    flow = ps.flow(rows, arrival="arrival").key_by("k", slots=64)
    sink = ps.collect()
    query = flow.aggregate(n=ps.count(), total=ps.sum("v")).start(
        sink, checkpoint=checkpoint, hosts=2
    )
    taken = 0
    for _ in range(1200):
        taken = sum(epoch.rows for epoch in query.progress)
        if taken > 6000 or query.await_termination(0.1):
            break
    query.stop()
    assert query.exception() is None
    # Spark may have been stopped before it noted the last epoch's commit: the sink has it all the same.
    newest = query.progress[-1].epoch
    offset = json.loads(Path(checkpoint, "offsets", str(newest)).read_text().splitlines()[-1])
    number = np.arange(offset["row"])
    assert offset["row"] >= taken > 6000
    assert offset["first"] == 1200
    t_us = shape("burst(2000, 3, 1s, 1s)").arrival_us(np.maximum(number - offset["first"], 0))
    content = KeyedRows(2000, Hotspot(0.8, 5, 2), 64)
    keys = content.chosen_keys(number, np.where(number < offset["first"], 0, t_us))
    counts = np.bincount(keys, minlength=2000)
    totals = np.bincount(keys, number % 1000, minlength=2000)
    got = {k: (row["n"], row["total"]) for k, row in sink.latest("k").items()}
    expected = {k: (counts[k], totals[k]) for k in np.flatnonzero(counts)}
    assert {k: got.get(k) for k in expected | got if got.get(k) != expected.get(k)} == {}
