"""The TPCx-BB flows: their results agree with the oracle, whatever the epochs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SettingError
from penstock.plan.steps import KeyedStep, MapStep
from penstock_bench.workloads.tpcx_bb.catalog import TITLES, final, find, plan
from penstock_bench.workloads.tpcx_bb.config import TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.files import batches_of, parted
from penstock_bench.workloads.tpcx_bb.queries.q15 import slope
from tests.bench.workloads.tpcx_bb_sql import answer
from tests.trials.cluster import SETTINGS, MiniCluster, cluster

SALES = TpcxBbConfig(tickets=960, seed=3, tickets_per_day=80, items=200)
"""Sales of twelve days."""
BUSY_SALES = TpcxBbConfig(tickets=1_000, seed=3, tickets_per_day=600, items=200)
"""Sales with more than a hundred pairs in an hour."""
CLICKS = TpcxBbConfig(sessions=900, seed=3, sessions_per_day=60, items=200, users=60)
"""Clicks of two weeks: users come back, and some views are too old to count."""
BUYING = replace(CLICKS, sessions=1_500, users=200, sessions_per_day=100, item_exponent=1.2)
"""Clicks in which the most popular item is bought after many different views."""
CONFIGS = {1: BUSY_SALES, 2: CLICKS, 3: BUYING, 4: CLICKS, 15: SALES}

PATIENT = replace(SETTINGS, rpc_timeout_ms=60_000, exchange_timeout_ms=60_000)
"""Settings with long timeouts: no host dies here, so tests wait for slow answers."""
THREE_WORKERS = replace(PATIENT, host_cores=3, host_parts=5, chunk_rows=300)

Row = dict[str, Any]


@cache
def rows_of(number: int) -> pa.Table:
    (rows,) = batches_of(CONFIGS[number], find(number).stream, 1)
    return rows


def check(number: int, found: pa.Table, rows: pa.Table) -> None:
    expected = answer(number, rows)
    assert found.column_names == expected.column_names
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    actual = [tuple(row.values()) for row in found.to_pylist()]
    if number == 15:  # The oracle converts its integers to floats before it divides them.
        assert [row[0] for row in actual] == [row[0] for row in wanted]
        assert [row[1] for row in actual] == pytest.approx([row[1] for row in wanted])
    else:
        assert actual == wanted
    assert actual


def dicts(table: pa.Table) -> list[Row]:
    """Rows in the form of `MiniCluster`, with times in milliseconds."""
    times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    for name in times:
        in_ms = table.column(name).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), name, in_ms)
    return table.to_pylist()


def run_to_the_end(on: MiniCluster, number: int, rows: pa.Table, cuts: Sequence[int]) -> pa.Table:
    """Run the rows in epochs that end at these cuts, in two partitions, then close all windows."""
    stream = find(number).stream
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        on.run([dicts(part) for part in parted(stream, rows.slice(begin, end - begin), 2)])
    for closing in range(1, 1 + max(on.flow.depths.values())):
        on.run([[], []], closing=closing)
    schema = on.flow.output
    return final(
        number, [[pa.RecordBatch.from_pylist(on.sink[n], schema)] for n in sorted(on.sink)]
    )


@pytest.mark.parametrize("number", TITLES)
def test_the_steps_are_those_of_the_benchmark(number: int) -> None:
    """The chains are linear, with the same stateless, keyed and global steps as in the multicore runtime."""
    kinds = []
    for step in plan(number).steps:
        if isinstance(step, MapStep):
            kinds.append("stateless")
        else:
            assert isinstance(step, KeyedStep)
            kinds.append("global" if step.slots == 1 else "keyed")
    assert tuple(kinds) == find(number).shape
    assert all(plan(number).reads(n) == (n,) for n in range(len(kinds)))


def test_the_first_few_are_not_all() -> None:
    """Otherwise the limits of the queries would not be tested."""
    assert max(answer(1, rows_of(1))["place"].to_pylist()) == 100
    assert len(answer(2, rows_of(2))) == 30
    assert Counter(answer(3, rows_of(3))["bought"].to_pylist())[1] == 30
    assert 0 < len(answer(15, rows_of(15))) < 10


def test_there_are_no_other_queries() -> None:
    with pytest.raises(SettingError, match="no TPCx-BB query 5"):
        find(5)


@pytest.mark.parametrize("number", TITLES)
def test_answers(number: int, tmp_path: Path) -> None:
    rows = rows_of(number)
    with cluster(plan(number), str(tmp_path), hosts=2, settings=PATIENT) as on:
        check(number, run_to_the_end(on, number, rows, [1, 700, 701, 1_900, 2_600]), rows)


@pytest.mark.parametrize("number", TITLES)
def test_answers_in_one_epoch(number: int, tmp_path: Path) -> None:
    rows = rows_of(number)
    with cluster(plan(number), str(tmp_path), hosts=1, settings=PATIENT) as on:
        check(number, run_to_the_end(on, number, rows, []), rows)


@pytest.mark.parametrize("number", TITLES)
def test_answers_on_one_host(number: int, tmp_path: Path) -> None:
    rows = rows_of(number)
    flow = replace(plan(number), one_host=True)
    with cluster(flow, str(tmp_path), settings=THREE_WORKERS) as on:
        check(number, run_to_the_end(on, number, rows, [1, 1_900]), rows)


@pytest.mark.slow
@pytest.mark.parametrize("number", TITLES)
@pytest.mark.parametrize("seed", range(4))
def test_answers_however_rows_are_cut(number: int, seed: int, tmp_path: Path) -> None:
    (rows,) = batches_of(replace(CONFIGS[number], seed=seed), find(number).stream, 1)
    pick = random.Random(seed)
    cuts = sorted(pick.randrange(len(rows)) for _ in range(8))
    with cluster(plan(number), str(tmp_path), hosts=1 + seed % 3, settings=PATIENT) as on:
        check(number, run_to_the_end(on, number, rows, cuts), rows)


@pytest.mark.parametrize("number", TITLES)
def test_nothing_in_nothing_out(number: int, tmp_path: Path) -> None:
    with cluster(plan(number), str(tmp_path), hosts=1, settings=PATIENT) as on:
        found = final(number, [])
        assert len(found) == 0
        on.run([[], []])
        assert on.sink == {0: []}


def test_a_flat_category_is_told_of() -> None:
    assert slope([3, 4, 5, 6], [7, 7, 7, 7]) == 0.0
    # Floating-point arithmetic would give a small rise.
    days = list(range(12_000, 12_090))
    assert slope(days, [10**12 + 1] * 90) == 0.0
