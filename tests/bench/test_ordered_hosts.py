"""The sides of `penstock bench ordered` that are whole steps and queries, with real work."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from penstock.operators.process.step import ProcessPlan
from penstock_bench.ordered import flow as ordered_flow
from penstock_bench.ordered import limit as ordered_limit
from penstock_bench.ordered.flow import SCHEMA, Before, StepInProcess
from penstock_bench.ordered.queries import (
    QUERIES,
    HostLoad,
    QueryInProcess,
    epochs,
    measure,
    run_one,
)
from penstock_bench.workloads.tpcx_bb import catalog
from penstock_bench.workloads.tpcx_bb.config import EVENT_TIME

LOAD = HostLoad(chunks=4, chunk_rows=100, parts=4, us=5)


def test_only_the_ordered_step_keeps_the_order_of_arrival() -> None:
    tables: dict[bool, list[pa.Table]] = {}
    for ordered in (True, False):
        with closing(StepInProcess(ProcessPlan(SCHEMA, ["k"], Before()), ordered)) as step:
            input = ordered_flow.epochs(5_000)
            tables[ordered] = [
                pa.Table.from_batches(step.run(epoch, next(input))) for epoch in range(2)
            ]
    for ordered, plain in zip(tables[True], tables[False], strict=True):
        assert ordered.column("v").to_pylist() == list(range(5_000))
        assert plain.column("v").to_pylist() != list(range(5_000))
        assert plain.sort_by("v").to_pylist() == ordered.to_pylist()


def test_both_sides_of_a_flow_are_measured() -> None:
    lines: list[str] = []
    results = ordered_flow.measure(rounds=2, repeats=1, show=lines.append, rows=1_000)
    assert {(one["step"], one["ordered"]) for one in results} == {
        (step, ordered) for step in ("sum", "process") for ordered in (True, False)
    }
    assert all(len(one["records_per_s"]) == 2 for one in results)
    assert len(lines) == 4


def output(query: int, workers: int, load: HostLoad) -> list[list[dict[str, object]]]:
    """The output of each epoch of a query, in order."""
    stream = catalog.find(query).stream
    host = QueryInProcess(query, workers, "ct", load)
    with closing(host):
        rows_by_epoch = []
        some = epochs(stream, load)
        # Each keyed step is an epoch behind the one before: the counts of the first need a fourth epoch.
        for epoch, rows in enumerate([*some, some[-1].slice(len(some[-1]) - 10)]):
            batches = host.run(epoch, rows)
            rows_by_epoch.append([row for batch in batches for row in batch.to_pylist()])
        return rows_by_epoch


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_with_many_workers_and_with_one(query: int) -> None:
    load = HostLoad(chunks=8, chunk_rows=250, parts=4)
    alone = output(query, 1, load)
    assert output(query, 3, HostLoad(load.chunks, load.chunk_rows, load.parts, us=2)) == alone
    assert any(alone)


def test_epochs_are_in_order_of_time() -> None:
    for stream in ("store_sales", "clicks"):
        some = epochs(stream, LOAD)
        assert [len(rows) for rows in some] == [100, 200, 200]
        times = pa.concat_tables(some).column(EVENT_TIME[stream]).to_pylist()
        assert times == sorted(times)


def test_costs_are_slept() -> None:
    """A query cannot be faster than its sleeps, spread over its workers."""
    data = epochs("store_sales", LOAD)
    slow = HostLoad(LOAD.chunks, LOAD.chunk_rows, LOAD.parts, us=200)
    assert run_one(15, 2, "ct", slow, data) < 2 / 200e-6


def test_all_queries_are_measured_in_turn() -> None:
    lines: list[str] = []
    results = measure("hosts", LOAD, [(1, "ct"), (2, "lp")], 2, lines.append)
    assert [(one["query"], one["workers"]) for one in results] == [
        (query, workers) for query in QUERIES for workers in (1, 2)
    ]
    assert all(len(one["records_per_s"]) == 2 for one in results)
    assert len(lines) == len(results)


def test_the_limit_is_measured_by_threads_alone() -> None:
    one, two = ordered_limit.measure(rounds=2, seconds=0.02, show=lambda line: None)
    assert (one["workers"], two["workers"]) == (1, 2)
    assert all(rate > 0 for rate in one["records_per_s"] + two["records_per_s"])
