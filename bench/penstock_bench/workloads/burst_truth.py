"""What the queries of `burst_nexmark` should give, by DuckDB: an oracle for live runs.

Rows of a load follow from their numbers, and their times of arrival from its shape. So what a run
should have given is known from when its load began and how far the run came, whatever happened to it.
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

from penstock.model import milliseconds
from penstock.sim.shapes import Shape, shape
from penstock_bench.workloads.burst_nexmark import WINDOW, content, query
from penstock_bench.workloads.nexmark.columns import TIME

Row = dict[str, Any]
_TOLD = 3
"""So many of the rows that are wrong are told."""
_MICROSECOND, _1970 = timedelta(microseconds=1), datetime(1970, 1, 1, tzinfo=UTC)

_CLOSING = """
    SELECT {by}, closed AS window_start, closed + $size AS window_end, avg(price) AS price
    FROM (SELECT auction, start(arrival) AS closed, max(price) AS price
          FROM rows WHERE price IS NOT NULL GROUP BY ALL) AS bids
    JOIN (SELECT auction, start(arrival) AS closed, {by}
          FROM rows WHERE {by} IS NOT NULL) AS opened USING (auction, closed)
    GROUP BY ALL"""
_SQL = {
    "q1": "SELECT arrival, auction, CAST(price AS DECIMAL(19, 0)) * 0.908 AS price, bidder FROM rows",
    "q4": _CLOSING.format(by="category"),
    "q5": """
        SELECT auction, first AS window_start, first + 2 * $size AS window_end, num
        FROM (SELECT auction, start(arrival) - hop * $size AS first, count(*) AS num
              FROM rows, range(2) AS r (hop) GROUP BY ALL)
        QUALIFY num = max(num) OVER (PARTITION BY first)""",
    "q6": _CLOSING.format(by="seller"),
    "q7": """
        SELECT auction, first AS window_start, first + $size AS window_end, price
        FROM (SELECT auction, start(arrival) AS first, max(price) AS price FROM rows GROUP BY ALL)
        QUALIFY price = max(price) OVER (PARTITION BY first)""",
    "q8": """
        SELECT id, name, auctions, came AS window_start, came + $size AS window_end
        FROM (SELECT id, name, start(arrival) AS came FROM rows WHERE name IS NOT NULL)
        JOIN (SELECT seller AS id, start(arrival) AS came, count(*) AS auctions
              FROM rows WHERE seller IS NOT NULL GROUP BY ALL) USING (id, came)""",
}
"""Times are microseconds since 1970."""


@dataclass(frozen=True)
class BurstLoad:
    """A load as a run had it."""

    name: str
    """Of the query."""
    rate: str | Shape
    start_ms: int
    """Of 1970: when the load began."""
    first: int = 0
    """The number of its first row: those before it were the lead-in."""
    seed: int = 1
    window: str = WINDOW

    @cached_property
    def shape(self) -> Shape:
        return shape(self.rate)

    def rows(self, count: int) -> pa.Table:
        """The first rows with a time of arrival, so many of them, as the query gets them."""
        number = np.arange(count, dtype=np.int64)
        t_us = self.shape.arrival_us(number)
        held = content(self.name, self.seed)
        arrival = pa.array(self.start_ms * 1000 + t_us).cast(TIME)
        columns = held.rows(number + self.first, t_us)
        return pa.table([arrival, *columns], names=["arrival", *held.schema.names])

    def count(self, until_us: int) -> int:
        """How many rows arrive before a time of 1970, in microseconds."""
        # half a microsecond: a shape takes milliseconds, which are no whole numbers
        return int(self.shape.cumulative((until_us - 0.5) / 1000 - self.start_ms))


@dataclass(frozen=True)
class Compared:
    """What a run gave, held against what it should have given."""

    rows: int
    """That it should have given."""
    until_ms: float
    """Up to this time of arrival: to the end of the last window that it gave, or its last row."""
    missing: int
    extra: int
    some: tuple[Row, ...] = ()
    """Of the rows that are missing, then of those that should not be there."""

    @property
    def right(self) -> bool:
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.right:
            return f"all {self.rows} rows are right"
        told = "; ".join(map(str, self.some))
        return f"of {self.rows} rows {self.missing} are missing, {self.extra} are not right: {told}"


def truth(load: BurstLoad, count: int) -> list[Row]:
    """What a query gives of the first so many rows: of each window that a row has arrived after.

    Times are microseconds since 1970.

    >>> truth(BurstLoad("q7", "steady(500)", start_ms=0, window="100ms"), 60)
    [{'auction': 1004, 'window_start': 0, 'window_end': 100000, 'price': 60427377}]
    """
    if not count:
        return []
    newest_us = load.start_ms * 1000 + int(load.shape.arrival_us(np.array([count - 1]))[0])
    # a watermark is in whole milliseconds
    by_row = query(load.name).time == "arrival"
    return _due(load, count, newest_us if by_row else newest_us // 1000 * 1000)


def compared(load: BurstLoad, got: Iterable[Mapping[str, Any]]) -> Compared:
    """Hold the output rows of a run against the truth, as far as the run has come.

    That is as far as its output goes: what it lacks at its end is not found to be missing.
    """
    time = query(load.name).time
    given = [{name: _plain(value) for name, value in row.items()} for row in got]
    until_us = max((row[time] for row in given), default=load.start_ms * 1000)
    due = _counted(_due(load, load.count(until_us + 1), until_us))
    there = _counted(given)
    missing, extra = due - there, there - due
    wrong = [*list(missing)[:_TOLD], *list(extra)[:_TOLD]]
    return Compared(
        due.total(),
        until_us / 1000,
        missing.total(),
        extra.total(),
        tuple(dict(row) for row in wrong),
    )


def _due(load: BurstLoad, count: int, until_us: int) -> list[Row]:
    """What a query gives of the first so many rows until a time."""
    import duckdb  # only those who check something need it

    rows = load.rows(count)
    rows = rows.set_column(0, "arrival", rows.column("arrival").cast(pa.int64()))
    size_us = milliseconds(load.window) * 1000
    with duckdb.connect() as db:
        db.register("rows", rows)
        db.execute(f"CREATE MACRO start(t) AS t - t % {size_us}")
        sql = f"SELECT * FROM ({_SQL[load.name]}) WHERE {query(load.name).time} <= {until_us}"
        found = db.sql(sql.replace("$size", str(size_us))).to_arrow_table()
    return list(found.to_pylist())


def _counted(rows: Iterable[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """Times as microseconds since 1970; other values as they are."""
    return (value - _1970) // _MICROSECOND if isinstance(value, datetime) else value
