"""The columns of the two streams."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

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
            ("price", pa.int64()),  # of one, in cents
            ("sold_at", TIME),
            ("store", pa.int64()),
            ("customer", pa.int64()),
        ]
    ),
    "clicks": pa.schema(
        [
            ("user", pa.int64()),  # null: somebody who has not logged in
            ("item", pa.int64()),  # null: the page is not about one
            ("page", pa.string()),
            ("clicked_at", TIME),
        ]
    ),
}

EVENT_TIME: dict[Stream, str] = {"store_sales": "sold_at", "clicks": "clicked_at"}
"""The column of event times."""
PARTITIONED_BY: dict[Stream, str] = {"store_sales": "ticket", "clicks": "user"}
"""Rows that are equal in this column are in one partition of the source, in order."""

VIEW, CART, CHECKOUT, PURCHASE = PAGES = ("view", "cart", "checkout", "purchase")
