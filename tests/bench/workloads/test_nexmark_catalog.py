"""The catalog of queries: names, and columns that exist."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock_bench.workloads.nexmark.catalog import TITLES, find
from penstock_bench.workloads.nexmark.columns import SCHEMAS


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
