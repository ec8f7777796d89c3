"""A part of the day as a load: the arrival times of its orders, and their shares per stock."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.state.variables.ddl import schema_of
from penstock_bench.workloads.exchange.auction import ENDOWMENT
from penstock_bench.workloads.exchange.book import Order, Trade
from penstock_bench.workloads.exchange.live import excerpt, flow
from penstock_bench.workloads.exchange.orders import SCHEMA, Traders, orders
from penstock_bench.workloads.exchange.trace import Day
from tests.bench.workloads.plain_auction import PlainAuction


@pytest.fixture(scope="module")
def day() -> Day:
    random = np.random.default_rng(2)
    times = np.sort(random.integers(0, 60_000, 50_000)).astype(np.int32)
    return Day(times, random.integers(0, 100, 50_000).astype(np.int16))


@pytest.mark.parametrize(("one_in", "speed"), [(1, 1), (7, 1), (7, 4)])
def test_orders_come_when_they_did(day: Day, one_in: int, speed: int) -> None:
    shape, rows = excerpt(day, 10, 20 / speed, one_in, Traders(), speed)
    which = day.between(10_000, 30_000)
    kept = day.arrival_ms[which][::one_in] - 10_000
    assert shape.cumulative(20_000 / speed) == shape.cumulative(10_000_000) == len(kept)
    came_us = shape.arrival_us(np.arange(len(kept)))
    assert np.array_equal((came_us - 1) // 100_000, kept // (100 * speed))
    stocks = rows.rows(np.arange(len(kept)), came_us)[0].to_numpy() - 600_000
    assert np.array_equal(stocks, day.stock[which][::one_in])


def test_rows_are_orders_also_on_a_worker(day: Day) -> None:
    _, rows = excerpt(day, 0, 60, 1, Traders())
    schema = schema_of(rows.columns)
    assert schema.names == SCHEMA.names[1:]
    copy = pickle.loads(pickle.dumps(rows))
    number, t_us = np.arange(49_990, 50_010), np.full(20, 5_000_000)
    columns = copy.rows(number, t_us)
    assert pa.RecordBatch.from_arrays(columns, schema=schema).num_rows == 20
    assert columns[1].to_pylist() == number.tolist()


def test_a_time_without_orders_is_refused(day: Day) -> None:
    with pytest.raises(SettingError, match="no orders"):
        excerpt(day, 100, 20, 1, Traders())


def test_the_flow_trades_as_a_plain_auction_does(spark: SparkSession, day: Day) -> None:
    table = orders(day, slice(0, 3000), Traders(accounts=20))
    sink = ps.collect()
    source = spark.createDataFrame(table).coalesce(1)
    assert flow(source, slots=8).start(sink, hosts=2).await_termination(240)
    plain: dict[int, PlainAuction] = {}
    expected = []
    for row in table.drop_columns("arrival").to_pylist():
        stock = row.pop("stock")
        order = Order(*row.values())
        trades = plain.setdefault(stock, PlainAuction(ENDOWMENT)).submit(order)
        expected += [(stock, *trade) for trade in trades]
    got = [(row["stock"], *(row[name] for name in Trade._fields)) for row in sink.rows()]
    assert sorted(got, key=str) == sorted(expected, key=str)
    assert len(got) > 500
