"""Shapes of loads over time: exact counts, arrival times, and texts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.sim.pieces import Piece
from penstock.sim.shapes import BurstShape, Gradual, Ramp, Shape, Sine, Steady, Steps, Swell, shape

rates = st.floats(0.01, 50_000)
times = st.floats(0.01, 100)
shapes = st.one_of(
    st.builds(Steady, rates),
    st.builds(Sine, rates, rates, times),
    st.builds(BurstShape, rates, st.floats(0, 20), times, times),
    st.builds(
        lambda rate, at, rest: BurstShape(rate, 5, at, 1, at + 1 + rest), rates, times, times
    ),
    st.builds(Swell, rates, st.floats(0, 20), times, times),
    st.builds(Gradual, rates, st.floats(0, 20), times, times),
    st.builds(Ramp, rates, rates, times),
    st.builds(
        lambda first, last: Steps((*first, last)),
        st.lists(st.builds(Piece, times, st.floats(0, 50_000)), max_size=4),
        st.builds(Piece, times, rates),
    ),
)


@given(shapes, st.lists(st.integers(0, 10_000_000), min_size=1, max_size=20))
def test_a_record_is_counted_from_the_microsecond_of_its_arrival_on(
    load: Shape, numbers: list[int]
) -> None:
    number = np.array(sorted(numbers))
    arrival_us = load.arrival_us(number)
    assert (np.diff(arrival_us) >= 0).all()
    # milliseconds as floats are accurate enough to add half a microsecond
    assert (load.cumulative((arrival_us + 0.5) / 1000) > number).all()
    assert (load.cumulative((arrival_us - 0.5) / 1000) <= number).all()


@given(shapes, st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_count_is_the_integral_of_the_rate(load: Shape, a: float, b: float) -> None:
    first, last = sorted([a, b])
    edges = np.linspace(first, last, 2000)
    counted = load.cumulative(edges)
    assert (np.diff(counted) >= 0).all()
    # Not sampled: a period of milliseconds, or a short burst, would fall between the samples.
    rate, seconds = [piece.rate for piece in load.pieces()], (last - first) / 1000
    # Rates are counted with three decimals.
    assert counted[-1] - counted[0] <= (max(rate) + 0.0005) * seconds + 1
    assert counted[-1] - counted[0] >= (min(rate) - 0.0005) * seconds - 1


def test_a_sine_swings_around_its_base() -> None:
    sine = Sine(30_000, 10_000, 600)
    rate = sine.rate_at(np.arange(0, 1200, 0.5))
    assert rate.max() == pytest.approx(40_000, rel=1e-3)
    assert rate.min() == pytest.approx(20_000, rel=1e-3)
    exact = 30_000 + 10_000 * np.sin(2 * np.pi * np.arange(0, 1200, 0.5) / 600)
    assert np.abs(rate - exact).max() < 110
    assert sine.cumulative([600_000, 6_000_000]).tolist() == [18_000_000, 180_000_000]


def test_a_sine_larger_than_its_base_stays_at_zero_for_a_while() -> None:
    sine = Sine(100, 300, 60)
    assert sine.rate_at(45).tolist() == 0.0
    quiet = sine.cumulative([40_000, 50_000])
    assert quiet[0] == quiet[1]


@pytest.mark.parametrize("kind", [Swell, Gradual])
def test_a_rise_stays_between_the_base_and_its_top_and_is_the_same_both_ways(
    kind: type[Swell] | type[Gradual],
) -> None:
    load = kind(1000, 5, at_s=20, for_s=60)
    rate = load.rate_at(np.arange(20, 80, 0.05) + 0.025)
    assert rate.min() == pytest.approx(1000, rel=0.05)
    assert rate.max() == pytest.approx(5000, rel=1e-3)
    assert np.allclose(rate, rate[::-1], rtol=0.05)
    assert (np.diff(rate[: len(rate) // 2]) >= 0).all()
    outside = load.rate_at([0, 19.99, 80.01, 1e5])
    assert outside.tolist() == [1000.0] * 4


def test_the_total_of_a_rise_is_its_area() -> None:
    wave, straight = Swell(1000, 5, 20, 60), Gradual(1000, 5, 20, 60)
    # Above the base: half of the maximum for a wave, two thirds of it for straight lines.
    assert wave.cumulative(100_000) == 100_000 + 60 * 4000 // 2
    assert straight.cumulative(100_000) == 100_000 + 60 * 4000 * 2 // 3


@given(shapes)
def test_a_shape_survives_its_text(load: Shape) -> None:
    assert shape(str(load)) == load
    assert pickle.loads(pickle.dumps(load)) == load
    assert shape(load) is load


@pytest.mark.parametrize(
    "text",
    ["", "steady", "steady()", "steady(1, 2)", "sine(1, 2)", "steps(5)", "burst(1,2,3,x)", "a(1"],
)
def test_an_unknown_load_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="unknown load"):
        shape(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steady(0)", "no records"),
        ("steady(-5)", "out of bounds"),
        ("steady(nan)", "out of bounds"),
        ("steady(20000000)", "out of bounds"),
        ("sine(1000, 10, 0)", "no records"),
        ("burst(10, 2, 5s, 10s, 12s)", "negative time"),
        ("ramp(10, 5000000, 10000h)", "more than"),
    ],
)
def test_invalid_loads_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        shape(text)


def test_a_load_that_ends_has_no_later_records() -> None:
    ramp = Ramp(1000, 0, 10)
    assert ramp.cumulative([10_000, 10_000_000]).tolist() == [5000, 5000]
    assert ramp.arrival_us(np.array([4999])) <= 10_000_000
    with pytest.raises(SettingError, match="ends before"):
        ramp.arrival_us(np.array([5000]))


def test_too_many_records_are_refused_and_do_not_overflow() -> None:
    assert Steady(1e6).cumulative(8_999_999).tolist() == 8_999_999_000
    with pytest.raises(SettingError, match="more than"):
        Steady(1e6).cumulative(9_000_001)
    with pytest.raises(SettingError, match="more than"):
        Sine(1e6, 0, 1).cumulative(1e12)
    with pytest.raises(SettingError, match="at most"):
        Steady(1e6).arrival_us(np.array([9_000_000_000]))
