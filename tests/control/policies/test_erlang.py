from __future__ import annotations

import math
import time
from itertools import islice

import pytest

from penstock.control.policies.drs import hosts_needed, sojourns_ms


def sojourn_ms(hosts: int, rate: float, service_rate: float) -> float:
    return next(islice(sojourns_ms(rate, service_rate), hosts - 1, None))


def waiting(hosts: int, load: float) -> float:
    """Probability that a record has to wait, computed from its sojourn time."""
    return (sojourn_ms(hosts, load, 1.0) / 1000 - 1.0) * (hosts - load)


def erlang_c(hosts: int, load: float) -> float:
    """Erlang's C formula as in textbooks, with factorials."""
    last = load**hosts / math.factorial(hosts) * hosts / (hosts - load)
    return last / (sum(load**n / math.factorial(n) for n in range(hosts)) + last)


@pytest.mark.parametrize("hosts", [1, 2, 3, 7, 20, 60])
@pytest.mark.parametrize("busy", [0.01, 0.5, 0.9, 0.999])
def test_waiting_matches_the_textbook_formula(hosts: int, busy: float) -> None:
    assert waiting(hosts, busy * hosts) == pytest.approx(erlang_c(hosts, busy * hosts), abs=1e-12)


@pytest.mark.parametrize("busy", [0.1, 0.8, 0.99])
def test_one_host_is_m_m_1(busy: float) -> None:
    rate = 2000 * busy
    assert sojourn_ms(1, rate, 2000.0) == pytest.approx(1000 / (2000 - rate))


def test_overloaded_hosts_have_infinite_sojourn_times() -> None:
    assert sojourn_ms(4, 4000.0, 1000.0) == math.inf
    assert sojourn_ms(4, 4500.0, 1000.0) == math.inf


@pytest.mark.parametrize("rate", [0.0, 1.0, 950.0, 5_000.0, 1e5, 9_990_000.0])
@pytest.mark.parametrize("latency_ms", [1.0 + 1e-9, 1.5, 10.0, 1_000.0])
def test_the_number_needed_is_the_smallest(rate: float, latency_ms: float) -> None:
    needed = hosts_needed(rate, 1_000.0, latency_ms, most=20_000)
    assert needed is not None
    assert sojourn_ms(needed, rate, 1_000.0) <= latency_ms
    assert needed == 1 or sojourn_ms(needed - 1, rate, 1_000.0) > latency_ms


def test_large_numbers_stay_numbers() -> None:
    for hosts, load in ((10_000, 9_999.9), (10_000, 1e-9), (10_000, 5_000.0), (1, 1e-12)):
        assert -1e-9 <= waiting(hosts, load) <= 1 + 1e-9
    assert waiting(10_000, 9_999.9) > 0.99
    assert waiting(10_000, 5_000.0) < 1e-9
    assert hosts_needed(1e7, 1_000.0, 1_000.0, most=10_000) is None
    assert hosts_needed(1e7, 1_001.0, 1_000.0, most=10_000) == 9_991


def test_none_if_no_number_is_enough() -> None:
    assert hosts_needed(10.0, 1.0, 999.0, most=10_000) is None
    assert hosts_needed(10.0, 1.0, 5_000.0, most=10) is None


def test_it_is_fast_enough_for_every_decision() -> None:
    start = time.perf_counter()
    hosts_needed(9_000_000.0, 1_000.0, 1.001, most=10_000)
    assert time.perf_counter() - start < 0.1
