"""Q3: items viewed before a purchase: for each item bought, the thirty items that were most often among
the buyer's last five views in the ten days before.

SELECT bought, viewed, count(*) AS n
FROM (SELECT p.item AS bought, v.item AS viewed FROM purchases p JOIN views v ON p.user = v.user
      WHERE v is one of the last 5 views before p, and not more than 10 days before it)
GROUP BY bought, viewed ORDER BY n DESC, viewed LIMIT 30 for each item bought

No Python code runs per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

import penstock as ps
from penstock.operators.operator import CHANGE
from penstock_bench.workloads.tpcx_bb.catalog import SLOTS, TpcxBbQuery
from penstock_bench.workloads.tpcx_bb.config import PURCHASE, VIEW
from penstock_bench.workloads.tpcx_bb.gathering import changes, flat, leading, plain

LAST = 5
DAYS_US = 10 * 86_400_000_000
MOST = 30


def views_and_purchases(clicks: pa.RecordBatch) -> pa.RecordBatch:
    """Views and purchases of known users."""
    bought = pc.equal(clicks.column("page"), PURCHASE)
    chosen = pc.or_(bought, pc.equal(clicks.column("page"), VIEW))
    for name in ("user", "item"):
        chosen = pc.and_(chosen, pc.is_valid(clicks.column(name)))
    names = ["user", "item", "clicked_at"]
    arrays = [*clicks.select(names).columns, bought]
    return pa.RecordBatch.from_arrays(arrays, [*names, "bought"]).filter(chosen)


class LastViews(ps.KeyedProcessor):
    """Emits each purchase with each of the buyer's last views. A user's clicks must arrive in order of time.

    >>> from penstock.testing import ProcessorTester
    >>> columns = "user long, item long, clicked_at timestamp, bought boolean"
    >>> tester = ProcessorTester(LastViews(), columns, "user")
    >>> from datetime import datetime
    >>> day = [datetime(2003, 1, n) for n in range(1, 20)]
    >>> tester.feed([(1, 5, day[0], False), (1, 6, day[1], False), (2, 7, day[1], False)])
    []
    >>> [tuple(row) for row in tester.feed([(1, 8, day[11], False), (1, 9, day[11], True)])]
    [(9, 6), (9, 8)]
    """

    output_schema = pa.schema([("bought", pa.int64()), ("viewed", pa.int64())])

    def init(self, handle: ps.StateHandle) -> None:
        # The newest view is last. Views older than the TTL do not count.
        columns = "items array<long>, seen array<long>"
        self._views = handle.get_value_state("views", columns, ttl="20 days")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        users = batch.column("user").dictionary_encode()
        distinct = pa.RecordBatch.from_arrays([users.dictionary], ["user"])
        held = self._views.get_many(distinct)
        owner, held_items = flat(pc.struct_field(held, "items"))
        _, held_times = flat(pc.struct_field(held, "seen"))
        counts, items, times, bought, viewed = _last_views(
            len(distinct),
            *(owner, plain(held_items), plain(held_times)),
            plain(users.indices.to_numpy()),
            plain(batch.column("item").to_numpy()),
            plain(batch.column("clicked_at").cast(pa.int64()).to_numpy()),
            batch.column("bought").to_numpy(zero_copy_only=False),
        )
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        newest = [pa.ListArray.from_arrays(offsets, values) for values in (items, times)]
        self._views.update_many(distinct, pa.RecordBatch.from_arrays(newest, ["items", "seen"]))
        return pa.RecordBatch.from_arrays(
            [pa.array(bought), pa.array(viewed)], ["bought", "viewed"]
        )


@njit(cache=True, nogil=True)
def _last_views(users, owner, held_items, held_times, user, item, time, bought):  # type: ignore[no-untyped-def]
    """Go through clicks in order. Returns the number of stored views of each user, these views' items and
    times, one user after the other, and the items of purchases, each with a view before it."""
    items, times = np.empty((users, LAST), np.int64), np.empty((users, LAST), np.int64)
    counts = np.zeros(users, np.int64)
    for at in range(len(owner)):
        _see(items, times, counts, owner[at], held_items[at], held_times[at])
    purchases = 0
    for at in range(len(bought)):
        purchases += bought[at]
    buys, views = np.empty(purchases * LAST, np.int64), np.empty(purchases * LAST, np.int64)
    pairs = 0
    for at in range(len(user)):
        who = user[at]
        if not bought[at]:
            _see(items, times, counts, who, item[at], time[at])
            continue
        for view in range(counts[who]):
            if time[at] - times[who, view] <= DAYS_US:
                buys[pairs], views[pairs] = item[at], items[who, view]
                pairs += 1
    all_items, all_times = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.int64)
    end = 0
    for who in range(users):
        for view in range(counts[who]):
            all_items[end], all_times[end] = items[who, view], times[who, view]
            end += 1
    return counts, all_items, all_times, buys[:pairs], views[:pairs]


@njit(cache=True, nogil=True)
def _see(items, times, counts, who, item, time):  # type: ignore[no-untyped-def]
    """Add a view to the last ones of a user."""
    if counts[who] == LAST:
        for at in range(LAST - 1):
            items[who, at], times[who, at] = items[who, at + 1], times[who, at + 1]
        counts[who] -= 1
    items[who, counts[who]], times[who, counts[who]] = item, time
    counts[who] += 1


class MostViewed(ps.KeyedProcessor):
    """Counts the views before purchases of an item, and emits the changes among the most frequent.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(MostViewed(1), "bought long, viewed long", "bought")
    >>> [tuple(row) for row in tester.feed([(9, 6), (9, 5), (9, 6)])]
    [(9, 6, 2, 1)]
    >>> [tuple(row) for row in tester.feed([(9, 5)])]
    [(9, 6, 2, -1), (9, 5, 2, 1)]
    """

    output_schema = pa.schema(
        [("bought", pa.int64()), ("viewed", pa.int64()), ("n", pa.int64()), (CHANGE, pa.int8())]
    )

    def __init__(self, most: int = MOST) -> None:
        self._most = most

    def init(self, handle: ps.StateHandle) -> None:
        self._counts = handle.get_value_state("counts", "viewed array<long>, n array<long>")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        keys = batch.column("bought").dictionary_encode()
        distinct = pa.RecordBatch.from_arrays([keys.dictionary], ["bought"])
        held = self._counts.get_many(distinct)
        held_key, held_viewed = flat(pc.struct_field(held, "viewed"))
        _, held_n = flat(pc.struct_field(held, "n"))
        key = np.concatenate([held_key, keys.indices.to_numpy()])
        viewed = np.concatenate([held_viewed, batch.column("viewed").to_numpy()])
        order = np.lexsort((viewed, key))
        key, viewed = key[order], viewed[order]
        begins = np.ones(len(key), np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (viewed[1:] != viewed[:-1])
        was = np.concatenate([held_n, np.zeros(len(batch), np.int64)])[order]
        more = np.concatenate([np.zeros(len(held_n), np.int64), np.ones(len(batch), np.int64)])
        places = np.flatnonzero(begins)
        key, viewed, was = key[places], viewed[places], np.add.reduceat(was, places)
        now = was + np.add.reduceat(more[order], places)
        offsets = pa.array(np.searchsorted(key, np.arange(len(distinct) + 1)).astype(np.int32))
        lists = [pa.ListArray.from_arrays(offsets, pa.array(column)) for column in (viewed, now)]
        self._counts.update_many(distinct, pa.RecordBatch.from_arrays(lists, ["viewed", "n"]))
        led = leading(key, was, (viewed,), self._most)
        leads = leading(key, now, (viewed,), self._most)
        columns = {"bought": keys.dictionary.to_numpy()[key], "viewed": viewed}
        return changes(columns, was, now, led, leads)


def steps(clicks: ps.Flow) -> ps.Flow:
    chosen = clicks.map_batches(views_and_purchases)
    before = chosen.key_by("user", slots=SLOTS).process(LastViews())
    return before.key_by("bought", slots=SLOTS).process(MostViewed())


QUERY = TpcxBbQuery(
    "clicks",
    steps,
    ("stateless", "keyed", "keyed"),
    (("bought", "ascending"), ("n", "descending"), ("viewed", "ascending")),
)
