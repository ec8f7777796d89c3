"""Simpson's rule, equations 1 to 3 and shares of slots, against figures computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.treat.offloading import OffloadSettings
from penstock.model import HostId
from penstock.offload.policy.observe import Backlog, Observation, Stable, integral
from penstock.offload.policy.shares import recovery_rate, relieve, spread, workers_needed

_HOST = (HostId("sum/0"),)


def _integral(times: Sequence[float], values: Sequence[float]) -> float:
    return integral(
        [(at, np.array([value])) for at, value in zip(times, values, strict=True)]
    ).item()


def test_simpson_of_even_spacing_has_weights_1_4_1() -> None:
    weights = [_integral([0.0, 1.0, 2.0], row) * 3 for row in np.eye(3).tolist()]
    assert weights == pytest.approx([1.0, 4.0, 1.0])


@given(st.floats(1.0, 1.99), st.floats(1.0, 1.99), st.tuples(*[st.floats(-9, 9)] * 3))
def test_simpson_of_uneven_spacing_is_exact_for_parabolas(
    left: float, right: float, by: tuple[float, float, float]
) -> None:
    (a, b, c), end = by, left + right
    exact = a * end**3 / 3 + b * end**2 / 2 + c * end
    times = [0.0, left, end]
    result = _integral(times, [a * at**2 + b * at + c for at in times])
    assert result == pytest.approx(exact, rel=1e-6, abs=1e-6)


@given(*[st.floats(0.001, 5.0)] * 2, st.tuples(*[st.floats(0.0, 1000.0)] * 3))
def test_simpson_of_any_spacing_stays_within_what_was_observed(
    left: float, right: float, values: tuple[float, float, float]
) -> None:
    times, length = [0.0, left, left + right], left + right
    slack = 1e-6 * length
    result = _integral(times, values)
    assert min(values) * length - slack <= result <= max(values) * length + slack
    assert _integral(times, [7.0] * 3) == pytest.approx(7.0 * length)


def test_a_jump_within_a_moment_does_not_create_a_backlog() -> None:
    """An epoch is observed when it is read, a moment after the one before it, and when it is done."""
    assert _integral([0.0, 0.001, 1.001], [0.0, 600.0, 600.0]) == pytest.approx(600.3)


def test_simpson_of_one_observation_and_of_two() -> None:
    assert _integral([7.0], [3.0]) == 0.0
    assert _integral([0.0, 0.5], [4.0, 8.0]) == 3.0


def _observe(backlog: Backlog, at_s: float, rate: float, throughput: float) -> float:
    figures = (np.array([figure]) for figure in (rate, throughput, 1000.0, 1.0))
    return backlog.note(Observation(1000.0 * at_s, _HOST, *figures)).item()


def test_backlog_is_the_integral_since_the_load_went_up() -> None:
    backlog = Backlog()
    for second in range(5):
        assert _observe(backlog, second, 500.0, 1000.0) == 0.0  # no host works ahead
    # 0 beyond at 4 s, 300 at 5 s, 600 at 6 s: a line, of which Simpson's rule makes 600.
    assert _observe(backlog, 5, 1300.0, 1000.0) == pytest.approx(150.0)
    assert _observe(backlog, 6, 1600.0, 1000.0) == pytest.approx(600.0)


def test_a_backlog_is_cleared_and_then_forgotten() -> None:
    backlog = Backlog()
    for second in range(3):
        held = _observe(backlog, second, 1500.0, 1000.0)
    assert held == pytest.approx(1000.0)
    later = [_observe(backlog, second, 500.0, 1000.0) for second in range(3, 9)]
    # Exact while the rates are even; a parabola overshoots a little where they jump.
    assert later[0] == pytest.approx(1000.0, abs=100.0)
    assert later[1] == pytest.approx(500.0, abs=170.0)
    assert later[-1] == 0.0
    assert _observe(backlog, 9, 1200.0, 1000.0) < 200.0 + 1


def test_a_long_backlog_is_added_up() -> None:
    backlog = Backlog()
    for second in range(101):
        held = _observe(backlog, second, 1010.0, 1000.0)
    assert held == pytest.approx(1000.0)


def test_a_forgotten_backlog_starts_from_zero() -> None:
    backlog = Backlog()
    for second in range(3):
        _observe(backlog, second, 1500.0, 1000.0)
    backlog.forget()
    assert _observe(backlog, 3, 1500.0, 1000.0) == 0.0


def test_equation_1_adds_what_waits_to_what_arrives() -> None:
    # 60,000 events wait, 300 K/s arrive, 10 s to recover: 306 K/s.
    rates = recovery_rate(np.array([300e3]), np.array([60e3]), 10_000.0)
    assert rates.tolist() == [306e3]


def test_equation_2_scales_stable_rates_to_a_busy_core() -> None:
    # 42 and 38 K/s at 75 and 65 % of a core: 40 K/s at 70 %.
    stable, so = Stable(), np.array([True])
    for second, (rate, load) in enumerate([(42e3, 0.75), (38e3, 0.65)]):
        stable.note(1000.0 * second, _HOST, np.array([rate]), np.array([load]), so)
    assert stable.per_core(_HOST, np.array([1.0])).tolist() == pytest.approx([40e3 / 0.7])
    # Unstable rates do not count.
    stable.note(3000.0, _HOST, np.array([90e3]), np.array([1.0]), ~so)
    assert stable.per_core(_HOST, np.array([1.0])).tolist() == pytest.approx([40e3 / 0.7])


@pytest.mark.parametrize(
    ("rate", "speed", "workers"),
    [
        (0.0, 1.0, 0),
        (1.0, 1.0, 1),
        (700.0, 1.0, 1),
        (701.0, 1.0, 2),
        (7000.0, 1.0, 10),
        (700.0, 0.5, 2),
        (7000.0, 0.8, 13),
        (7000.0, 2.0, 5),
    ],
)
def test_equation_3_rounds_up(rate: float, speed: float, workers: int) -> None:
    assert workers_needed(rate, per_core=1000.0, speed=speed) == workers


def test_hosts_are_left_at_the_target_with_what_merging_costs_them() -> None:
    rates, owner, capacity = np.full(8, 500.0), np.repeat([0, 1], 4), np.array([1000.0, 2000.0])
    relief = relieve(
        rates, owner, capacity, np.array([True, True]), 0.2, OffloadSettings(at_most=100)
    )
    # 2000 - x + 0.2 x = 700: x = 1625; 2000 - x + 0.2 x = 1400: x = 750.
    assert relief.shares == pytest.approx(np.repeat([1625 / 2000, 750 / 2000], 4))
    assert relief.workers == 3  # 2375 of 0.7 * 1500 each
    assert relief.level == 0.7


def test_hosts_that_are_not_relieved_keep_their_rows() -> None:
    rates, owner, capacity = np.full(4, 500.0), np.array([0, 0, 1, 1]), np.full(2, 1000.0)
    flags = np.array([False, True])
    relief = relieve(rates, owner, capacity, flags, 0.0, OffloadSettings(at_most=9))
    assert relief.shares == pytest.approx([0.0, 0.0, 0.3, 0.3])


def test_too_few_burst_workers_are_as_busy_as_hosts() -> None:
    rates, capacity = np.full(4, 750.0), np.array([1000.0])
    relief = relieve(
        rates,
        np.zeros(4, np.int64),
        capacity,
        np.array([True]),
        0.0,
        OffloadSettings(speed=0.5, at_most=1),
    )
    # 3000 = 1000 u + 500 u
    assert relief.level == pytest.approx(2.0)
    assert relief.workers == 1
    assert (rates * relief.shares).sum() == pytest.approx(1000.0)


@pytest.mark.parametrize(("merge", "at_most"), [(1.0, 9), (1.5, 9), (0.0, 0)])
def test_no_shares_if_burst_workers_cannot_help(merge: float, at_most: int) -> None:
    relief = relieve(
        np.array([3000.0]),
        np.zeros(1, np.int64),
        np.array([1000.0]),
        np.array([True]),
        merge,
        OffloadSettings(at_most=at_most),
    )
    assert (relief.shares.tolist(), relief.workers) == ([0.0], 0)


def test_if_a_few_slots_have_most_load_the_heaviest_are_offloaded_first() -> None:
    rates = np.array([10.0] * 19 + [800.0] + [50.0] * 20)
    owner = np.repeat([0, 1], 20)
    shares = spread(np.array([700.0, 100.0]), rates, owner, np.array([990.0, 1000.0]))
    assert shares[19] == pytest.approx(700 / 800)
    assert not shares[:19].any()
    assert shares[20:] == pytest.approx(0.1)  # not skewed: evenly


@given(
    st.lists(st.floats(0.0, 1e4), min_size=1, max_size=40),
    st.integers(1, 5),
    st.floats(0.0, 1.0),
)
def test_shares_make_up_the_amount(rates: list[float], hosts: int, part: float) -> None:
    slot_rate, owner = np.array(rates), np.arange(len(rates)) % hosts
    rate = np.bincount(owner, slot_rate, hosts).astype(np.float64)
    shares = spread(part * rate, slot_rate, owner, rate)
    assert np.all((shares >= 0) & (shares <= 1))
    given_ = np.bincount(owner, shares * slot_rate, hosts)
    assert given_ == pytest.approx(part * rate, rel=1e-6, abs=1e-6)
