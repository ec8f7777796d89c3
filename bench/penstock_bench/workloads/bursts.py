"""Workloads under bursts beside NEXMark's queries: word count, the skewed sum, user logic, and a join first.

    words   words of sentences are counted; stateless work splits the sentences
    skewed  AutoFlow's sum of prices by id, half of the rows on a quarter of the slots
    own     a processor of a user that merges: the range of the bids on an auction
    joined  bids meet their auctions before anything is aggregated: the join gets all rows

All are in windows, by time of arrival, so that their output can be compared with a database's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.model import milliseconds
from penstock.sim.pieces import Numbers
from penstock.sim.skews import Hotspot
from penstock_bench.workloads.nexmark.arriving_events import Having
from penstock_bench.workloads.nexmark.query import BurstForm
from penstock_bench.workloads.shaped import KeyedRows
from penstock_bench.workloads.skewed_sum import BidRows
from penstock_bench.workloads.word_count import SentenceRows

_IDS = 2_000


@dataclass(frozen=True)
class Rows:
    """Rows of another workload, with their schema."""

    content: SentenceRows | BidRows
    types: tuple[tuple[str, pa.DataType], ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.types))

    @property
    def columns(self) -> str:
        return self.content.columns

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return self.content.rows(number, t_us)


def sentence_rows(seed: int) -> Rows:
    """Sentences of eight words out of a thousand, so that partial counts are few."""
    return Rows(
        SentenceRows(words=1_000, seed=seed), (("id", pa.int64()), ("sentence", pa.string()))
    )


def bid_rows(seed: int) -> Rows:
    """Bids with a hotspot, which moves every ten seconds."""
    ids = KeyedRows(_IDS, Hotspot(0.5, 4, 1, 10.0), seed=seed)
    return Rows(BidRows(ids), (("id", pa.int64()), ("price", pa.int64())))


def split(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each word of the sentences.

    >>> split(pa.record_batch({"arrival": [7, 8], "sentence": ["to be", "or"]})).to_pydict()
    {'arrival': [7, 7, 8], 'word': ['to', 'be', 'or']}
    """
    words = pc.utf8_split_whitespace(batch.column("sentence"))
    arrival = batch.column("arrival").take(pc.list_parent_indices(words))
    return pa.RecordBatch.from_arrays([arrival, pc.list_flatten(words)], ["arrival", "word"])


def _words(sentences: ps.Flow, window: str, slots: int) -> ps.Flow:
    words = sentences.map_batches(split).key_by("word", slots=slots)
    return words.window(ps.tumbling(window)).aggregate(n=ps.count())


def _skewed(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    keyed = bids.key_by("id", slots=slots).window(ps.tumbling(window))
    return keyed.aggregate(total=ps.sum("price"))


@dataclass(frozen=True)
class Ending:
    """A stateless step that adds the end of each row's window, in microseconds. Picklable.

    >>> rows = pa.record_batch({"arrival": pa.array([1_999, 2_000]), "price": [5, 6]})
    >>> Ending(2)(rows).column("window_end").to_pylist()
    [2000, 4000]
    """

    window_ms: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        size, came = pa.scalar(self.window_ms * 1000), batch.column("arrival").cast(pa.int64())
        ends = pc.multiply(pc.add(pc.divide(came, size), 1), size)
        return batch.append_column("window_end", ends)

    @property
    def __name__(self) -> str:
        return f"the end of each {self.window_ms} ms"


class Range(ps.KeyedProcessor):
    """Lowest and highest price of an auction in a window, and number of bids, once it is over. It merges."""

    output_schema = pa.schema(
        [(name, pa.int64()) for name in ("auction", "window_end", "low", "high", "bids")]
    )

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.get_value_state("seen", "low long, high long, bids long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        self.handle.register_timer(key[1] // 1000, "event")
        prices = rows.column("price")
        self._add(min(prices), max(prices), len(prices))

    def merge(self, other: Range) -> None:
        self._add(*other.seen.get())

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> list[tuple[int, ...]]:
        found = self.seen.get()
        self.seen.clear()
        return [(*key, *found)]

    def _add(self, low: int, high: int, bids: int) -> None:
        before = self.seen.get() or (low, high, 0)
        self.seen.update((min(low, before[0]), max(high, before[1]), bids + before[2]))


def _own(bids: ps.Flow, window: str, slots: int) -> ps.Flow:
    ending = bids.map_batches(Ending(milliseconds(window)))
    return ending.key_by("auction", "window_end", slots=slots).process(Range())


def _joined(events: ps.Flow, window: str, slots: int) -> ps.Flow:
    bids = events.map_batches(Having("price", ("arrival", "auction", "price")))
    opened = events.map_batches(Having("category", ("arrival", "auction", "category")))
    met = bids.select("auction", "price", came="arrival").join(
        opened,
        on="auction",
        window=ps.tumbling(window),
        left_time="came",
        right_time="arrival",
        slots=slots,
    )
    keyed = met.select("category", "price", "came").key_by("category", slots=slots)
    prices = keyed.window(ps.tumbling(window), on="came")
    return prices.aggregate(highest=ps.max("price"), bids=ps.count())


BURSTS: Mapping[str, BurstForm] = {
    "words": BurstForm(
        {},
        _words,
        busy="window-1",
        records=8.0,
        truth="""
            SELECT word, first AS window_start, first + $size AS window_end, count(*) AS n
            FROM (SELECT unnest(string_split(sentence, ' ')) AS word, start(arrival) AS first FROM rows)
            GROUP BY ALL""",
        content=sentence_rows,
    ),
    "skewed": BurstForm(
        {},
        _skewed,
        busy="window-1",
        records=1.0,
        truth="""
            SELECT id, first AS window_start, first + $size AS window_end, total
            FROM (SELECT id, start(arrival) AS first, CAST(sum(price) AS BIGINT) AS total
                  FROM rows GROUP BY ALL)""",
        content=bid_rows,
    ),
    "own": BurstForm(
        {"bid": {"auction": "auction", "price": "price"}},
        _own,
        busy="process-1",
        records=1.0,
        truth="""
            SELECT auction, first + $size AS window_end, low, high, bids
            FROM (SELECT auction, start(arrival) AS first, min(price) AS low, max(price) AS high,
                         count(*) AS bids
                  FROM rows GROUP BY ALL)""",
    ),
    "joined": BurstForm(
        {
            "auction": {"auction": "id", "category": "category"},
            "bid": {"auction": "auction", "price": "price"},
        },
        _joined,
        busy="join-1",
        records=1.0,
        truth="""
            SELECT category, first AS window_start, first + $size AS window_end,
                   max(price) AS highest, count(*) AS bids
            FROM (SELECT auction, price, start(arrival) AS first FROM rows WHERE price IS NOT NULL)
            JOIN (SELECT auction, category, start(arrival) AS first
                  FROM rows WHERE category IS NOT NULL) AS opened USING (auction, first)
            GROUP BY ALL""",
    ),
}
"""Name -> form. See `nexmark.live`, which runs them as it runs NEXMark's queries."""
