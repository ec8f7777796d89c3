"""NEXMark's q1, q4, q5, q6, q7 and q8 under bursts, as Sponge draws them: keyed steps before joins.

>>> query = flow("q7", spark, "burst(2000, 5, 20s, 30s)").start(            # doctest: +SKIP
...     ps.to("console"), checkpoint="ck", hosts=2)

Where all rows arrive there is a step whose partial states merge, so that functions can take them;
what joins come behind it, with a record of each key and window only. Everything is by window and by
time of arrival; an output row says which window it is of.

    q1   prices of bids in euros: stateless
    q4   highest bid of each auction, joined with the auctions opened in the window; average by category
    q5   bids on each auction in windows twice as long that begin one after the other; the most of them
    q6   as q4; average by seller
    q7   highest bid of each auction; the highest of the window
    q8   auctions of each seller, joined with the people who came in the window

All events that a query reads come in one source, so it is they that arrive at the rate of the shape.
See `burst_truth` for what should come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.model import milliseconds
from penstock.sim.shapes import Shape, shape
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads.burst_events import Having, MixedEvents, scaled_down
from penstock_bench.workloads.nexmark.columns import Stream
from penstock_bench.workloads.nexmark.config import AUCTIONS, BIDS, PEOPLE

WINDOW = "2s"
_RATE = pa.scalar(Decimal("0.908"))


@dataclass(frozen=True)
class BurstQuery:
    """One of the queries."""

    reads: Mapping[Stream, Mapping[str, str]]
    """What its rows hold (see `MixedEvents`)."""
    steps: Callable[[ps.Flow, str, int], ps.Flow]
    """Of its rows, a window and a number of slots."""
    busy: str
    """The step that gets the many rows."""
    records: float
    """That this step gets of each row, if nobody combines them before."""
    time: str = "window_end"
    """The column of the output that says when a row was due."""


def euros(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bids, with their prices in euros."""
    prices = pc.multiply(batch.column("price").cast(pa.decimal128(19, 0)), _RATE)
    place = batch.schema.get_field_index("price")
    return batch.set_column(place, pa.field("price", prices.type), prices)


def _q1(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    return bids.map_batches(euros)


def _q5(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    size = ps.hopping(2 * milliseconds(window) / 1000, window)
    counts = bids.key_by("auction", slots=slots).window(size).aggregate(num=ps.count())
    return counts.key_by("window_start", "window_end", slots=slots).top(
        1, by="num desc", ties=True, until="window_end"
    )


def _highest(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    keyed = bids.key_by("auction", slots=slots).window(ps.tumbling(window))
    return keyed.aggregate(price=ps.max("price"))


def _q7(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    highest = _highest(bids, window, slots)
    return highest.key_by("window_start", "window_end", slots=slots).top(
        1, by="price desc", ties=True, until="window_end"
    )


def _closing(by: str) -> Callable[[ps.Flow, str, int], ps.Flow]:
    """Average of the highest bids on auctions that were opened in the window, by one of their columns."""

    def steps(events: ps.Flow, window: str, slots: int) -> ps.Flow:
        bids = events.map_batches(Having("price", ("arrival", "auction", "price")))
        opened = events.map_batches(Having(by, ("arrival", "auction", by)))
        final = _highest(bids, window, slots).select("auction", "price", closed="window_start")
        sold = final.join(
            opened,
            on="auction",
            window=ps.tumbling(window),
            left_time="closed",
            right_time="arrival",
            slots=slots,
        )
        keyed = sold.select(by, "price", "closed").key_by(by, slots=slots)
        return keyed.window(ps.tumbling(window), on="closed").aggregate(price=ps.avg("price"))

    return steps


def _q8(events: ps.Flow, window: str, slots: int) -> ps.Flow:
    auctions = events.map_batches(Having("seller", ("arrival", "seller")))
    people = events.map_batches(Having("name", ("arrival", "id", "name")))
    keyed = auctions.key_by("seller", slots=slots).window(ps.tumbling(window))
    sellers = keyed.aggregate(auctions=ps.count()).select("seller", "auctions", sold="window_start")
    joined = sellers.join(
        people,
        on={"seller": "id"},
        window=ps.tumbling(window),
        left_time="sold",
        right_time="arrival",
        slots=slots,
    )
    return joined.select("id", "name", "auctions", "window_start", "window_end")


_BID: Mapping[str, str] = {"auction": "auction", "price": "price"}
_WITH_AUCTIONS = BIDS / (AUCTIONS + BIDS)


def _on_auctions(column: str) -> BurstQuery:
    reads: dict[Stream, Mapping[str, str]] = {
        "auction": {"auction": "id", column: column},
        "bid": _BID,
    }
    return BurstQuery(reads, _closing(column), "window-2", _WITH_AUCTIONS)


QUERIES: dict[str, BurstQuery] = {
    "q1": BurstQuery({"bid": {**_BID, "bidder": "bidder"}}, _q1, "map-1", 1.0, "arrival"),
    "q4": _on_auctions("category"),
    "q5": BurstQuery({"bid": {"auction": "auction"}}, _q5, "window-1", 2.0),
    "q6": _on_auctions("seller"),
    "q7": BurstQuery({"bid": _BID}, _q7, "window-1", 1.0),
    "q8": BurstQuery(
        {"person": {"id": "id", "name": "name"}, "auction": {"seller": "seller"}},
        _q8,
        "window-2",
        AUCTIONS / (PEOPLE + AUCTIONS),
    ),
}


def query(name: str) -> BurstQuery:
    """The query of this name."""
    if name not in QUERIES:
        raise SettingError(
            f"there is no query {name!r} for bursts", hint=f"take one of {', '.join(QUERIES)}"
        )
    return QUERIES[name]


def content(name: str, seed: int = 1) -> MixedEvents:
    """What the rows of a query hold."""
    return MixedEvents(query(name).reads, scaled_down(seed))


def steps_of(name: str, rows: DataFrame, window: str = WINDOW, slots: int = 64) -> ps.Flow:
    """The query on rows that have their time of arrival in a column `arrival`."""
    came = ps.flow(rows, arrival="arrival", event_time="arrival")
    return query(name).steps(came, window, slots)


def flow(
    name: str,
    spark: SparkSession,
    rate: str | Shape,
    slots: int = 64,
    seed: int = 1,
    partitions: int = 2,
    start_ms: int | None = None,
    window: str = WINDOW,
) -> ps.Flow:
    """The query of this name on events that arrive at the rate of a shape: those that it reads.

    Without a `start_ms` they begin when the query has come up; see `arriving`. Rows of the lead-in
    have no time: they do not reach the query, nor are they counted in its progress.
    """
    load = Arriving(shape(rate), content(name, seed), partitions, start_ms)
    rows = arriving(spark, f"nexmark_{name}", load).where("arrival IS NOT NULL")
    return steps_of(name, rows, window, slots)
