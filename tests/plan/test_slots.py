"""Conversion of slots to text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.slots import slots_from_text, slots_to_text


@given(st.sets(st.integers(0, 300)))
def test_there_and_back(slots: set[int]) -> None:
    text = slots_to_text(slots)
    assert slots_from_text(text, slots=301) == tuple(sorted(slots))
    assert slots_to_text(slots_from_text(text, slots=301)) == text


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("0-15,20", (*range(16), 20)),
        (" 3 , 1 - 2 ", (1, 2, 3)),
        ("5,5,4-6", (4, 5, 6)),
        ("7", (7,)),
        ("", ()),
    ],
)
def test_slots_as_users_type_them(text: str, slots: tuple[int, ...]) -> None:
    assert slots_from_text(text, slots=64) == slots


@pytest.mark.parametrize(
    "text", ["x", "3-1", "1-", "-1", "1,,2", ",", "1.5", "1 2", "64", "0-99999999999"]
)
def test_what_is_rejected(text: str) -> None:
    with pytest.raises(SettingError) as refused:
        slots_from_text(text, slots=64)
    assert refused.value.hint
