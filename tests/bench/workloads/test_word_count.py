"""Word count: the generator, and the flow against Python's own counter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock_bench.workloads.word_count import SentenceRows, flow, vocabulary


def rows(content: SentenceRows, start: int, end: int) -> pa.Table:
    number = np.arange(start, end)
    columns = content.rows(number, np.zeros(len(number), np.int64))
    return pa.table(columns, names=["id", "sentence"])


def test_sentences_follow_from_their_number() -> None:
    content = SentenceRows(words=500, seed=3)
    whole = rows(content, 0, 300)
    parts = [rows(content, start, start + 60) for start in range(0, 300, 60)]
    assert pa.concat_tables(parts).combine_chunks() == whole.combine_chunks()
    assert rows(SentenceRows(words=500, seed=4), 0, 300) != whole
    assert all(len(s.split(" ")) == 8 for s in whole["sentence"].to_pylist())


def test_words_follow_zipfs_law() -> None:
    spoken = rows(SentenceRows(words=1000), 0, 20_000)["sentence"].to_pylist()
    counts = Counter(word for sentence in spoken for word in sentence.split())
    (first, most), *others = counts.most_common(10)
    assert first == vocabulary(1000)[0].as_py()
    assert most / others[-1][1] == pytest.approx(10, rel=0.1)


def test_no_two_ranks_have_the_same_word() -> None:
    words = vocabulary(20_000).to_pylist()
    assert len(set(words)) == len(words)


def test_the_flow_counts_words(spark: SparkSession) -> None:
    table = rows(SentenceRows(words=200), 0, 3000)
    arrival = pa.array(np.arange(3000) * 1000).cast(pa.timestamp("us", tz="UTC"))
    sink = ps.collect()
    source = spark.createDataFrame(table.append_column("arrival", arrival))
    assert flow(source, slots=8).start(sink, hosts=2).await_termination(240)
    counts = Counter(" ".join(table["sentence"].to_pylist()).split())
    assert {word: row["n"] for word, row in sink.latest("word").items()} == counts
