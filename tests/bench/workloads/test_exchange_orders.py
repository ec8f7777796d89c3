"""Orders of a day: they do not depend on the chunks, are plausible, and enough of them trade."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock_bench.workloads.exchange.auction import ENDOWMENT
from penstock_bench.workloads.exchange.book import Book, Order
from penstock_bench.workloads.exchange.orders import FIRST_ARRIVAL_MS, LOT, SCHEMA, Traders, orders
from penstock_bench.workloads.exchange.trace import FIRST_STOCK, STOCKS, Day


@pytest.fixture(scope="module")
def day() -> Day:
    random = np.random.default_rng(2)
    times = np.sort(random.integers(0, 14_400_000, 30_000)).astype(np.int32)
    return Day(times, random.integers(0, STOCKS, 30_000).astype(np.int16))


def test_orders_are_consistent_with_the_trace(day: Day) -> None:
    table = orders(day, slice(0, len(day)))
    assert table.schema == SCHEMA
    assert np.array_equal(table["stock"].to_numpy(), day.stock.astype(int) + FIRST_STOCK)
    arrival_ms = table["arrival"].cast(pa.int64()).to_numpy() // 1000
    assert np.array_equal(arrival_ms - FIRST_ARRIVAL_MS, day.arrival_ms)
    assert table["order_id"].to_pylist() == list(range(len(day)))


def test_orders_are_the_same_in_any_cut(day: Day) -> None:
    whole = orders(day, slice(0, 1000), Traders(seed=4))
    parts = [orders(day, slice(start, start + 70), Traders(seed=4)) for start in range(0, 1000, 70)]
    assert pa.concat_tables(parts).slice(0, 1000).combine_chunks() == whole.combine_chunks()
    assert orders(day, slice(0, 1000), Traders(seed=5)) != whole


def test_prices_and_quantities_are_plausible(day: Day) -> None:
    table = orders(day, slice(0, len(day)))
    price, quantity = table["price"].to_numpy(), table["quantity"].to_numpy()
    worth = Traders().worth(day.stock, day.arrival_ms / 1000)
    assert 250 < price.min() < 400
    assert 8000 < price.max() < 10_000
    assert np.quantile(np.abs(price / worth - 1), 0.9) < 0.01
    assert (quantity % LOT == 0).all()
    assert quantity.min() == LOT
    assert 250 < quantity.mean() < 450
    assert pc.mean(pc.equal(table["side"], "buy")).as_py() == pytest.approx(0.5, abs=0.02)
    assert pc.count_distinct(table["account"]).as_py() > 4900


def test_most_orders_trade_and_the_rest_waits() -> None:
    n = 20_000
    times = np.sort(np.random.default_rng(3).integers(0, 14_400_000, n)).astype(np.int32)
    table = orders(Day(times, np.zeros(n, np.int16)), slice(0, n))
    columns = [
        table[name].to_pylist() for name in ("order_id", "account", "side", "price", "quantity")
    ]
    book = Book(ENDOWMENT)
    trades = [t for row in zip(*columns, strict=True) for t in book.submit(Order(*row))]
    done = sum(t.quantity for t in trades if t.buy_order is not None and t.sell_order is not None)
    assert 0.6 < 2 * done / sum(columns[4]) < 0.98
    assert 0.03 < (len(book.bids) + len(book.asks)) / n < 0.25
