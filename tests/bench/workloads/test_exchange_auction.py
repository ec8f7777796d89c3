"""The auction makes the same trades as a simple one, and neither cash nor shares appear or vanish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StepError
from penstock.state.variables.values import Row
from penstock.testing import ProcessorTester
from penstock_bench.workloads.exchange.auction import ENDOWMENT, ORDER_COLUMNS, Auction
from penstock_bench.workloads.exchange.book import Balance, Book, Order, Trade
from penstock_bench.workloads.exchange.orders import Traders, orders
from penstock_bench.workloads.exchange.trace import Day
from tests.bench.workloads.plain_auction import PlainAuction

SMALL = Balance(cash=200, shares=20)

some_orders = st.lists(
    st.builds(
        Order,
        st.integers(1, 1_000_000),
        st.integers(1, 4),
        st.sampled_from(["buy", "sell"]),
        st.integers(0, 12),
        st.integers(0, 8),
    ),
    max_size=60,
)


def assert_equal(book: Book, plain: PlainAuction) -> None:
    waiting = sorted(
        (each.order.side, each.order.price, each.order.id, each.order.account, each.left)
        for each in plain.open
    )
    mine = [("buy", price, *order) for (price, _), order in book.bids.items()]
    mine += [("sell", price, *order) for (price, _), order in book.asks.items()]
    assert sorted(mine) == waiting
    assert {a: plain.free(a) for a in plain.owned} == book.balances


def assert_conserved(book: Book) -> None:
    """Check that all cash and shares are there: free, or reserved for open orders."""
    set_aside = sum(price * order.left for (price, _), order in book.bids.items())
    cash = sum(balance.cash for balance in book.balances.values()) + set_aside
    offered = sum(order.left for order in book.asks.values())
    shares = sum(balance.shares for balance in book.balances.values()) + offered
    assert cash == len(book.balances) * book.endowment.cash
    assert shares == len(book.balances) * book.endowment.shares
    assert all(b.cash >= 0 and b.shares >= 0 for b in book.balances.values())
    if book.bids and book.asks:
        assert max(price for price, _ in book.bids) < min(price for price, _ in book.asks)


@given(some_orders)
def test_a_book_is_a_plain_auction(orders: list[Order]) -> None:
    book, plain = Book(SMALL), PlainAuction(SMALL)
    for order in orders:
        assert book.submit(order) == plain.submit(order)
        assert_conserved(book)
    assert_equal(book, plain)


def test_the_best_price_comes_first_and_then_who_came_first() -> None:
    book = Book(SMALL)
    for id, price in ((1, 10), (2, 9), (3, 9), (4, 8)):
        assert book.submit(Order(id, id, "sell", price, 2)) == []
    trades = book.submit(Order(5, 5, "buy", 9, 5))
    assert [(t.sell_order, t.price, t.quantity) for t in trades] == [
        (4, 8, 2),
        (2, 9, 2),
        (3, 9, 1),
    ]
    # the unspent part of the reserve is free again
    assert book.balances[5] == Balance(cash=200 - 8 * 2 - 9 * 3, shares=25)
    assert [order.left for order in book.asks.values()] == [2, 1]


def test_orders_without_cover_are_refused() -> None:
    book = Book(SMALL)
    assert book.submit(Order(1, 1, "buy", 10, 20)) == []
    assert book.submit(Order(2, 1, "buy", 1, 1)) == [Trade(2, None, 1, None, 1, 1)]
    assert book.submit(Order(3, 2, "sell", 11, 21)) == [Trade(None, 3, None, 2, 11, 21)]
    assert book.submit(Order(4, 3, "buy", 0, 5)) == [Trade(4, None, 3, None, 0, 5)]
    assert 2 not in book.balances
    # bought shares can be sold, and earned cash can be spent
    assert len(book.submit(Order(5, 2, "sell", 10, 20))) == 1
    assert book.submit(Order(6, 1, "sell", 12, 40)) == []
    assert book.submit(Order(7, 2, "buy", 10, 40)) == []


def test_an_account_may_trade_with_itself() -> None:
    book = Book(SMALL)
    book.submit(Order(1, 1, "sell", 5, 4))
    assert len(book.submit(Order(2, 1, "buy", 7, 4))) == 1
    assert book.balances[1] == SMALL


def made_up(rows: int, stocks: int, seed: int) -> list[tuple[int, Order]]:
    """Orders of a day for few stocks and accounts, with many trades and some refusals."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 3_600_000, rows)).astype(np.int32)
    day = Day(times, random.integers(0, stocks, rows).astype(np.int16))
    table = orders(day, slice(0, rows), Traders(seed, accounts=50)).drop_columns("arrival")
    return [(row["stock"], Order(*list(row.values())[1:])) for row in table.to_pylist()]


def waiting_in(tester: ProcessorTester, stock: int) -> list[tuple[Any, ...]]:
    """(order, account, left) of all orders in a stock's book."""
    books = [tester.peek(name, stock) for name in ("bids", "asks")]
    return [tuple(order) for book in books if isinstance(book, dict) for order in book.values()]


def test_the_processor_trades_as_a_plain_auction_does_through_restarts() -> None:
    day = made_up(4000, stocks=3, seed=5)
    tester = ProcessorTester(Auction(), f"stock long, {ORDER_COLUMNS}", key="stock")
    plain: dict[int, PlainAuction] = {}
    got, expected = [], []
    for start in range(0, len(day), 250):
        if start % 1000 == 0:
            tester.restart()
        batch = day[start : start + 250]
        got += tester.feed([(stock, *order) for stock, order in batch])
        for stock, order in batch:
            auction = plain.setdefault(stock, PlainAuction(ENDOWMENT))
            expected += [(stock, trade) for trade in auction.submit(order)]
    refused = [row for row in got if row.event == "refused"]
    assert 20 < len(refused) < len(got) / 2
    assert all((r.buy_order is None) != (r.sell_order is None) for r in refused)
    for stock, auction in plain.items():
        mine = [Trade(*row[2:]) for row in got if row.stock == stock]
        assert mine == [trade for of, trade in expected if of == stock]
        balances = tester.peek("balances", stock)
        assert balances == {(a,): tuple(auction.free(a)) for a in auction.owned}
        assert sorted(waiting_in(tester, stock)) == sorted(
            (each.order.id, each.order.account, each.left) for each in auction.open
        )
        seen = tester.peek("seen", stock)
        assert isinstance(seen, Row)
        assert seen.orders == sum(of == stock for of, _ in day)


def test_a_book_of_an_epoch_that_failed_is_not_used_again() -> None:
    tester = ProcessorTester(Auction(), f"stock long, {ORDER_COLUMNS}", key="stock")
    tester.feed([(1, 1, 1, "sell", 10, 5)])
    with pytest.raises(StepError, match="use 'buy' or 'sell'"):
        # stock 2 passes, stock 1 trades and then fails: the whole epoch is taken back
        tester.feed([(2, 2, 2, "sell", 9, 5), (1, 3, 2, "buy", 10, 5), (1, 4, 2, "hold", 10, 5)])
    assert tester.feed([(2, 5, 3, "buy", 9, 1)]) == []
    (trade,) = tester.feed([(1, 6, 3, "buy", 10, 3)])
    assert (trade.sell_order, trade.quantity) == (1, 3)


def test_a_bad_order_is_set_aside_and_the_others_trade() -> None:
    tester = ProcessorTester(
        Auction(), f"stock long, {ORDER_COLUMNS}", key="stock", on_error="dead_letter"
    )
    rows = [(1, 1, 1, "sell", 10, 5), (1, 2, 2, "hold", 10, 5), (1, 3, 3, "buy", 10, 4)]
    (trade,) = tester.feed(rows)
    assert (trade.buy_order, trade.sell_order, trade.quantity) == (3, 1, 4)
    assert len(tester.dead_letters) == 1
    assert waiting_in(tester, 1) == [(1, 1, 1)]


def test_the_cache_spares_building_books_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    built, made = [], Book.__post_init__

    def counted(book: Book) -> None:
        built.append(book)
        made(book)

    monkeypatch.setattr(Book, "__post_init__", counted)
    tester = ProcessorTester(Auction(), f"stock long, {ORDER_COLUMNS}", key="stock")
    for start in range(0, 300, 10):
        tester.feed([(n % 2, n, n % 7, "buy", 1000, 100) for n in range(start, start + 10)])
    assert len(built) == 2
    tester.restart()
    tester.feed([(0, 1000, 1, "sell", 1000, 100)])
    assert len(built) == 3
