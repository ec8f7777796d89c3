"""Skews of loads over slots and keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.sim.skews import Hotspot, Skew, Uniform, Zipf, skew

skews = st.one_of(
    st.just(Uniform()),
    st.builds(Zipf, st.floats(0, 3)),
    st.builds(
        lambda share, hot, more, every: Hotspot(share, hot + more, hot, every),
        st.floats(0, 1),
        st.integers(1, 4),
        st.integers(1, 4),
        st.sampled_from([0.0, 0.5, 30.0]),
    ),
)


@given(skews, st.integers(8, 300), st.floats(0, 1000))
def test_weights_are_shares_of_the_whole(uneven: Skew, n: int, t_s: float) -> None:
    weights = uneven.weights(n, t_s)
    assert len(weights) == n
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


@given(skews)
def test_a_skew_survives_its_text(uneven: Skew) -> None:
    assert skew(str(uneven)) == uneven
    assert skew(uneven) is uneven


@pytest.mark.parametrize("uneven", [Uniform(), Zipf(1.0), Hotspot(0.8, 5, 2)])
def test_choices_follow_the_weights(uneven: Skew) -> None:
    n, draws = 64, 200_000
    unit = np.random.default_rng(1).random(draws)
    chosen = np.bincount(uneven.chosen(n, unit, np.zeros(draws)), minlength=n)
    expected = uneven.weights(n) * draws
    assert (np.abs(chosen - expected) < 6 * np.sqrt(expected)).all()


def test_a_moving_hotspot_is_where_its_time_says() -> None:
    moving = Hotspot(1.0, of=3, every_s=10)
    t_s = np.array([0.0, 9.9, 10.0, 25.0, 30.0])
    slots = moving.chosen(6, np.full(5, 0.75), t_s)
    assert slots.tolist() == [1, 1, 3, 5, 1]


def test_the_largest_random_number_gives_a_valid_choice() -> None:
    assert Zipf(2.0).chosen(5, np.array([np.nextafter(1, 0)]), np.zeros(1))[0] < 5


@pytest.mark.parametrize(
    "text",
    ["", "zipf", "zipf(-1)", "uniform(3)", "hotspot(0.5)", "hotspot(1.5, 3)", "hotspot(0.5, 3, 3)"],
)
def test_an_unknown_skew_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        skew(text)


def test_fewer_slots_than_parts_are_refused() -> None:
    with pytest.raises(SettingError, match="cannot be divided"):
        Hotspot(0.5, 3).weights(2)
