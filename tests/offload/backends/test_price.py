"""Prices: what hosts and functions cost."""

from __future__ import annotations

import pytest

from penstock.price import FunctionPrice, HostPrice


def test_a_host_is_a_quarter_of_a_machine_with_four_cores() -> None:
    assert HostPrice().money(4 * 3600) == pytest.approx(0.252)


def test_a_function_costs_by_the_second_and_by_the_request() -> None:
    price = FunctionPrice(per_gb_second=2.0, memory_mb=512, per_million=3.0)
    assert price.money(invocations=0, seconds=5) == pytest.approx(5.0)
    assert price.money(invocations=2_000_000, seconds=0) == pytest.approx(6.0)
    assert price.money(1_000_000, 1) == pytest.approx(4.0)


def test_an_hour_of_a_function_costs_more_than_one_of_a_host() -> None:
    """Else nobody would need hosts."""
    assert FunctionPrice().per_hour == pytest.approx(0.10366, rel=1e-3)
    assert FunctionPrice().per_hour > HostPrice().per_hour
