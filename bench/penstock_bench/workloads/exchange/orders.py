"""The orders of a day: account, side, price and quantity.

An order depends only on the seed, its number, its stock and its time, so it is the same in any part of
the day and on any machine. Traders set prices around a stock's value, which moves slowly over the day:
about half of the orders trade at once, others wait for their price.
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
"""Opening of the first session, in milliseconds of Unix time: 2020-01-02T09:30:00Z."""
LOT = 100
"""Shares per lot; quantities are multiples of it."""

_LOWEST, _TIMES_HIGHER = 300, 30.0
"""Value of a share of the cheapest stock in hundredths, and the ratio of the dearest to the cheapest."""
_SWINGS = (("day", 0.02, 3600, 3 * 3600), ("minutes", 0.004, 180, 600))
"""Swings of a stock's value: (name, share of the value, shortest and longest period in seconds)."""
_SPREAD = 0.0015
"""Spread of the traders' prices, as a share of the value."""
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
    """The traders of a day, by seed.

    >>> orders = Traders(seed=1).orders(np.arange(2), stock=np.array([0, 5]), t_s=np.zeros(2))
    >>> [len(column) for column in orders]
    [2, 2, 2, 2, 2, 2]
    """

    seed: int = 1
    accounts: int = ACCOUNTS

    def orders(self, number: Numbers, stock: npt.NDArray[np.int16], t_s: Floats) -> list[pa.Array]:
        """The columns of `SCHEMA` after arrival, for orders of these numbers, stocks and times."""
        draws = Draws(self.seed, number)
        buys = draws.below(2, "side") == 0
        # A logistic distribution: most prices are near the value, few are far away.
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
        """Value of a share at a time, in hundredths."""
        draws = Draws(self.seed, stock.astype(np.int64))
        worth = _LOWEST * _TIMES_HIGHER ** draws.unit("worth")
        for name, size, shortest, longest in _SWINGS:
            period_s = shortest + (longest - shortest) * draws.unit(f"{name} period")
            turns = t_s / period_s + draws.unit(f"{name} phase")
            worth = worth * (1 + size * np.sin(2 * np.pi * turns))
        return np.asarray(worth, np.float64)


def orders(day: Day, which: slice, traders: Traders | None = None) -> pa.Table:
    """Orders of a part of a day, such as `day.between(0, 60_000)`, in order of arrival.

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
