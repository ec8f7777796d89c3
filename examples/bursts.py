"""Words of a chat, counted; bursts go to functions.

Shows functions that take up what hosts cannot, and a map step that they do as well. Hosts are made slow here,
so that one machine shows what takes a cluster otherwise.
Run it on this machine for 40 seconds: python examples/bursts.py
"""

import sys
import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.testing import Fault, Pace

SLOW_HOSTS = ps.Settings(faults=(Fault("host.work", Pace(3_000), hits=()),))
"""A host takes 3,000 records a second."""


def words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row for each word of a message."""
    split = pc.list_flatten(pc.utf8_split_whitespace(batch.column("text")))
    return pa.record_batch({"word": pc.utf8_lower(split)})


def counted(messages) -> ps.Flow:
    """How often each word has come. `messages` has a column text."""
    return (
        ps.flow(messages)
        .map_batches(words, schema="word string")
        .key_by("word", slots=32)
        .aggregate(n=ps.count())
        .sla(latency="2s", window="1s")
        .elastic(at_most=2, functions=ps.LocalFunctions(at_most=8))
    )


def main(seconds: float = 40) -> None:
    from pyspark.sql import functions as sf

    spark = ps.session("bursts", cores=6)
    # Twelve files of 40,000 messages are there at once: epochs of one file each are a burst.
    text = sf.concat_ws(" ", *(sf.concat(sf.lit(w), sf.col("id") % 5_000) for w in "abcd"))
    with tempfile.TemporaryDirectory() as folder:
        spark.range(480_000).select(text.alias("text")).repartition(12).write.parquet(
            f"{folder}/messages"
        )
        files = spark.readStream.schema("text string").option("maxFilesPerTrigger", 1)
        query = counted(files.parquet(f"{folder}/messages")).start(
            ps.to("noop"), checkpoint=f"{folder}/checkpoint", hosts=1, settings=SLOW_HOSTS
        )
        query.await_termination(timeout=seconds)
        for epoch in query.progress:
            print(f"epoch {epoch.epoch}: {epoch.rows} rows, {epoch.functions.rows} in functions")
        print(query.money)
        query.stop()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
