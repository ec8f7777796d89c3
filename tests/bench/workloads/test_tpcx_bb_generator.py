"""The TPCx-BB generator: it does not depend on the chunks, and has skew and a daily rhythm."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.tpcx_bb.clicks import clicks
from penstock_bench.workloads.tpcx_bb.config import (
    EVENT_TIME,
    PAGES,
    PARTITIONED_BY,
    SCHEMAS,
    STREAMS,
    TpcxBbConfig,
)
from penstock_bench.workloads.tpcx_bb.draws import begins_ms, most_in
from penstock_bench.workloads.tpcx_bb.files import batches_of, parted, write
from penstock_bench.workloads.tpcx_bb.store_sales import store_sales

CONFIG = TpcxBbConfig(tickets=20_000, sessions=20_000)


@pytest.fixture(scope="module")
def sales() -> pa.Table:
    return store_sales(CONFIG, 0, CONFIG.tickets)


@pytest.fixture(scope="module")
def clicked() -> pa.Table:
    return clicks(CONFIG, 0, CONFIG.sessions)


def hours(table: pa.Table, column: str) -> np.ndarray:
    """Number of rows in each hour of the day."""
    return np.bincount(pc.hour(table.column(column)).to_numpy(), minlength=24)


def share_of_first(column: pa.ChunkedArray, part: float) -> float:
    """Share of all rows with the most frequent values."""
    counts = np.sort(pc.value_counts(column.drop_null()).field("counts").to_numpy())[::-1]
    return float(counts[: max(1, int(part * len(counts)))].sum() / counts.sum())


def test_it_makes_the_same_on_any_machine() -> None:
    """These digests only change when the generator is changed on purpose."""
    config = TpcxBbConfig(tickets=500, sessions=500, seed=7, items=500, users=100)
    found = {}
    for stream in STREAMS:
        (table,) = batches_of(config, stream, 1)
        texts = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
        found[stream] = hashlib.sha256(repr(texts.to_pydict()).encode()).hexdigest()[:16]
    assert found == {"store_sales": "5364887eb0d851db", "clicks": "79c5744a5e034bbb"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_do_not_depend_on_the_chunks(data: st.DataObject) -> None:
    config = TpcxBbConfig(
        tickets=300,
        sessions=300,
        seed=data.draw(st.integers(0, 2)),
        sessions_per_day=data.draw(st.sampled_from([10, 500, 100_000])),
    )
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, 300), max_size=4))), 300]
    for make in (store_sales, clicks):
        parts = [make(config, a, b - a) for a, b in pairwise(cuts)]
        assert pa.concat_tables(parts).equals(make(config, 0, 300))


@pytest.mark.parametrize("stream", STREAMS)
def test_rows_come_in_order_of_time(stream: str, sales: pa.Table, clicked: pa.Table) -> None:
    table = sales if stream == "store_sales" else clicked
    assert table.schema == SCHEMAS[stream]  # type: ignore[index]
    times = table.column(EVENT_TIME[stream]).cast(pa.int64()).to_numpy()  # type: ignore[index]
    assert (np.diff(times) >= 0).all()


def test_a_day_has_busy_and_quiet_hours(sales: pa.Table, clicked: pa.Table) -> None:
    for table, column in ((sales, "sold_at"), (clicked, "clicked_at")):
        found = hours(table, column)
        assert found[3] > 0
        assert found[19] > 10 * found[3]


def test_times_never_go_back_and_are_bounded() -> None:
    for per_day in (1, 7, 5_000, 10_000_000):
        begins = begins_ms(np.arange(20_000), per_day)
        assert (np.diff(begins) >= 0).all()
        assert begins[0] == 0
        if per_day < 20_000:
            assert begins[per_day] == 86_400_000
        for span in (1_000, 3_600_000):
            within = np.searchsorted(begins, begins + span, side="left") - np.arange(len(begins))
            assert within.max() <= most_in(span, per_day)


def test_sales_are_skewed(sales: pa.Table) -> None:
    assert share_of_first(sales.column("item"), 0.01) > 0.2
    assert share_of_first(sales.column("store"), 0.1) > 0.15
    assert sales.column("ticket").to_numpy()[-1] == CONFIG.tickets - 1
    assert set(pc.unique(sales.column("category")).to_pylist()) == set(range(1, 11))
    assert pc.min(sales.column("price")).as_py() > 0
    lines = pc.value_counts(sales.column("ticket")).field("counts").to_numpy()
    assert 3 < lines.mean() < 4
    assert lines.max() == 12
    one_time = sales.group_by("ticket").aggregate([("sold_at", "count_distinct")])
    assert pc.max(one_time.column("sold_at_count_distinct")).as_py() == 1


def test_prices_of_categories_rise_and_fall() -> None:
    config = TpcxBbConfig(tickets=12_000, tickets_per_day=200, items=100)
    table = store_sales(config, 0, config.tickets)
    late = pc.greater(table.column("ticket"), 10_000)
    risen = set()
    for item in range(1, 11):
        mine = pc.equal(table.column("item"), item)
        prices = table.column("price")
        first = prices.filter(mine)[0].as_py()
        last = prices.filter(pc.and_(mine, late))[-1].as_py()
        assert 0.55 * first < last < 1.45 * first
        risen.add(last > first)
    assert risen == {True, False}


def test_clicks_are_of_all_kinds(clicked: pa.Table) -> None:
    counts = {row["values"]: row["counts"] for row in pc.value_counts(clicked["page"]).to_pylist()}
    assert set(counts) == set(PAGES)
    assert counts["view"] > 10 * counts["cart"] > 20 * counts["checkout"]
    assert counts["checkout"] > counts["purchase"] > 0.5 * counts["checkout"]
    no_item = clicked.filter(pc.is_null(clicked["item"]))
    assert set(no_item["page"].to_pylist()) == {"checkout"}
    assert 0.05 < clicked["user"].null_count / len(clicked) < 0.15
    assert share_of_first(clicked["user"], 0.01) > 0.05
    assert share_of_first(clicked["item"], 0.01) > 0.2


@pytest.mark.parametrize("stream", STREAMS)
def test_files_hold_each_key_in_one_partition(stream: str, tmp_path: Path) -> None:
    config, key = TpcxBbConfig(tickets=200, sessions=200), PARTITIONED_BY[stream]  # type: ignore[index]
    rows = write(config, stream, tmp_path / "rows", batches=3, parts=2)  # type: ignore[arg-type]
    files = sorted((tmp_path / "rows").iterdir())
    assert [file.name for file in files] == [
        f"{n:08d}-{p}.parquet" for n in range(3) for p in (0, 1)
    ]
    assert sorted(files, key=lambda file: file.stat().st_mtime) == files
    tables = [pq.read_table(file) for file in files]
    assert sum(map(len, tables)) == rows
    assert all(pq.ParquetFile(file).num_row_groups <= 1 for file in files)
    for part in (0, 1):
        keys = pa.concat_tables(tables[part::2])[key].drop_null().to_numpy()
        assert set(keys % 2) == {part}
    with pytest.raises(StoreError, match="has files already"):
        write(config, stream, tmp_path / "rows")  # type: ignore[arg-type]


def test_parts_keep_the_order(clicked: pa.Table) -> None:
    for part in parted("clicks", clicked, 3):
        times = part["clicked_at"].cast(pa.int64()).to_numpy()
        assert (np.diff(times) >= 0).all()


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(SettingError, match="sessions_per_day"):
        TpcxBbConfig(sessions_per_day=0)
    with pytest.raises(SettingError, match="batches is 0"):
        list(batches_of(CONFIG, "clicks", 0))
