"""Q1: the hundred pairs of items that were bought together most often in each hour.

SELECT hour, item_1, item_2, count(*) AS n
FROM (SELECT DISTINCT a.ticket, hour of a.sold_at, a.item AS item_1, b.item AS item_2
      FROM store_sales a JOIN store_sales b ON a.ticket = b.ticket AND a.item < b.item
      WHERE both in some stores and some categories)
GROUP BY hour, item_1, item_2 ORDER BY n DESC, item_1, item_2 LIMIT 100 in each hour

All lines of a ticket have the same time. No Python code runs per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock_bench.workloads.tpcx_bb.catalog import SLOTS, TpcxBbQuery
from penstock_bench.workloads.tpcx_bb.config import TIME
from penstock_bench.workloads.tpcx_bb.gathering import flat, gathered, pairs

STORES = pa.array(range(1, 26))
CATEGORIES = pa.array([1, 2, 3, 4, 5])
MOST = 100


def in_question(lines: pa.RecordBatch) -> pa.RecordBatch:
    """Lines of the stores and categories of the query."""
    chosen = pc.and_(
        pc.is_in(lines.column("store"), STORES), pc.is_in(lines.column("category"), CATEGORIES)
    )
    return lines.select(["ticket", "item", "sold_at"]).filter(chosen)


class Baskets(ps.KeyedProcessor):
    """Emits each pair of distinct items of a ticket when the second of them arrives.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(Baskets(), "ticket long, item long, sold_at timestamp", "ticket")
    >>> [tuple(row[:2]) for row in tester.feed([(1, 8, None), (1, 5, None), (1, 8, None)])]
    [(5, 8)]
    >>> [tuple(row[:2]) for row in tester.feed([(1, 6, None), (2, 6, None)])]
    [(6, 8), (5, 6)]
    """

    output_schema = pa.schema([("item_1", pa.int64()), ("item_2", pa.int64()), ("sold_at", TIME)])

    def init(self, handle: ps.StateHandle) -> None:
        # The lines of a ticket arrive together, so an hour is enough.
        self._items = handle.get_value_state("basket", "items array<long>", ttl="1h")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        tickets = batch.column("ticket").dictionary_encode()
        group = tickets.indices.to_numpy()
        distinct = pa.RecordBatch.from_arrays([tickets.dictionary], ["ticket"])
        held_group, held_item = flat(pc.struct_field(self._items.get_many(distinct), "items"))
        item = batch.column("item").to_numpy()
        basket = gathered(len(distinct), held_group, held_item, group, item)
        lists = basket.lists(np.arange(len(distinct)))
        self._items.update_many(distinct, pa.RecordBatch.from_arrays([lists], ["items"]))
        row, other = flat(basket.items_before())
        sold_at = batch.column("sold_at").take(pa.array(row))
        return pa.RecordBatch.from_arrays(
            [*pairs(item[row], other), sold_at], ["item_1", "item_2", "sold_at"]
        )


def steps(sales: ps.Flow) -> ps.Flow:
    lines = sales.map_batches(in_question)
    bought = lines.key_by("ticket", slots=SLOTS).process(Baskets())
    counts = (
        bought.key_by("item_1", "item_2")
        .window(ps.tumbling("1h"), on="sold_at")
        .aggregate(n=ps.count())
    )
    # One slot makes it a global step.
    hours = counts.key_by("window_start", "window_end", slots=1)
    return hours.top(MOST, by="n desc, item_1, item_2", rank="place", until="window_end")


QUERY = TpcxBbQuery(
    "store_sales",
    steps,
    ("stateless", "keyed", "keyed", "global"),
    (("window_start", "ascending"), ("place", "ascending")),
)
