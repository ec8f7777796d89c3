"""Q15: the categories whose sales in a group of stores stay the same or fall.

SELECT category, regr_slope(cents, day) AS slope
FROM (SELECT category, day, sum(quantity * price) AS cents
      FROM store_sales WHERE in some stores GROUP BY category, day)
GROUP BY category HAVING slope <= 0

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
from penstock_bench.workloads.tpcx_bb.gathering import flat, plain

STORES = pa.array(range(1, 11))
_DAY_US = 86_400_000_000


def in_question(lines: pa.RecordBatch) -> pa.RecordBatch:
    """Lines of the stores of the query."""
    names = ["category", "sold_at", "quantity", "price"]
    return lines.select(names).filter(pc.is_in(lines.column("store"), STORES))


def amounts(lines: pa.RecordBatch) -> pa.RecordBatch:
    """Category, day since 1970 and amount in cents of each line."""
    day = pc.divide(lines.column("sold_at").cast(pa.int64()), _DAY_US)
    cents = pc.multiply(lines.column("quantity"), lines.column("price"))
    arrays = [lines.column("category"), day, cents]
    return pa.RecordBatch.from_arrays(arrays, ["category", "day", "cents"])


def slope(days: list[int], cents: list[int]) -> float | None:
    """Slope of the regression line through these sums, in cents per day; None for a single day.

    >>> slope([12_000, 12_001, 12_003], [100, 90, 70]), slope([12_000], [100])
    (-10.0, None)
    """
    n, of_days, of_cents = len(days), sum(days), sum(cents)
    spread = n * sum(day * day for day in days) - of_days * of_days
    if not spread:
        return None
    # Integers, so that a flat line has a slope of exactly 0.
    along = n * sum(d * c for d, c in zip(days, cents, strict=True)) - of_days * of_cents
    return along / spread


class Trends(ps.KeyedProcessor):
    """Keeps the sums of each day, and emits changes of slopes that are 0 or less.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(Trends(), "category long, day long, cents long", "category")
    >>> [tuple(row) for row in tester.feed([(1, 7, 50), (1, 7, 50), (1, 8, 90), (2, 7, 1)])]
    [(1, -10.0, 1)]
    >>> [tuple(row) for row in tester.feed([(1, 8, 20)])]
    [(1, -10.0, -1)]
    """

    output_schema = pa.schema(
        [("category", pa.int64()), ("slope", pa.float64()), (CHANGE, pa.int8())]
    )

    def init(self, handle: ps.StateHandle) -> None:
        self._sums = handle.get_value_state("sums", "days array<long>, cents array<long>")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        categories = batch.column("category").dictionary_encode()
        distinct = pa.RecordBatch.from_arrays([categories.dictionary], ["category"])
        held = self._sums.get_many(distinct)
        owner, held_days = flat(pc.struct_field(held, "days"))
        _, held_cents = flat(pc.struct_field(held, "cents"))
        counts, days, cents, was, now = _added(
            len(distinct),
            *(owner, plain(held_days), plain(held_cents)),
            plain(categories.indices.to_numpy()),
            *(plain(batch.column(name).to_numpy()) for name in ("day", "cents")),
        )
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        kept = [pa.ListArray.from_arrays(offsets, values) for values in (days, cents)]
        self._sums.update_many(distinct, pa.RecordBatch.from_arrays(kept, ["days", "cents"]))
        # Both are NaN, and so not at most 0, for a single day.
        changed = (was != now) & ~(np.isnan(was) & np.isnan(now))
        gone, come = np.flatnonzero(changed & (was <= 0)), np.flatnonzero(changed & (now <= 0))
        names = categories.dictionary.to_numpy()
        sign = np.repeat(np.array([-1, 1], np.int8), [len(gone), len(come)])
        columns = [
            names[np.concatenate([gone, come])],
            np.concatenate([was[gone], now[come]]),
            sign,
        ]
        return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=self.output_schema)


@njit(cache=True, nogil=True)
def _added(categories, owner, held_days, held_cents, category, day, cents):  # type: ignore[no-untyped-def]
    """Add amounts to the sums of their days. Returns the number of days of each category, the days and their
    sums, one category after the other, and the slopes before and after."""
    room = np.zeros(categories, np.int64)
    for at in range(len(owner)):
        room[owner[at]] += 1
    most = room.max() + 16
    days, sums = np.empty((categories, most), np.int64), np.empty((categories, most), np.int64)
    room[:] = 0
    for at in range(len(owner)):
        of = owner[at]
        days[of, room[of]], sums[of, room[of]] = held_days[at], held_cents[at]
        room[of] += 1
    was = np.array([_slope(days[of, : room[of]], sums[of, : room[of]]) for of in range(categories)])
    for at in range(len(category)):
        of = category[at]
        known = room[of] - 1
        while known >= 0 and days[of, known] != day[at]:
            known -= 1
        if known < 0:
            if room[of] == days.shape[1]:
                days, sums = _wider(days), _wider(sums)
            known = room[of]
            days[of, known], sums[of, known] = day[at], 0
            room[of] += 1
        sums[of, known] += cents[at]
    now = np.array([_slope(days[of, : room[of]], sums[of, : room[of]]) for of in range(categories)])
    all_days, all_sums = np.empty(room.sum(), np.int64), np.empty(room.sum(), np.int64)
    end = 0
    for of in range(categories):
        all_days[end : end + room[of]] = days[of, : room[of]]
        all_sums[end : end + room[of]] = sums[of, : room[of]]
        end += room[of]
    return room, all_days, all_sums, was, now


@njit(cache=True, nogil=True)
def _wider(values):  # type: ignore[no-untyped-def]
    wide = np.empty((values.shape[0], 2 * values.shape[1]), np.int64)
    wide[:, : values.shape[1]] = values
    return wide


@njit(cache=True, nogil=True)
def _slope(days, cents):  # type: ignore[no-untyped-def]
    """The same as `slope`, with NaN for None. Days count from the first one, which changes nothing but keeps
    the numbers small."""
    n, of_days, of_cents, squares, products = len(days), 0, 0, 0, 0
    for at in range(n):
        since = days[at] - days[0]
        of_days += since
        of_cents += cents[at]
        squares += since * since
        products += since * cents[at]
    spread = n * squares - of_days * of_days
    return (n * products - of_days * of_cents) / spread if spread else np.nan


def steps(sales: ps.Flow) -> ps.Flow:
    sold = sales.map_batches(in_question).map_batches(amounts)
    return sold.key_by("category", slots=SLOTS).process(Trends())


QUERY = TpcxBbQuery(
    "store_sales", steps, ("stateless", "stateless", "keyed"), (("category", "ascending"),)
)
