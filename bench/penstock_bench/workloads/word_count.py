"""Word count: sentences are split into words, words are counted. Two keyed steps, one after the other.

>>> rows = sentences(spark, "sine(15000, 3750, 300s)")                  # doctest: +SKIP
>>> query = flow(rows).start(ps.to("console"), checkpoint="ck", hosts=2)  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Shape, shape
from penstock.sim.skews import Zipf
from penstock.spark.arriving import Arriving, arriving
from penstock_bench.workloads.draws import Draws

_SYLLABLES = (
    *("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu"),
    *("pa", "re", "si", "to", "vu", "wa", "xe", "yi", "zo", "chu"),
)


class Split(ps.KeyedProcessor):
    """Splits sentences into words. It is keyed by sentence only to spread the work over hosts.

    >>> from penstock.testing import ProcessorTester
    >>> tester = ProcessorTester(Split(), "id long, sentence string", key="id")
    >>> tester.feed([(1, "to be  or"), (2, None), (3, " ")])
    [Row(word='to'), Row(word='be'), Row(word='or')]
    """

    output_schema = "word string"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column("sentence")))
        return pa.RecordBatch.from_arrays([words.filter(pc.not_equal(words, ""))], ["word"])


def flow(rows: DataFrame, slots: int = 64) -> ps.Flow:
    """Counts the words of a stream of sentences (arrival, id, sentence); its output is (word, n)."""
    words = ps.flow(rows, arrival="arrival").key_by("id", slots=slots).process(Split())
    return words.key_by("word", slots=slots).aggregate(n=ps.count())


@dataclass(frozen=True)
class SentenceRows:
    """Sentences whose words follow Zipf's law. They depend only on number and seed.

    >>> id, sentence = SentenceRows(length=3).rows(np.array([5]), np.zeros(1))
    >>> id.to_pylist(), len(sentence[0].as_py().split())
    ([5], 3)
    """

    words: int = 20_000
    exponent: float = 1.0
    length: int = 8
    """Words per sentence."""
    seed: int = 1

    columns = "id long, sentence string"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        ends = np.arange(len(number) + 1, dtype=np.int32) * self.length
        words = vocabulary(self.words).take(self.ranks(number))
        return [
            pa.array(number),
            pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), words), " "),
        ]

    def ranks(self, number: Numbers) -> Numbers:
        """Ranks of the words of these sentences, one sentence after the other."""
        places = np.repeat(number * self.length, self.length)
        places += np.tile(np.arange(self.length), len(number))
        return Zipf(self.exponent).ranks(self.words, Draws(self.seed, places).unit("word"))


@lru_cache(maxsize=4)
def vocabulary(words: int) -> pa.Array:
    """All words, the most frequent first."""
    return pa.array([_word(rank) for rank in range(words)])


def _word(rank: int) -> str:
    """The word of a rank: more frequent words are shorter.

    >>> _word(0), _word(19), _word(20), _word(19_999)
    ('ba', 'chu', 'baba', 'cemozochu')
    """
    word = _SYLLABLES[rank % len(_SYLLABLES)]
    while rank >= len(_SYLLABLES):
        rank = rank // len(_SYLLABLES) - 1
        word = _SYLLABLES[rank % len(_SYLLABLES)] + word
    return word


def sentences(
    spark: SparkSession,
    rate: str | Shape,
    content: SentenceRows | None = None,
    partitions: int = 2,
    start_ms: int | None = None,
) -> DataFrame:
    """A stream of (arrival, id, sentence) with the shape `rate` in sentences per second; see `arriving`."""
    load = Arriving(shape(rate), content or SentenceRows(), partitions, start_ms)
    return arriving(spark, "sentences", load)
