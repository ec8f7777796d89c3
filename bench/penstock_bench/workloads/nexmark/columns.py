"""The columns of the three streams, in the order of the benchmark's definition."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

Stream = Literal["person", "auction", "bid"]

STREAMS: tuple[Stream, ...] = ("person", "auction", "bid")
"""The streams, in the order of their events at equal times: a person comes before their auctions."""

TIME = pa.timestamp("us", tz="UTC")

SCHEMAS: dict[Stream, pa.Schema] = {
    "person": pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("email_address", pa.string()),
            ("credit_card", pa.string()),
            ("city", pa.string()),
            ("state", pa.string()),
            ("date_time", TIME),
            ("extra", pa.string()),
        ]
    ),
    "auction": pa.schema(
        [
            ("id", pa.int64()),
            ("item_name", pa.string()),
            ("description", pa.string()),
            ("initial_bid", pa.int64()),
            ("reserve", pa.int64()),
            ("date_time", TIME),
            ("expires", TIME),
            ("seller", pa.int64()),
            ("category", pa.int64()),
            ("extra", pa.string()),
        ]
    ),
    "bid": pa.schema(
        [
            ("auction", pa.int64()),
            ("bidder", pa.int64()),
            ("price", pa.int64()),
            ("channel", pa.string()),
            ("url", pa.string()),
            ("date_time", TIME),
            ("extra", pa.string()),
        ]
    ),
}
