"""The lines of any tickets, as an Arrow table.

Items and stores are skewed by Zipf's law; most lines of a ticket are related to its first one. Prices of
a category rise or fall for a while. A ticket depends only on the seed and its number.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.sim.skews import Zipf
from penstock_bench.workloads.draws import Draws, Numbers, mixed
from penstock_bench.workloads.tpcx_bb.config import SCHEMAS, TIME, TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.draws import (
    DAY_MS,
    begins_ms,
    category_of,
    companions,
    lengths,
    popular_items,
)

_MOST_LINES = 12
_MEAN_LINES = 4.0
_CUSTOMERS_PER_STORE = 1_000
_STEEPEST = 400
"""Largest total rise or fall of a category's prices, in thousandths."""


def store_sales(config: TpcxBbConfig, first: int, count: int) -> pa.Table:
    """The lines of the tickets first, first + 1, ... (count of them), in order of time.

    >>> lines = store_sales(TpcxBbConfig(tickets=10), 0, 2)
    >>> lines.column("ticket").to_pylist()
    [0, 0, 1]
    """
    tickets = np.arange(first, min(first + count, config.tickets), dtype=np.int64)
    of_ticket = Draws(config.seed, tickets)
    lines = lengths(of_ticket, "lines", _MEAN_LINES, _MOST_LINES)
    at = np.repeat(np.arange(len(tickets)), lines)
    line = np.arange(len(at)) - np.repeat(np.cumsum(lines) - lines, lines)
    draws = Draws(config.seed, tickets[at] * _MOST_LINES + line)

    began = popular_items(config, of_ticket, "first item")[at]
    goes_with = draws.below(10, "goes with") < 6
    other = np.where(
        goes_with, companions(config, began, draws, "with"), popular_items(config, draws, "item")
    )
    item = np.where(line == 0, began, other)
    category = category_of(config, item)
    sold_ms = begins_ms(tickets, config.tickets_per_day)[at]
    price = _prices(config, item, category, sold_ms // DAY_MS)
    quantity = 1 + draws.below(4, "quantity")
    store = Zipf(config.store_exponent).ranks(config.stores, of_ticket.unit("store"))
    customer = store * _CUSTOMERS_PER_STORE + of_ticket.below(_CUSTOMERS_PER_STORE, "customer")
    columns = [tickets[at], item, category, quantity, price]
    arrays = [pa.array(values) for values in columns]
    arrays.append(pa.array((config.base_ms + sold_ms) * 1000).cast(TIME))
    arrays += [pa.array(1 + store[at]), pa.array(1 + customer[at])]
    return pa.table(arrays, schema=SCHEMAS["store_sales"])


def _prices(config: TpcxBbConfig, item: Numbers, category: Numbers, day: Numbers) -> Numbers:
    """Prices in cents: an item's base price, adjusted by its category's trend."""
    base = 100 + (mixed(item.astype(np.uint64)) % np.uint64(9_900)).astype(np.int64)
    steep = Draws(config.seed, category).below(2 * _STEEPEST + 1, "trend") - _STEEPEST
    come = np.minimum(day, config.trend_days)
    prices: Numbers = base * (1000 * config.trend_days + steep * come) // (1000 * config.trend_days)
    return prices
