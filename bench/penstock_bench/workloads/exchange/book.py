"""The order book of one stock, with its traders' balances: a continuous double auction.

The best price trades first, and among equal prices the earliest order. A trade happens at the price of
the waiting order. The book is pure: orders in, trades out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Place = tuple[int, int]
"""A waiting order: its price, and its number in order of arrival."""

BUY, SELL = "buy", "sell"


class Order(NamedTuple):
    """A limit order. Prices are in hundredths."""

    id: int
    account: int
    side: str
    price: int
    quantity: int


class Trade(NamedTuple):
    """A trade, or a refused order, where the other side's fields are None."""

    buy_order: int | None
    sell_order: int | None
    buyer: int | None
    seller: int | None
    price: int
    quantity: int


class Waiting(NamedTuple):
    """A waiting order in the book."""

    order: int
    account: int
    left: int
    """Shares that have not traded yet. They are reserved: for a bid, `left` times its price is taken out
    of the account's cash; for an ask, `left` shares."""


class Balance(NamedTuple):
    """Cash and shares of an account that are not reserved, for one stock."""

    cash: int
    shares: int


@dataclass
class Book:
    """Waiting orders and balances of one stock.

    A new account starts with the endowment. An order is refused if its account's balance does not
    cover it, or if its price or quantity is not positive.

    >>> book = Book(Balance(cash=1000, shares=10))
    >>> book.submit(Order(1, 7, "sell", price=50, quantity=4))
    []
    >>> book.submit(Order(2, 8, "buy", price=60, quantity=5))
    [Trade(buy_order=2, sell_order=1, buyer=8, seller=7, price=50, quantity=4)]
    >>> book.bids, book.balances[8]
    ({(60, 2): Waiting(order=2, account=8, left=1)}, Balance(cash=740, shares=14))
    """

    endowment: Balance
    bids: dict[Place, Waiting] = field(default_factory=dict)
    asks: dict[Place, Waiting] = field(default_factory=dict)
    balances: dict[int, Balance] = field(default_factory=dict)
    arrived: int = 0
    """Number of orders so far."""

    def __post_init__(self) -> None:
        self.touched_bids: set[Place] = set()
        self.touched_asks: set[Place] = set()
        self.touched_balances: set[int] = set()
        """Changed entries since the caller last cleared these sets."""
        # Heaps with the best price on top: the highest bid, the lowest ask.
        self._best_bids = [(-price, number) for price, number in self.bids]
        self._best_asks = list(self.asks)
        heapify(self._best_bids)
        heapify(self._best_asks)

    def submit(self, order: Order) -> list[Trade]:
        """Process an order; return its trades, or one row if it is refused."""
        if order.side not in (BUY, SELL):
            raise ValueError(f"the side of an order is {order.side!r}: use 'buy' or 'sell'")
        self.arrived += 1
        if not self._reserve(order):
            return [_refused(order)]
        buys = order.side == BUY
        trades, left = self._match(order, buys)
        if left:
            place = (order.price, self.arrived)
            waiting = Waiting(order.id, order.account, left)
            if buys:
                self.bids[place] = waiting
                self.touched_bids.add(place)
                heappush(self._best_bids, (-order.price, self.arrived))
            else:
                self.asks[place] = waiting
                self.touched_asks.add(place)
                heappush(self._best_asks, place)
        return trades

    def _reserve(self, order: Order) -> bool:
        """Reserve the cash or shares for the order; False if its account does not have them."""
        if order.price <= 0 or order.quantity <= 0:
            return False
        cash, shares = self.balances.get(order.account, self.endowment)
        if order.side == BUY:
            cash -= order.price * order.quantity
        else:
            shares -= order.quantity
        if cash < 0 or shares < 0:
            return False
        self.balances[order.account] = Balance(cash, shares)
        self.touched_balances.add(order.account)
        return True

    def _match(self, order: Order, buys: bool) -> tuple[list[Trade], int]:
        """Match an order with waiting ones; return the trades, and the shares that are left."""
        best, waiting = (self._best_asks, self.asks) if buys else (self._best_bids, self.bids)
        touched = self.touched_asks if buys else self.touched_bids
        limit = order.price if buys else -order.price
        trades, left = [], order.quantity
        while left and best and best[0][0] <= limit:
            ranked, number = best[0]
            price = ranked if buys else -ranked
            place = (price, number)
            other = waiting[place]
            quantity = min(left, other.left)
            left -= quantity
            touched.add(place)
            if quantity == other.left:
                del waiting[place]
                heappop(best)
            else:
                waiting[place] = Waiting(other.order, other.account, other.left - quantity)
            if buys:
                # The reservation was at the order's own price, which may be higher.
                self._credit(order.account, (order.price - price) * quantity, quantity)
                self._credit(other.account, price * quantity, 0)
                ids = (order.id, other.order, order.account, other.account)
            else:
                self._credit(other.account, 0, quantity)
                self._credit(order.account, price * quantity, 0)
                ids = (other.order, order.id, other.account, order.account)
            trades.append(Trade(*ids, price, quantity))
        return trades, left

    def _credit(self, account: int, cash: int, shares: int) -> None:
        before = self.balances[account]
        self.balances[account] = Balance(before.cash + cash, before.shares + shares)
        self.touched_balances.add(account)


def _refused(order: Order) -> Trade:
    if order.side == BUY:
        return Trade(order.id, None, order.account, None, order.price, order.quantity)
    return Trade(None, order.id, None, order.account, order.price, order.quantity)
