"""The queries of the benchmark: a keyed sum and NEXMark's q5, on Penstock and on Spark's own engine.

All run in one session, with settings that suit both: Spark's faster checkpoint file manager, no adaptive
planning, as many shuffle partitions as hosts. State is durable after each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
from penstock_bench import sides
from penstock_bench.load.arrivals import bids, keyed, numbered
from penstock_bench.nexmark.native import started
from penstock_bench.workloads.nexmark.catalog import find
from penstock_bench.workloads.nexmark.query import Events

KEYS = 100_000
WAYS = 2
"""Number of source partitions, of hosts per step, and of shuffle partitions."""
PENSTOCK = "penstock"
STORES = {"native_rocksdb": sides.ROCKSDB, "native_hdfs": sides.HDFS}
"""Spark's own engine by state store; Penstock is compared with the better one."""
SIDES = (PENSTOCK, *STORES)

Start = Callable[[DataFrame], AbstractContextManager[StreamingQuery]]
"""Runs a query on a stream of ticks."""


@contextmanager
def _penstock_sum(ticks: DataFrame) -> Iterator[StreamingQuery]:
    with sides.penstock_sum(keyed(numbered(ticks), KEYS)) as query:
        yield query.spark_query()


@contextmanager
def _native_sum(store: str, ticks: DataFrame) -> Iterator[StreamingQuery]:
    with sides.native_sum(keyed(numbered(ticks), KEYS), store) as query:
        yield query


@contextmanager
def _penstock_q5(ticks: DataFrame) -> Iterator[StreamingQuery]:
    flow = find("q5").on(_events(ticks))
    with sides.folder(ticks.sparkSession) as checkpoint:
        query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=WAYS)
        try:
            yield query.spark_query()
        finally:
            query.stop()


@contextmanager
def _native_q5(store: str, ticks: DataFrame) -> Iterator[StreamingQuery]:
    sides.keep_state_in(ticks.sparkSession, store)
    query = find("q5")
    with started(query, query.sql, _events(ticks), processingTime="0 seconds") as running:
        yield running


def _events(ticks: DataFrame) -> Events:
    return Events(ticks.sparkSession, {"bid": bids(numbered(ticks))}, "0 ms")


QUERIES: Mapping[str, Mapping[str, Start]] = {
    "sum": {
        PENSTOCK: _penstock_sum,
        **{side: partial(_native_sum, store) for side, store in STORES.items()},
    },
    "q5": {
        PENSTOCK: _penstock_q5,
        **{side: partial(_native_q5, store) for side, store in STORES.items()},
    },
}
