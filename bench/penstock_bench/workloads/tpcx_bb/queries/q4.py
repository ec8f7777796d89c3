"""Q4: the average number of pages visited in sessions with an abandoned cart.

SELECT avg(pages) AS pages, count(*) AS sessions
FROM (SELECT count(*) AS pages FROM clicks of known users GROUP BY session
      HAVING some page is the cart AND none is the checkout)

A session of a user ends with an hour without a click. No Python code runs per row.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock_bench.workloads.tpcx_bb.catalog import TpcxBbQuery
from penstock_bench.workloads.tpcx_bb.config import CART, CHECKOUT


def pages(clicks: pa.RecordBatch) -> pa.RecordBatch:
    """Clicks of known users, with flags for the cart and the checkout."""
    page = clicks.column("page")
    arrays = [
        clicks.column("user"),
        clicks.column("clicked_at"),
        pc.equal(page, CART),
        pc.equal(page, CHECKOUT),
    ]
    rows = pa.RecordBatch.from_arrays(arrays, ["user", "clicked_at", "cart", "checkout"])
    return rows.filter(pc.is_valid(clicks.column("user")))


def left_behind(sessions: pa.RecordBatch) -> pa.RecordBatch:
    """Number of pages of each session whose cart was not taken to the checkout."""
    left = pc.and_(
        pc.greater(sessions.column("carts"), 0), pc.equal(sessions.column("checkouts"), 0)
    )
    return sessions.select(["pages"]).filter(left)


def steps(clicks: ps.Flow) -> ps.Flow:
    sessions = (
        clicks.map_batches(pages)
        .key_by("user")
        .window(ps.session_window("1h"), on="clicked_at")
        .aggregate(
            pages=ps.count(), carts=ps.count(where="cart"), checkouts=ps.count(where="checkout")
        )
    )
    return sessions.map_batches(left_behind).global_(pages=ps.avg("pages"), sessions=ps.count())


def newest(rows: pa.Table) -> pa.Table:
    """The final row: the average over the most sessions."""
    return rows.take(pc.sort_indices(rows, sort_keys=[("sessions", "descending")])[:1])


QUERY = TpcxBbQuery(
    "clicks",
    steps,
    ("stateless", "keyed", "stateless", "global"),
    (("sessions", "ascending"),),
    newest,
)
