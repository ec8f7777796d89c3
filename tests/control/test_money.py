"""Costs of a run, and when hosts are cheaper than burst workers."""

from __future__ import annotations

import pytest

from penstock.control.money import BreakEven, Costs, FunctionPrice, HostPrice, Spending


def test_hosts_cost_by_their_uptime() -> None:
    spending = Spending(HostPrice(per_hour=36.0))  # a cent a second
    spending.note(1_000.0, hosts=1)
    spending.note(3_000.0, hosts=4)
    spending.note(3_500.0, hosts=0, workers=0.5)
    spending.note(9_500.0, hosts=2)
    assert spending.money.hosts == pytest.approx(0.04)
    assert spending.money.functions == 0.5
    assert spending.money.facts() == {"hosts": 0.04, "functions": 0.5, "total": 0.54}


def test_a_clock_that_goes_back_costs_nothing() -> None:
    spending = Spending(HostPrice(per_hour=36.0))
    for now_ms in (5_000.0, 4_000.0, 5_000.0):
        spending.note(now_ms, hosts=1)
    assert spending.money.total == pytest.approx(0.01)


@pytest.mark.parametrize(("seconds", "reached"), [(119.0, False), (121.0, True)])
def test_hosts_are_paid_for_a_minimum_time(seconds: float, reached: bool) -> None:
    alike = FunctionPrice(per_gb_second=HostPrice().per_hour / 3600, memory_mb=1024)
    even = BreakEven(Costs(worker=alike, least_host_ms=120_000.0))
    even.note(0.0, hosts=3, worker_seconds=0.0)
    even.note(1000.0, hosts=0, worker_seconds=3 * seconds)
    # A second of a function costs as much as one of a host, so the minimum time decides.
    assert even.reached == reached


def test_the_tail_of_a_burst_does_not_make_functions_expensive() -> None:
    even = BreakEven(Costs())
    even.note(0.0, hosts=10, worker_seconds=0.0)
    even.note(30_000.0, hosts=1, worker_seconds=300.0)
    even.note(40_000.0, hosts=0, worker_seconds=310.0)
    assert not even.reached


def test_the_bill_counts_rather_than_the_estimate() -> None:
    even = BreakEven(Costs())
    even.note(0.0, hosts=1, worker_seconds=1e9, spent=0.0)
    assert not even.reached
    even.note(1.0, hosts=1, worker_seconds=0.0, spent=1.0)
    assert even.reached


def test_a_host_is_a_quarter_of_a_machine_with_four_cores() -> None:
    assert HostPrice().money(4 * 3600) == pytest.approx(0.252)


def test_a_burst_worker_costs_by_the_second_and_by_the_request() -> None:
    price = FunctionPrice(per_gb_second=2.0, memory_mb=512, per_million=3.0)
    assert price.money(invocations=0, seconds=5) == pytest.approx(5.0)
    assert price.money(invocations=2_000_000, seconds=0) == pytest.approx(6.0)
    assert price.money(1_000_000, 1) == pytest.approx(4.0)


def test_an_hour_of_a_burst_worker_costs_more_than_one_of_a_host() -> None:
    """Otherwise hosts would never pay off."""
    assert FunctionPrice().per_hour == pytest.approx(0.10366, rel=1e-3)
    assert FunctionPrice().per_hour > HostPrice().per_hour
