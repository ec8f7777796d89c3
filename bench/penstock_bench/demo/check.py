"""The check of the demo's answer: DuckDB computes it again, over exactly the bids that were read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.live.sources.rate import RateSource
from penstock.state.store.store import Store
from penstock_bench.live.load import LedSource

_SHOWN = 3
"""Most wrong auctions that a message shows."""
_SQL = """
    WITH expected AS (
        SELECT auction, count(*) AS bids, max(price) AS highest, sum(price)::BIGINT AS total
        FROM bids GROUP BY auction
    ), got AS (  -- a row of an auction replaces those before it
        SELECT auction, max(bids) AS bids, arg_max(highest, bids) AS highest, arg_max(total, bids) AS total
        FROM output GROUP BY auction
    )
    SELECT auction, expected.bids AS bids, got.bids AS counted,
        expected.highest AS highest, got.highest AS found,
        expected.total AS total, got.total AS added
    FROM expected FULL JOIN got USING (auction)
    WHERE (expected.bids, expected.highest, expected.total)
        IS DISTINCT FROM (got.bids, got.highest, got.total)
    ORDER BY auction
"""


@dataclass(frozen=True)
class Checked:
    """The answer of a run compared with DuckDB's."""

    bids: int
    """Bids that the flow read."""
    auctions: int
    """Auctions in DuckDB's answer."""
    wrong: int
    """Auctions for which the flow's answer is another one."""
    some: tuple[dict[str, Any], ...] = ()
    """Some wrong auctions, with both answers."""

    def __str__(self) -> str:
        if not self.wrong:
            return (
                f"Exactly once: number, highest price and sum of {self.bids:,} bids are the same as DuckDB's "
                f"for all {self.auctions:,} auctions"
            )
        examples = "; ".join(
            f"auction {row['auction']} has {row['bids'] or 0:,} bids, {row['total'] or 0:,} in all, and the "
            f"flow says {row['counted'] or 0:,} and {row['added'] or 0:,}"
            for row in self.some
        )
        return (
            f"Wrong answer: another one than DuckDB's for {self.wrong:,} of {self.auctions:,} auctions. "
            f"{examples}"
        )


@dataclass(frozen=True)
class BidsRead:
    """The bids that a flow has read: their numbers in each partition, and the start of the load."""

    numbers: tuple[range, ...]
    start_ms: int
    """In milliseconds since 1970."""


def bids_read(store: Store) -> BidsRead:
    """The bids that a live flow has read, from the positions in the checkpoint's newest manifest."""
    manifest = store.read_manifest(max(store.epochs(), default=-1))
    positions = (manifest.positions or {}).get("0", {}) if manifest is not None else {}
    count = len(positions)
    numbers = (range(int(p), int(p) + count * at["row"], count) for p, at in positions.items())
    starts = [at["start_ms"] for at in positions.values() if at["start_ms"] is not None]
    return BidsRead(tuple(numbers), min(starts, default=0))


def waiting_ms(source: LedSource, read: BidsRead, at_ms: float) -> float:
    """How long the oldest bid that a flow has not read had waited at a time, in milliseconds since 1970."""
    unread = np.array([numbers.stop for numbers in read.numbers] or [0], np.int64)
    arrival_ms = source.begun_ms + float(source.arrivals.arrival_us(unread).min()) / 1000
    return max(0.0, at_ms - arrival_ms)


def check(source: RateSource, read: BidsRead, output: Iterable[pa.Table]) -> Checked:
    """Compare a flow's output with DuckDB's answer for the bids that it read."""
    number = np.concatenate([np.empty(0, np.int64), *map(_array, read.numbers)])
    return compared(pa.Table.from_batches([source.made(number, read.start_ms)]), list(output))


def compared(bids: pa.Table, output: Sequence[pa.Table]) -> Checked:
    """Compare the output of a flow with DuckDB's answer for these bids."""
    import duckdb  # only those who check something need it

    columns = ("auction", "bids", "highest", "total")
    nothing = pa.table({name: pa.array([], pa.int64()) for name in columns})
    with duckdb.connect() as db:
        db.register("bids", bids)
        db.register("output", pa.concat_tables([nothing, *(t.select(columns) for t in output)]))
        wrong = db.sql(_SQL).to_arrow_table().to_pylist()
    auctions = pc.count_distinct(bids.column("auction")).as_py()
    return Checked(bids.num_rows, auctions, len(wrong), tuple(wrong[:_SHOWN]))


def _array(numbers: range) -> Any:
    return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
