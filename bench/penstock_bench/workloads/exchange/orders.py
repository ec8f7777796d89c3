"""The orders of a day: who wants to buy or sell how many shares at which price.

All of an order follows from the seed, its number, its stock and its time: whichever part of a day
is made, wherever, it is the same. Traders set prices around what a stock is worth, which moves
slowly over the day: about half of the orders trade at once, others wait for their price to come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_bench.workloads.draws import Draws, Numbers
from penstock_bench.workloads.exchange.book import BUY, SELL
from penstock_bench.workloads.exchange.trace import FIRST_STOCK, Day

ACCOUNTS = 5_000
FIRST_ARRIVAL_MS = 1_577_957_400_000
"""When the first session opens: 2020-01-02T09:30:00Z."""
LOT = 100
"""Quantities are multiples of it."""

_LOWEST, _TIMES_HIGHER = 300, 30.0
"""Hundredths: what a share of the cheapest stock is worth, and the dearest in terms of it."""
_SWINGS = (("day", 0.02, 3600, 3 * 3600), ("minutes", 0.004, 180, 600))
"""(name, part of the price, seconds from ... to ...): how what a stock is worth moves."""
_SPREAD = 0.0015
"""Part of the price: how far apart traders are."""
_MEAN_LOTS = 3.0

Floats = npt.NDArray[np.float64]

SCHEMA = pa.schema(
    [
        ("arrival", pa.timestamp("us", tz="UTC")),
        ("stock", pa.int64()),
        ("order_id", pa.int64()),
        ("account", pa.int64()),
        ("side", pa.string()),
        ("price", pa.int64()),
        ("quantity", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Traders:
    """Who trades, by seed.

    >>> orders = Traders(seed=1).orders(np.arange(2), stock=np.array([0, 5]), t_s=np.zeros(2))
    >>> [len(column) for column in orders]
    [2, 2, 2, 2, 2, 2]
    """

    seed: int = 1
    accounts: int = ACCOUNTS

    def orders(self, number: Numbers, stock: npt.NDArray[np.int16], t_s: Floats) -> list[pa.Array]:
        """The columns of `SCHEMA` behind arrival, for orders of these numbers, stocks and times."""
        draws = Draws(self.seed, number)
        buys = draws.below(2, "side") == 0
        # from the logistic distribution: most orders are near, few are far away
        unit = np.clip(draws.unit("price"), 1e-9, 1 - 1e-9)
        away = np.log(unit / (1 - unit)) * _SPREAD
        price = self.worth(stock, t_s) * np.where(buys, 1 - away, 1 + away)
        lots = 1 + np.floor(-np.log1p(-draws.unit("quantity")) * _MEAN_LOTS)
        return [
            pa.array(FIRST_STOCK + stock.astype(np.int64)),
            pa.array(number),
            pa.array(draws.below(self.accounts, "account")),
            pa.array([BUY, SELL]).take(pa.array(np.where(buys, 0, 1))),
            pa.array(np.maximum(np.rint(price), 1).astype(np.int64)),
            pa.array(LOT * lots.astype(np.int64)),
        ]

    def worth(self, stock: npt.NDArray[np.int16], t_s: Floats) -> Floats:
        """What a share is worth at a time, in hundredths."""
        draws = Draws(self.seed, stock.astype(np.int64))
        worth = _LOWEST * _TIMES_HIGHER ** draws.unit("worth")
        for name, size, shortest, longest in _SWINGS:
            period_s = shortest + (longest - shortest) * draws.unit(f"{name} period")
            turns = t_s / period_s + draws.unit(f"{name} phase")
            worth = worth * (1 + size * np.sin(2 * np.pi * turns))
        return np.asarray(worth, np.float64)


def orders(day: Day, which: slice, traders: Traders | None = None) -> pa.Table:
    """Orders of a day, such as `day.between(0, 60_000)`, in their order of arrival.

    >>> day = Day(np.array([0, 5, 5], np.int32), np.array([7, 0, 7], np.int16))
    >>> table = orders(day, slice(1, 3))
    >>> table["stock"].to_pylist(), table["order_id"].to_pylist()
    ([600000, 600007], [1, 2])
    """
    start, end, _ = which.indices(len(day))
    arrival_ms = day.arrival_ms[start:end].astype(np.int64)
    number = np.arange(start, end, dtype=np.int64)
    columns = (traders or Traders()).orders(number, day.stock[start:end], arrival_ms / 1000)
    arrival = pa.array((FIRST_ARRIVAL_MS + arrival_ms) * 1000).cast(SCHEMA.field("arrival").type)
    return pa.table([arrival, *columns], schema=SCHEMA)
