"""The auction as a keyed processor: each stock's order book and balances are its state.

Input rows are orders (order_id, account, side, price, quantity) with the key `stock`; output rows are
trades and refused orders.

>>> from penstock.testing import ProcessorTester
>>> tester = ProcessorTester(Auction(), "stock long, " + ORDER_COLUMNS, key="stock")
>>> tester.feed([(600_000, 1, 7, "sell", 1050, 400), (600_000, 2, 8, "buy", 1060, 500)])
[Row(stock=600000, event='trade', buy_order=2, sell_order=1, buyer=8, seller=7, price=1050, \
quantity=400)]
>>> tester.peek("bids", 600_000)
{Row(price=1060, number=2): Row(order=2, account=8, left=100)}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.operators.process.processor import KeyedProcessor
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.values import Row
from penstock_bench.workloads.exchange.book import BUY, Balance, Book, Order, Waiting

ORDER_COLUMNS = "order_id long, account long, side string, price long, quantity long"
"""Columns of an order besides its stock; prices are in hundredths."""

ENDOWMENT = Balance(cash=10_000_000, shares=3_000)
"""Cash and shares that an account has for each stock when it first trades it."""


class Auction(KeyedProcessor):
    """Matches the orders of each stock by price and time, and keeps accounts.

    Building a book from the state takes time for every waiting order, so books are cached. A stamp in
    the state identifies the sequence of orders that led to it. Only a cached book with the same stamp is
    used, so the cache stays right when epochs are undone, run again, or run on another host.
    """

    output_schema = (
        "stock long, event string, buy_order long, sell_order long, buyer long, seller long, "
        "price long, quantity long"
    )

    def __init__(self, endowment: Balance = ENDOWMENT) -> None:
        self._endowment = endowment

    def init(self, handle: StateHandle) -> None:
        self._seen = handle.get_value_state("seen", "orders long, stamp long")
        order = "order long, account long, left long"
        self._bids = handle.get_map_state("bids", "price long, number long", order)
        self._asks = handle.get_map_state("asks", "price long, number long", order)
        self._balances = handle.get_map_state("balances", "account long", "cash long, shares long")
        self._books: dict[int, tuple[int, Book]] = {}
        """Stock -> the stamp of a cached book, and the book."""

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> list[tuple[Any, ...]]:
        (stock,) = key
        book, stamp = self._book(stock)
        output = []
        for row in rows:
            order = Order(row.order_id, row.account, row.side, row.price, row.quantity)
            for trade in book.submit(order):
                refused = trade.buy_order is None or trade.sell_order is None
                output.append((stock, "refused" if refused else "trade", *trade))
            # Only numbers are hashed: hashes of text differ between processes.
            buys = order.side == BUY
            stamp = hash((stamp, order.id, order.account, buys, order.price, order.quantity))
        self._save(book)
        self._seen.update((book.arrived, stamp))
        self._books[stock] = (stamp, book)
        return output

    def _book(self, stock: int) -> tuple[Book, int]:
        """The book of the current stock, from the cache or built from the state, and its stamp."""
        arrived, stamp = self._seen.get() or (0, 0)
        kept, book = self._books.pop(stock, (None, None))
        if book is None or kept != stamp:
            book = Book(
                self._endowment,
                {tuple(place): Waiting(*order) for place, order in self._bids.iterator()},
                {tuple(place): Waiting(*order) for place, order in self._asks.iterator()},
                {account: Balance(*owns) for (account,), owns in self._balances.iterator()},
                arrived,
            )
        return book, stamp

    def _save(self, book: Book) -> None:
        """Write the book's changes to the state."""
        for state, touched, orders in (
            (self._bids, book.touched_bids, book.bids),
            (self._asks, book.touched_asks, book.asks),
        ):
            for place in sorted(touched):
                if place in orders:
                    state.update_value(place, orders[place])
                else:
                    state.remove_key(place)
            touched.clear()
        for account in sorted(book.touched_balances):
            self._balances.update_value((account,), book.balances[account])
        book.touched_balances.clear()
