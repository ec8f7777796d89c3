"""Autoscaling settings: functions and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control.elastic import Elastic
from penstock.control.money import FunctionPrice, HostPrice
from penstock.errors import PenstockError
from penstock.offload.backends.local.backend import LocalFunctions


def test_without_functions_none_are_allowed() -> None:
    assert Elastic().offload_settings().at_most == 0


def test_the_terms_of_functions_reach_the_offload_settings() -> None:
    price = FunctionPrice(per_million=1.0)
    functions = LocalFunctions(at_most=7, speed=0.5, price=price)
    elastic = Elastic(
        functions=functions, patience="30s", merge_cost=0.3, host_price=HostPrice(1.0)
    )
    made = elastic.offload_settings(deadline_ms=500.0)
    assert (made.at_most, made.speed, made.deadline_ms) == (7, 0.5, 500.0)
    assert (made.patience_ms, made.merge_cost) == (30_000.0, 0.3)
    assert (made.costs.host.per_hour, made.costs.worker) == (1.0, price)


def test_a_limit_never_exceeds_that_of_the_functions() -> None:
    elastic = Elastic(functions=LocalFunctions(at_most=7))
    assert replace(elastic, functions_at_most=3).offload_settings().at_most == 3
    assert replace(elastic, functions_at_most=9).offload_settings().at_most == 7
    assert replace(elastic, functions_at_most=0).offload_settings().at_most == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"functions_at_most": 3},
        {"patience": "soon", "functions": LocalFunctions()},
        {"functions_at_most": -1, "functions": LocalFunctions()},
        {"merge_cost": -1.0},
        {"warm_for": -1.0},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PenstockError):
        Elastic(**wrong)  # type: ignore[arg-type]
