"""Q3: items viewed before a purchase: for each item bought, the thirty items that were most often among
the buyer's last five views in the ten days before.

SELECT bought, viewed, count(*) AS n
FROM (SELECT p.item AS bought, v.item AS viewed FROM purchases p JOIN views v ON p.user = v.user
      WHERE v is one of the last 5 views before p, and not more than 10 days before it)
GROUP BY bought, viewed ORDER BY n DESC, viewed LIMIT 30 for each item bought

No Python code runs per row, except that the views before each bought item are stored as lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.operators.operator import CHANGE
from penstock_bench.workloads.draws import Numbers
from penstock_bench.workloads.tpcx_bb.catalog import SLOTS, TpcxBbQuery
from penstock_bench.workloads.tpcx_bb.config import PURCHASE, VIEW
from penstock_bench.workloads.tpcx_bb.gathering import changes, flat, leading, ranges

LAST = 5
DAYS_US = 10 * 86_400_000_000
MOST = 30
_LONG_AGO = -(2**62)


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
        # The newest view is last; missing ones are long ago. Views older than the TTL do not count.
        places = range(LAST)
        columns = [f"item_{n} long" for n in places] + [f"seen_{n} long" for n in places]
        self._views = handle.get_value_state("views", ", ".join(columns), ttl="20 days")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        users = batch.column("user").dictionary_encode()
        distinct = pa.RecordBatch.from_arrays([users.dictionary], ["user"])
        by_user = np.argsort(users.indices.to_numpy(), kind="stable")
        user = users.indices.to_numpy()[by_user]
        item = batch.column("item").to_numpy()[by_user]
        time = batch.column("clicked_at").cast(pa.int64()).to_numpy()[by_user]
        bought = batch.column("bought").to_numpy(zero_copy_only=False)[by_user]

        # For each user: LAST places with the stored views, empty or not, then the new views.
        views = np.bincount(user[~bought], minlength=len(distinct)) + LAST
        ends = np.cumsum(views)
        begins = ends - views
        seen_items, seen_times = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64)
        held = ranges(begins, np.full(len(distinct), LAST))
        seen_items[held], seen_times[held] = self._held(distinct)
        new = ranges(begins + LAST, views - LAST)
        seen_items[new], seen_times[new] = item[~bought], time[~bought]
        self._hold(distinct, seen_items, seen_times, ends)

        come = np.cumsum(~bought)  # Views of all users so far.
        at = np.flatnonzero(bought)
        last = come[at] + (user[at] + 1) * LAST  # Index after the last view.
        chosen = ranges(last - LAST, np.full(len(at), LAST))
        purchase = np.repeat(at, LAST)
        recent = time[purchase] - seen_times[chosen] <= DAYS_US
        arrays = [item[purchase[recent]], seen_items[chosen[recent]]]
        return pa.RecordBatch.from_arrays([pa.array(a) for a in arrays], ["bought", "viewed"])

    def _held(self, users: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """Stored items and times, LAST for each user; missing ones are long ago."""
        fields = self._views.get_many(users).flatten()
        values = pa.concat_arrays(fields).fill_null(_LONG_AGO).to_numpy()
        items, times = values.reshape(2, LAST, len(users)).transpose(0, 2, 1)
        return items.ravel(), times.ravel()

    def _hold(self, users: pa.RecordBatch, items: Numbers, times: Numbers, ends: Numbers) -> None:
        """Store the last views of each user; `ends` are the ends of the users' ranges."""
        places = [ends - LAST + n for n in range(LAST)]
        arrays = [pa.array(of[at]) for of in (items, times) for at in places]
        names = [f"{name}_{n}" for name in ("item", "seen") for n in range(LAST)]
        self._views.update_many(users, pa.RecordBatch.from_arrays(arrays, names))


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
