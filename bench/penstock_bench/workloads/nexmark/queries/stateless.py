"""Queries without state: their flows are their SQL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock_bench.workloads.nexmark.arriving_events import LiveEvents
from penstock_bench.workloads.nexmark.query import BurstForm, NexmarkQuery

_EUROS = "cast(0.908 * price AS decimal(23, 3))"
_RATE = pa.scalar(Decimal("0.908"))
_ALL = ("auction", "bidder", "price", "date_time", "extra")


def euros(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bids, with their prices in euros."""
    prices = pc.multiply(batch.column("price").cast(pa.decimal128(19, 0)), _RATE)
    place = batch.schema.get_field_index("price")
    return batch.set_column(place, pa.field("price", prices.type), prices)


class Chosen(ps.KeyedProcessor):
    """Bids on every 123rd auction."""

    output_schema = "auction long, price long"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        auctions = batch.column("auction").to_numpy()
        return batch.select(["auction", "price"]).filter(pa.array(auctions % 123 == 0))


def _keyed_q2(events: LiveEvents, slots: int) -> ps.Flow:
    """q2 as a keyed step, as in StreamSwitch's evaluation."""
    bids = ps.flow(events.stream("bid", "auction", "price"), arrival="arrival")
    return bids.key_by("auction", slots=slots).process(Chosen())


QUERIES = {
    "q0": NexmarkQuery(
        "All bids, as they are.",
        {"bid": _ALL},
        "SELECT auction, bidder, price, date_time, extra FROM bid",
    ),
    "q1": NexmarkQuery(
        "Prices in another currency.",
        {"bid": _ALL},
        f"SELECT auction, bidder, {_EUROS} AS price, date_time, extra FROM bid",
        burst=BurstForm(
            {"bid": {"auction": "auction", "price": "price", "bidder": "bidder"}},
            lambda bids, window, slots: bids.map_batches(euros),
            busy="map-1",
            records=1.0,
            truth="SELECT arrival, auction, CAST(price AS DECIMAL(19, 0)) * 0.908 AS price, bidder "
            "FROM rows",
            time="arrival",
        ),
    ),
    "q2": NexmarkQuery(
        "Bids on some auctions.",
        {"bid": ("auction", "price")},
        "SELECT auction, price FROM bid WHERE auction % 123 = 0",
        live=_keyed_q2,
    ),
    "q10": NexmarkQuery(
        "All bids, with day and minute for a file system.",
        {"bid": _ALL},
        """SELECT auction, bidder, price, date_time, extra,
                  date_format(date_time, 'yyyy-MM-dd') AS dt, date_format(date_time, 'HH:mm') AS hm
           FROM bid""",
    ),
    "q13": NexmarkQuery(
        "Bids with a value looked up in a bounded table.",
        {"bid": ("auction", "bidder", "price", "date_time")},
        """SELECT /*+ BROADCAST(S) */ auction, bidder, price, date_time, value
           FROM bid
           JOIN (SELECT key, cast(key AS string) AS value FROM range(10000) AS numbers (key)) AS S
           ON auction % 10000 = key""",
    ),
    "q14": NexmarkQuery(
        "Bids of a price range, with what is computed from them.",
        {"bid": _ALL},
        f"""SELECT auction, bidder, {_EUROS} AS price,
                   CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                        ELSE 'otherTime' END AS bid_time_type,
                   date_time, extra,
                   cast(length(extra) - length(replace(extra, 'c', '')) AS bigint) AS c_counts
            FROM bid WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000""",
    ),
    # Where nothing matches, regexp_extract returns an empty string; the query needs a null.
    "q21": NexmarkQuery(
        "Bids with the id of their channel.",
        {"bid": ("auction", "bidder", "price", "channel", "url")},
        """SELECT *
           FROM (SELECT auction, bidder, price, channel,
                        CASE lower(channel)
                            WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                            ELSE CASE WHEN regexp_like(url, '(&|^)channel_id=')
                                      THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END
                        END AS channel_id
                 FROM bid)
           WHERE channel_id IS NOT NULL""",
    ),
    "q22": NexmarkQuery(
        "Bids with three folders of their address.",
        {"bid": ("auction", "bidder", "price", "channel", "url")},
        """SELECT auction, bidder, price, channel, get(split(url, '/'), 3) AS dir1,
                  get(split(url, '/'), 4) AS dir2, get(split(url, '/'), 5) AS dir3
           FROM bid""",
    ),
}
