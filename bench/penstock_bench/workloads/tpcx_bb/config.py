"""Settings of the generator, and the columns of the two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock.errors import SettingError

_DAY_MOST = 1_000_000_000


@dataclass(frozen=True)
class TpcxBbConfig:
    """Settings of the generator.

    >>> TpcxBbConfig(tickets=10, items=5)
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: items is 5. What to do: items must be from 100 to 10,000,000
    """

    tickets: int = 0
    """Number of purchases in stores, each with a few lines."""
    sessions: int = 0
    """Number of visits to the web shop, each with a few clicks."""
    seed: int = 1
    tickets_per_day: int = 5_000
    sessions_per_day: int = 5_000
    base_ms: int = 1_041_379_200_000
    """Start of the first day, in milliseconds of Unix time: 2003-01-01T00:00:00Z."""

    items: int = 10_000
    categories: int = 10
    item_exponent: float = 0.9
    """Zipf's exponent of the items that are bought and viewed."""
    users: int = 50_000
    user_exponent: float = 0.6
    """Zipf's exponent of users. If it is higher, the busiest users' sessions never end."""
    stores: int = 50
    store_exponent: float = 0.5
    trend_days: int = 60
    """Days during which prices of each category rise or fall; then they stay constant."""

    def __post_init__(self) -> None:
        _within("tickets", self.tickets, 0, _DAY_MOST)
        _within("sessions", self.sessions, 0, _DAY_MOST)
        _within("tickets_per_day", self.tickets_per_day, 1, _DAY_MOST)
        _within("sessions_per_day", self.sessions_per_day, 1, _DAY_MOST)
        _within("items", self.items, 100, 10_000_000)
        _within("categories", self.categories, 1, self.items)
        _within("users", self.users, 1, 100_000_000)
        _within("stores", self.stores, 1, 100_000)
        _within("trend_days", self.trend_days, 1, 36_500)
        _within("seed", self.seed, -(2**63), 2**64 - 1)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingError(f"{name} is {value}", hint=f"{name} must be from {low:,} to {high:,}")


Stream = Literal["store_sales", "clicks"]

STREAMS: tuple[Stream, ...] = ("store_sales", "clicks")

TIME = pa.timestamp("us", tz="UTC")

SCHEMAS: dict[Stream, pa.Schema] = {
    "store_sales": pa.schema(
        [
            ("ticket", pa.int64()),
            ("item", pa.int64()),
            ("category", pa.int64()),
            ("quantity", pa.int64()),
            ("price", pa.int64()),  # cents per item
            ("sold_at", TIME),
            ("store", pa.int64()),
            ("customer", pa.int64()),
        ]
    ),
    "clicks": pa.schema(
        [
            ("user", pa.int64()),  # null if not logged in
            ("item", pa.int64()),  # null if the page is not about an item
            ("page", pa.string()),
            ("clicked_at", TIME),
        ]
    ),
}

EVENT_TIME: dict[Stream, str] = {"store_sales": "sold_at", "clicks": "clicked_at"}
"""Column of event times of each stream."""
PARTITIONED_BY: dict[Stream, str] = {"store_sales": "ticket", "clicks": "user"}
"""Column of each stream whose equal values are in one partition of the source, in order."""

VIEW, CART, CHECKOUT, PURCHASE = PAGES = ("view", "cart", "checkout", "purchase")
