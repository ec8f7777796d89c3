"""Migrations, parsed from their names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.migration import UNCAPPED_MB_S, Migration


@pytest.mark.parametrize(
    ("text", "slots_at_once", "trickle", "whole"),
    [
        ("lazy", None, UNCAPPED_MB_S, False),
        ("lazy(0)", None, 0.0, False),
        ("lazy(2.5)", None, 2.5, False),
        ("all_at_once", None, 0.0, True),
        ("batched(8)", 8, 0.0, True),
        ("fluid", 1, 0.0, True),
        ("pause", None, 0.0, True),
        (" All-At-Once ", None, 0.0, True),
        ("Batched ( 3 )", 3, 0.0, True),
    ],
)
def test_names(text: str, slots_at_once: int | None, trickle: float, whole: bool) -> None:
    migration = Migration.parse(text)
    assert (migration.slots_at_once, migration.trickle_mb_s) == (slots_at_once, trickle)
    assert migration.whole is whole
    assert Migration.parse(migration) is migration


@given(
    st.one_of(
        st.floats(0, 1e20).map(lambda rate: Migration("lazy", None, rate)),
        st.integers(1, 40_000).map(lambda n: Migration("batched", n)),
        st.sampled_from(["fluid", "all_at_once", "pause"]).map(Migration.parse),
    )
)
def test_there_and_back(migration: Migration) -> None:
    assert Migration.parse(str(migration)) == migration


@pytest.mark.parametrize(
    "text",
    [
        "", "eager", "batched", "batched()", "batched(0)", "batched(-1)", "batched(1.5)", "lazy(-1)",
        "lazy(1e999)", "lazy(nan)", "lazy(", "lazy(1)x", "lazy(1-2)", "fluid(1)", "pause(1)",
        "all_at_once(2)",
    ],
)  # fmt: skip
def test_what_is_rejected(text: str) -> None:
    with pytest.raises(SettingError) as refused:
        Migration.parse(text)
    assert repr(text) in str(refused.value)
    assert "batched(8)" in refused.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        ("eager", None, 0.0), ("fluid", None, 0.0), ("fluid", 2, 0.0), ("batched", None, 0.0),
        ("batched", 0, 0.0), ("pause", 3, 0.0), ("pause", None, 1.0), ("lazy", 4, 0.0),
        ("lazy", None, float("inf")), ("lazy", None, -1.0),
    ],
)  # fmt: skip
def test_invalid_combinations(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(SettingError):
        Migration(*wrong)
