"""Q15: the categories whose sales in a group of stores stay the same or fall.

SELECT category, regr_slope(cents, day) AS slope
FROM (SELECT category, day, sum(quantity * price) AS cents
      FROM store_sales WHERE in some stores GROUP BY category, day)
GROUP BY category HAVING slope <= 0

Python code runs once per category and batch, not per row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.operators.operator import CHANGE
from penstock_bench.workloads.tpcx_bb.catalog import SLOTS, TpcxBbQuery

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
        table = pa.Table.from_batches([batch])
        new = table.group_by(["category", "day"], use_threads=False).aggregate([("cents", "sum")])
        categories = pc.unique(batch.column("category"))
        distinct = pa.RecordBatch.from_arrays([categories], ["category"])
        held = self._sums.get_many(distinct).to_pylist()
        sums = {
            category: dict(zip(row["days"], row["cents"], strict=True)) if row else {}
            for category, row in zip(categories.to_pylist(), held, strict=True)
        }
        before = {category: _slope_of(days) for category, days in sums.items()}
        added = zip(*(new.column(n).to_pylist() for n in range(3)), strict=True)
        for category, day, cents in added:
            sums[category][day] = sums[category].get(day, 0) + cents
        kept = [
            pa.array([list(part(days)) for days in sums.values()], pa.list_(pa.int64()))
            for part in (dict.keys, dict.values)
        ]
        self._sums.update_many(distinct, pa.RecordBatch.from_arrays(kept, ["days", "cents"]))
        rows = []
        for category, days in sums.items():
            was, now = before[category], _slope_of(days)
            if was != now:
                rows += [(category, was, -1)] if was is not None and was <= 0 else []
                rows += [(category, now, 1)] if now is not None and now <= 0 else []
        columns = zip(*rows, strict=True) if rows else ([], [], [])
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, self.output_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)


def _slope_of(sums: dict[int, int]) -> float | None:
    return slope(list(sums.keys()), list(sums.values()))


def steps(sales: ps.Flow) -> ps.Flow:
    sold = sales.map_batches(in_question).map_batches(amounts)
    return sold.key_by("category", slots=SLOTS).process(Trends())


QUERY = TpcxBbQuery(
    "store_sales", steps, ("stateless", "stateless", "keyed"), (("category", "ascending"),)
)
