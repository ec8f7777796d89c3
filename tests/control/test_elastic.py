"""Autoscaling settings: functions and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control.elastic import Elastic, Steering
from penstock.control.money import FunctionPrice, HostPrice
from penstock.errors import PenstockError, SettingError
from penstock.model import SLA, LatencyBound
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


AVERAGE, P99 = LatencyBound(1000, 1000), LatencyBound(3000, 5000, p99=True)
OF_CLICKS = LatencyBound(200, 2000, step="clicks")


@pytest.mark.parametrize(
    ("changes", "bounds"),
    [
        ({"latency": "2s"}, (LatencyBound(2000, 1000), P99, OF_CLICKS)),
        ({"p99": "4s"}, (AVERAGE, LatencyBound(4000, 5000, p99=True), OF_CLICKS)),
        ({"p99": 4, "window": "1s"}, (AVERAGE, LatencyBound(4000, 1000, p99=True), OF_CLICKS)),
        ({"window": "9s"}, (LatencyBound(1000, 9000), LatencyBound(3000, 9000, True), OF_CLICKS)),
        (
            {"latency": 0.1, "step": "clicks"},
            (AVERAGE, P99, LatencyBound(100, 2000, step="clicks")),
        ),
        (
            {"p99": 1, "step": "clicks"},
            (AVERAGE, P99, OF_CLICKS, LatencyBound(1000, 1000, p99=True, step="clicks")),
        ),
    ],
)
def test_any_bound_can_be_steered(
    changes: dict[str, object], bounds: tuple[LatencyBound, ...]
) -> None:
    sla = SLA(1000, 1000, more=(P99, OF_CLICKS))
    steering = Steering.from_json(Steering.of(**changes).to_json())
    elastic, now = steering.applied(Elastic(at_most=3), sla)
    assert (elastic, now.bounds) == (Elastic(at_most=3), bounds)


def test_a_bound_on_the_average_is_added_to_one_on_the_percentile() -> None:
    _, now = Steering(latency="1s").applied(Elastic(), SLA(3000, 5000, p99=True))
    assert now.bounds == (LatencyBound(1000, 5000), P99)


@pytest.mark.parametrize("changes", [{"step": "clicks"}, {"window": "2s", "step": "views"}])
def test_steering_that_changes_nothing_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        Steering.of(**changes).applied(Elastic(), SLA(1000, 1000, more=(OF_CLICKS,)))
