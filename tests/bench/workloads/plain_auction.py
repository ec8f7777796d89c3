"""A simple continuous auction of one stock, as a reference for `book.py`.

Every order is compared with all open orders, and the reserves of an account are summed over its open orders
each time. It is slow on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock_bench.workloads.exchange.book import Balance, Order, Trade


@dataclass
class OpenOrder:
    """An accepted order that still has shares to trade."""

    order: Order
    left: int


class PlainAuction:
    """Open orders, in order of arrival, and the balances of accounts.

    >>> auction = PlainAuction(Balance(cash=1000, shares=10))
    >>> auction.run([Order(1, 7, "sell", 50, 4), Order(2, 8, "buy", 60, 5)])
    [Trade(buy_order=2, sell_order=1, buyer=8, seller=7, price=50, quantity=4)]
    >>> auction.free(8)
    Balance(cash=740, shares=14)
    """

    def __init__(self, endowment: Balance) -> None:
        self.endowment = endowment
        self.owned: dict[int, Balance] = {}
        """Balances of accounts, including the reserves of their open orders."""
        self.open: list[OpenOrder] = []

    def run(self, orders: Iterable[Order]) -> list[Trade]:
        return [trade for order in orders for trade in self.submit(order)]

    def submit(self, order: Order) -> list[Trade]:
        if not self._covered(order):
            if order.side == "buy":
                return [Trade(order.id, None, order.account, None, order.price, order.quantity)]
            return [Trade(None, order.id, None, order.account, order.price, order.quantity)]
        self.owned.setdefault(order.account, self.endowment)
        trades, new = [], OpenOrder(order, order.quantity)
        while new.left > 0:
            candidates = [each for each in self.open if _crosses(order, each.order)]
            if not candidates:
                break
            # `min` and `max` take the first of equals: the one that came first
            if order.side == "buy":
                best = min(candidates, key=lambda each: each.order.price)
                buy, sell = order, best.order
            else:
                best = max(candidates, key=lambda each: each.order.price)
                buy, sell = best.order, order
            quantity, price = min(new.left, best.left), best.order.price
            self._own(buy.account, -price * quantity, quantity)
            self._own(sell.account, price * quantity, -quantity)
            trades.append(Trade(buy.id, sell.id, buy.account, sell.account, price, quantity))
            new.left -= quantity
            best.left -= quantity
            self.open = [each for each in self.open if each.left > 0]
        if new.left > 0:
            self.open.append(new)
        return trades

    def free(self, account: int) -> Balance:
        """The balance of an account without the reserves of its open orders."""
        cash, shares = self.owned.get(account, self.endowment)
        for each in self.open:
            if each.order.account == account:
                if each.order.side == "buy":
                    cash -= each.order.price * each.left
                else:
                    shares -= each.left
        return Balance(cash, shares)

    def _covered(self, order: Order) -> bool:
        free = self.free(order.account)
        if order.price <= 0 or order.quantity <= 0:
            return False
        if order.side == "buy":
            return order.price * order.quantity <= free.cash
        return order.quantity <= free.shares

    def _own(self, account: int, cash: int, shares: int) -> None:
        before = self.owned[account]
        self.owned[account] = Balance(before.cash + cash, before.shares + shares)


def _crosses(order: Order, waiting: Order) -> bool:
    if order.side == "buy":
        return waiting.side == "sell" and waiting.price <= order.price
    return waiting.side == "buy" and waiting.price >= order.price
