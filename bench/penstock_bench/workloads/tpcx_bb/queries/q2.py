"""Q2: the thirty pairs of items that were viewed together in most sessions.

SELECT item_1, item_2, count(*) AS n
FROM (SELECT DISTINCT a.session, a.item AS item_1, b.item AS item_2
      FROM views a JOIN views b ON a.session = b.session AND a.item < b.item)
GROUP BY item_1, item_2 ORDER BY n DESC, item_1, item_2 LIMIT 30

A session of a user ends with an hour without a view. No Python code runs per row.
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
from penstock_bench.workloads.tpcx_bb.config import VIEW
from penstock_bench.workloads.tpcx_bb.gathering import changes, flat, gathered, leading, pairs

GAP_US = 3_600_000_000
MOST = 30


def views(clicks: pa.RecordBatch) -> pa.RecordBatch:
    """Views of items by known users."""
    seen = pc.equal(clicks.column("page"), VIEW)
    for name in ("user", "item"):
        seen = pc.and_(seen, pc.is_valid(clicks.column(name)))
    return clicks.select(["user", "item", "clicked_at"]).filter(seen)


class Sessions(ps.KeyedProcessor):
    """Emits each view with the items viewed before it in its session, or none if its item is among them.

    A user's views must arrive in order of time.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(Sessions(), "user long, item long, clicked_at timestamp", "user")
    >>> from datetime import datetime, timedelta
    >>> at = [datetime(2003, 1, 1) + timedelta(minutes=m) for m in range(200)]
    >>> [tuple(row) for row in tester.feed([(1, 5, at[0]), (1, 6, at[9]), (1, 5, at[68])])]
    [(5, []), (6, [5]), (5, [])]
    >>> [tuple(row) for row in tester.feed([(1, 7, at[127]), (1, 8, at[187])])]
    [(7, [5, 6]), (8, [])]
    """

    output_schema = pa.schema([("item", pa.int64()), ("before", pa.list_(pa.int64()))])

    def init(self, handle: ps.StateHandle) -> None:
        # Much longer than the gap between sessions, even if views arrive slowly.
        self._open = handle.get_value_state(
            "session", "seen_at long, items array<long>", ttl="7 days"
        )

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        users = batch.column("user").dictionary_encode()
        user = users.indices.to_numpy()
        distinct = pa.RecordBatch.from_arrays([users.dictionary], ["user"])
        held = self._open.get_many(distinct)
        item = batch.column("item").to_numpy()
        time = batch.column("clicked_at").cast(pa.int64()).to_numpy()

        by_user = np.argsort(user, kind="stable")
        first = np.searchsorted(user[by_user], np.arange(len(distinct)))
        before = np.empty(len(time), np.int64)
        before[1:] = time[by_user][:-1]
        before[first] = pc.struct_field(held, "seen_at").fill_null(-(2**62)).to_numpy()
        silent = time[by_user] - before >= GAP_US
        begins = silent.copy()
        begins[first] = True
        sessions = np.cumsum(begins) - 1
        session = np.empty(len(time), np.int64)
        session[by_user] = sessions

        owner, held_item = flat(pc.struct_field(held, "items"))
        goes_on = ~silent[first[owner]]
        held_session = sessions[first[owner[goes_on]]]
        together = gathered(int(sessions[-1]) + 1, held_session, held_item[goes_on], session, item)
        last = np.append(first[1:], len(time)) - 1
        newest = [pa.array(time[by_user][last]), together.lists(sessions[last])]
        self._open.update_many(distinct, pa.RecordBatch.from_arrays(newest, ["seen_at", "items"]))
        return pa.RecordBatch.from_arrays(
            [batch.column("item"), together.items_before()], ["item", "before"]
        )


def paired(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pairs of each view's item with each of the items before it."""
    row, other = flat(rows.column("before"))
    item = rows.column("item").to_numpy()[row]
    return pa.RecordBatch.from_arrays(list(pairs(item, other)), ["item_1", "item_2"])


class Leaders(ps.KeyedProcessor):
    """Keeps the pairs with the largest n, and emits the changes among them.

    Rows are new counts of pairs. Counts only grow, so other pairs need not be stored.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(Leaders(1), "item_1 long, item_2 long, n long", [])
    >>> [tuple(row) for row in tester.feed([(1, 2, 4), (1, 3, 5), (1, 2, 5)])]
    [(1, 2, 5, 1)]
    >>> [tuple(row) for row in tester.feed([(1, 3, 6)])]
    [(1, 2, 5, -1), (1, 3, 6, 1)]
    """

    output_schema = pa.schema(
        [("item_1", pa.int64()), ("item_2", pa.int64()), ("n", pa.int64()), (CHANGE, pa.int8())]
    )

    def __init__(self, most: int = MOST) -> None:
        self._most = most

    def init(self, handle: ps.StateHandle) -> None:
        columns = "item_1 array<long>, item_2 array<long>, n array<long>"
        self._kept = handle.get_value_state("leaders", columns)

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        one = batch.slice(0, 1)
        kept = self._kept.get_many(one)
        names = ("item_1", "item_2", "n")
        held = [flat(pc.struct_field(kept, name))[1] for name in names]
        new = [batch.column(name).to_numpy() for name in names]
        if len(held[2]) == self._most:
            # Most new counts are below all stored ones, and need not be sorted.
            chosen = np.flatnonzero(new[2] >= held[2].min())
            new = [column[chosen] for column in new]
        rows = [np.concatenate(columns) for columns in zip(held, new, strict=True)]
        # The rows of a pair become neighbours: the largest count is the newest.
        order = np.lexsort(tuple(reversed(rows)))
        item_1, item_2, n = (column[order] for column in rows)
        final = np.ones(len(n), np.bool_)
        final[:-1] = (item_1[1:] != item_1[:-1]) | (item_2[1:] != item_2[:-1])
        item_1, item_2, now = item_1[final], item_2[final], n[final]
        was = _numbers_among(item_1, item_2, *held)
        leads = leading(np.zeros(len(now), np.int64), now, (item_1, item_2), self._most)
        best = [pa.array([column[leads]]) for column in (item_1, item_2, now)]
        self._kept.update_many(one, pa.RecordBatch.from_arrays(best, list(names)))
        return changes({"item_1": item_1, "item_2": item_2}, was, now, was > 0, leads)


def _numbers_among(
    item_1: Numbers, item_2: Numbers, kept_1: Numbers, kept_2: Numbers, n: Numbers
) -> Numbers:
    """The stored n of these pairs, which are sorted; 0 for pairs that are not stored."""
    numbers = np.zeros(len(item_1), np.int64)
    pairs = np.rec.fromarrays([item_1, item_2])
    numbers[np.searchsorted(pairs, np.rec.fromarrays([kept_1, kept_2]))] = n
    return numbers


def steps(clicks: ps.Flow) -> ps.Flow:
    seen = clicks.map_batches(views).key_by("user", slots=SLOTS).process(Sessions())
    counts = seen.map_batches(paired).key_by("item_1", "item_2").aggregate(n=ps.count())
    return counts.global_(Leaders())


QUERY = TpcxBbQuery(
    "clicks",
    steps,
    ("stateless", "keyed", "stateless", "keyed", "global"),
    (("n", "descending"), ("item_1", "ascending"), ("item_2", "ascending")),
)
