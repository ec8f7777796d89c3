"""Queries on events that arrive live, and their expected output.

>>> query = live_flow("q5", spark, "sine(30000, 10000, 90s)").start(          # doctest: +SKIP
...     ps.to("console"), checkpoint="ck", hosts=3)
>>> query = burst_flow("q7", spark, "burst(2000, 5, 20s, 30s)").start(       # doctest: +SKIP
...     ps.to("console"), checkpoint="ck", hosts=2)

By time of arrival there are q2, q5 and q8. Under bursts there are q1, q4, q5, q6, q7 and q8, as in
Sponge: keyed steps come before joins, so that functions can take most rows. An output row then has the
bounds of its window.

The rows of a load depend only on their numbers, and their arrival times on its shape. So the expected
output of a run depends only on the start of its load and on how far the run came, not on its faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.model import milliseconds
from penstock.sim.shapes import Shape, shape
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads import bursts
from penstock_bench.workloads.nexmark.arriving_events import LiveEvents, MixedEvents, scaled_down
from penstock_bench.workloads.nexmark.catalog import QUERIES
from penstock_bench.workloads.nexmark.columns import TIME
from penstock_bench.workloads.nexmark.query import BurstContent, BurstForm

WINDOW = "2s"
"""Length of the windows of queries under bursts."""
BURSTS = {
    **{name: query.burst for name, query in QUERIES.items() if query.burst is not None},
    **bursts.BURSTS,
}
"""Name -> form under bursts, of NEXMark's queries and of other workloads."""

Row = dict[str, Any]
_SHOWN = 3
"""Most wrong rows of each kind that a message shows."""
_MICROSECOND, _1970 = timedelta(microseconds=1), datetime(1970, 1, 1, tzinfo=UTC)


def live_flow(
    name: str,
    spark: SparkSession,
    rate: str | Shape,
    slots: int = 64,
    seed: int = 1,
    partitions: int = 2,
    start_ms: int | None = None,
) -> ps.Flow:
    """The query of this name (q2, q5, q8) on events that arrive with the shape `rate`, all streams
    together. Without `start_ms` they begin when the query is up; see `arriving`."""
    live = QUERIES[name].live if name in QUERIES else None
    if live is None:
        raise SettingError(f"there is no live query {name!r}", hint="use q2, q5 or q8")
    return live(LiveEvents(spark, shape(rate), seed, partitions, start_ms), slots)


# -- bursts


def burst_form(name: str) -> BurstForm:
    """The form of this query under bursts."""
    if name not in BURSTS:
        raise SettingError(
            f"there is no query {name!r} for bursts", hint=f"use one of {', '.join(BURSTS)}"
        )
    return BURSTS[name]


def burst_content(name: str, seed: int = 1) -> BurstContent:
    """The content of a query's rows."""
    form = burst_form(name)
    if form.content is not None:
        return form.content(seed)
    return MixedEvents(form.reads, scaled_down(seed))


def burst_steps(name: str, rows: DataFrame, window: str = WINDOW, slots: int = 64) -> ps.Flow:
    """The query on rows with their time of arrival in the column `arrival`."""
    came = ps.flow(rows, arrival="arrival", event_time="arrival")
    return burst_form(name).steps(came, window, slots)


def burst_flow(
    name: str,
    spark: SparkSession,
    rate: str | Shape,
    slots: int = 64,
    seed: int = 1,
    partitions: int = 2,
    start_ms: int | None = None,
    window: str = WINDOW,
) -> ps.Flow:
    """The query of this name on the events that it reads, which arrive with the shape `rate`.

    Without `start_ms` they begin when the query is up; see `arriving`. Rows of the lead-in have no
    time: they do not reach the query and are not counted in its progress.
    """
    load = Arriving(shape(rate), burst_content(name, seed), partitions, start_ms)
    rows = arriving(spark, f"nexmark_{name}", load).where("arrival IS NOT NULL")
    return burst_steps(name, rows, window, slots)


# -- the truth


@dataclass(frozen=True)
class BurstLoad:
    """The load of a run."""

    name: str
    """The query's name."""
    rate: str | Shape
    start_ms: int
    """Start of the load, in milliseconds since 1970."""
    first: int = 0
    """Number of its first row; rows before it are the lead-in."""
    seed: int = 1
    window: str = WINDOW

    @cached_property
    def shape(self) -> Shape:
        return shape(self.rate)

    def rows(self, count: int) -> pa.Table:
        """The first `count` rows with a time of arrival, as the query gets them."""
        number = np.arange(count, dtype=np.int64)
        t_us = self.shape.arrival_us(number)
        held = burst_content(self.name, self.seed)
        arrival = pa.array(self.start_ms * 1000 + t_us).cast(TIME)
        columns = held.rows(number + self.first, t_us)
        return pa.table([arrival, *columns], names=["arrival", *held.schema.names])

    def count(self, until_us: int) -> int:
        """Number of rows that arrive before `until_us`, in microseconds of Unix time."""
        # Half a microsecond keeps the conversion to fractional milliseconds safe from rounding.
        return int(self.shape.cumulative((until_us - 0.5) / 1000 - self.start_ms))


@dataclass(frozen=True)
class Compared:
    """The output of a run compared with its expected output."""

    rows: int
    """Number of expected rows."""
    until_ms: float
    """Time of arrival up to which rows are compared: the end of the last window, or the last row."""
    missing: int
    extra: int
    some: tuple[Row, ...] = ()
    """Some missing rows, then some unexpected ones."""

    @property
    def right(self) -> bool:
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.right:
            return f"all {self.rows} rows are right"
        examples = "; ".join(map(str, self.some))
        return (
            f"of {self.rows} expected rows {self.missing} are missing, "
            f"{self.extra} rows are unexpected: {examples}"
        )


def truth(load: BurstLoad, count: int) -> list[Row]:
    """The expected output for the first `count` rows: that of each window that a later row closed.

    Times are microseconds since 1970.

    >>> truth(BurstLoad("q7", "steady(500)", start_ms=0, window="100ms"), 60)
    [{'auction': 1004, 'window_start': 0, 'window_end': 100000, 'price': 60427377}]
    """
    if not count:
        return []
    newest_us = load.start_ms * 1000 + int(load.shape.arrival_us(np.array([count - 1]))[0])
    # A watermark is in whole milliseconds.
    by_row = burst_form(load.name).time == "arrival"
    return _due(load, count, newest_us if by_row else newest_us // 1000 * 1000)


def compared(load: BurstLoad, got: Iterable[Mapping[str, Any]]) -> Compared:
    """Compare the output rows of a run with the expected rows, up to the time of its last output row.

    Rows that are missing at the very end are therefore not noticed.
    """
    time = burst_form(load.name).time
    output = [{name: _plain(value) for name, value in row.items()} for row in got]
    until_us = max((row[time] for row in output), default=load.start_ms * 1000)
    due = _counted(_due(load, load.count(until_us + 1), until_us))
    actual = _counted(output)
    missing, extra = due - actual, actual - due
    wrong = [*list(missing)[:_SHOWN], *list(extra)[:_SHOWN]]
    return Compared(
        due.total(),
        until_us / 1000,
        missing.total(),
        extra.total(),
        tuple(dict(row) for row in wrong),
    )


def _due(load: BurstLoad, count: int, until_us: int) -> list[Row]:
    """The expected output for the first `count` rows that is due by `until_us`."""
    import duckdb  # only those who check something need it

    form = burst_form(load.name)
    rows = load.rows(count)
    rows = rows.set_column(0, "arrival", rows.column("arrival").cast(pa.int64()))
    size_us = milliseconds(load.window) * 1000
    with duckdb.connect() as db:
        db.register("rows", rows)
        db.execute(f"CREATE MACRO start(t) AS t - t % {size_us}")
        sql = f"SELECT * FROM ({form.truth}) WHERE {form.time} <= {until_us}"
        expected = db.sql(sql.replace("$size", str(size_us))).to_arrow_table()
    return list(expected.to_pylist())


def _counted(rows: Iterable[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """A time as microseconds since 1970; other values unchanged."""
    return (value - _1970) // _MICROSECOND if isinstance(value, datetime) else value
