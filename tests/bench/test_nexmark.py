"""`penstock bench nexmark`: the results computed from its runs. No bench is run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, SettingError
from penstock_bench.nexmark import bench as nexmark
from penstock_bench.nexmark import native as nexmark_native
from penstock_bench.workloads.nexmark.catalog import QUERIES, TITLES, find
from penstock_bench.workloads.nexmark.columns import SCHEMAS
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.files import chunked
from penstock_bench.workloads.nexmark.generator import generate
from penstock_bench.workloads.nexmark.run import Replay
from tests.bench.made_up import nexmark_report


def progress(batch: int, took_ms: int, **more: Any) -> dict[str, Any]:
    return {"batchId": batch, "durationMs": {"triggerExecution": took_ms}, **more}


def test_every_query_has_a_native_form_on_the_streams_that_the_flow_reads() -> None:
    for name, query in QUERIES.items():
        for sql in filter(None, (query.sql, query.instead, query.truth)):
            read = set(re.findall(r"(?:FROM|JOIN) (person|auction|bid)\b", sql))
            assert read == set(query.needs), name


def test_ratios_are_of_the_sides_of_a_round() -> None:
    ratios = nexmark.ratios(nexmark_report()["results"])
    assert len(ratios) == len(TITLES) - 2 + 3
    assert {"q0_vs_native", "q22_vs_native"} < set(ratios)
    assert ratios["q3_vs_native"] == pytest.approx(2.42)
    assert ratios["geomean_vs_native"] == pytest.approx(2.42)
    assert ratios["geomean_vs_rocksdb"] == pytest.approx(2.7)
    assert set(nexmark.GOALS) <= set(ratios)


def test_nothing_that_native_runs_has_no_mean() -> None:
    assert nexmark.ratios({"q4": nexmark.compared({"penstock": [1.0]})}) == {}


def test_warm_batches_and_a_trigger_without_events_do_not_count() -> None:
    triggers = [
        progress(0, 900),
        progress(1, 300),
        progress(2, 100),
        progress(3, 50),
        progress(4, 70),
    ]
    took_ms = nexmark.batch_times(triggers, 4)
    assert took_ms == [900, 300, 100, 50]
    assert nexmark.events_per_second([10, 10, 10, 5], took_ms, warm=2) == 100


def test_a_batch_that_was_forgotten_is_an_error() -> None:
    with pytest.raises(PenstockError, match=r"no progress was reported for batches \[0\]"):
        nexmark.batch_times([progress(1, 5)], 2)


def test_rows_of_a_batch_are_those_of_the_streams_that_the_query_reads(tmp_path: Path) -> None:
    generate(NexmarkConfig(1000), tmp_path / "events", "parquet")
    needs = {stream: schema.names for stream, schema in SCHEMAS.items()}
    info = chunked(tmp_path / "events", tmp_path / "batches", 300, needs, parts=2)
    for name, share in (("q0", 46), ("q3", 4), ("q20", 49)):
        rows = nexmark.batch_rows(Replay(find(name), tmp_path / "batches", info, 300))
        assert rows == [6 * share, 6 * share, 6 * share, 2 * share]


def side(state: bool | None, turns: list[str], name: str) -> nexmark.Turn:
    def turn() -> list[dict[str, Any]] | None:
        turns.append(name)
        return None if state is None else [progress(0, 5, stateOperators=[{}] if state else [])]

    return turn


@pytest.mark.parametrize(
    ("state", "sides"),
    [
        (True, ["penstock", "native", "native_hdfs"]),
        (False, ["penstock", "native"]),
        (None, ["penstock"]),
    ],
)
def test_who_competes_is_known_after_a_round(state: bool | None, sides: list[str]) -> None:
    turns: list[str] = []
    names = ("penstock", "native", "native_hdfs")
    assert nexmark._first_round({name: side(state, turns, name) for name in names}) == sides
    assert turns[:2] == ["penstock", "native"]


def test_a_refusal_is_one_line() -> None:
    error = "Distinct aggregations are not supported on streaming.;\nAggregate [a#1]\n+- Project"
    assert nexmark_native.reason(error) == "Distinct aggregations are not supported on streaming."


def test_the_scale_has_batches_to_measure() -> None:
    for scale in (nexmark.QUICK, nexmark.FULL):
        assert scale.batches > scale.warm


def test_q0_to_q22() -> None:
    assert list(TITLES) == [f"q{n}" for n in range(23)]


@pytest.mark.parametrize("name", TITLES)
def test_a_query_needs_columns_that_are_there(name: str) -> None:
    for stream, columns in find(name).needs.items():
        assert columns
        assert set(columns) <= set(SCHEMAS[stream].names)
        assert len(set(columns)) == len(columns)


def test_no_such_query() -> None:
    with pytest.raises(SettingError, match="no NEXMark query 'q23'"):
        find("q23")
