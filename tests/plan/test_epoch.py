"""The plan of an epoch, as text that couriers read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes


def plan_of(**options: object) -> EpochPlan:
    routes = RouteTable.even([HostId("sum/0"), HostId("sum/1")], slots=6)
    time = EpochTime(3, 1_000, watermark_ms=900)
    step = StepRoutes(StepId("sum"), routes, ("a:1", "b:2"), time, **options)  # type: ignore[arg-type]
    return EpochPlan(3, 1, 8, (step,), "driver:1", "token")


@pytest.mark.parametrize("options", [{}, {"watched": (2, 5), "two_stage": True}])
def test_text_tells_all(options: dict[str, object]) -> None:
    plan = plan_of(**options)
    copy = EpochPlan.from_text(plan.to_text())
    assert copy.steps[0].routes.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert copy.steps[0].watched == options.get("watched", ())
    assert copy.steps[0].two_stage == options.get("two_stage", False)
    assert copy.steps[0].time == plan.steps[0].time
    assert copy.to_text() == plan.to_text()


def test_what_says_nothing_is_left_out() -> None:
    (step,) = json.loads(plan_of().to_text())["steps"]
    assert set(step) == {"step", "routes", "endpoints", "time"}


def test_a_text_that_lacks_something_is_refused() -> None:
    facts = json.loads(plan_of().to_text())
    del facts["steps"][0]["time"]
    with pytest.raises(ProtocolError, match="lacks 'time'"):
        EpochPlan.from_text(json.dumps(facts))


def test_an_epoch_tells_what_goes_to_functions() -> None:
    offload = Offload(np.array([0.0, 0.25, 0.6, 0.75, 0.999, 1.0]), functions=12, deadline_ms=700)
    some = Offload(np.array([0.5]), functions=3, deadline_ms=100)
    plan = replace(plan_of(offload=offload), functions="local", map_offloads=(("map-1", some),))
    copy = EpochPlan.from_text(plan.to_text())
    got = copy.steps[0].offload
    assert got is not None
    assert np.abs(got.shares - offload.shares).max() <= 0.5 / 255
    assert got.shares[0] == 0
    assert got.shares[5] == 1
    assert (got.functions, got.deadline_ms) == (12, 700)
    assert copy.functions == "local"
    assert [(name, told.functions) for name, told in copy.map_offloads] == [("map-1", 3)]
    assert copy.to_text() == plan.to_text()


def test_an_epoch_without_functions_says_nothing_of_them() -> None:
    text = plan_of().to_text()
    assert "offload" not in text
    assert "functions" not in text
    copy = EpochPlan.from_text(text)
    assert (copy.functions, copy.map_offloads, copy.steps[0].offload) == (None, (), None)


@pytest.mark.parametrize(
    ("shares", "functions", "deadline_ms"),
    [([0.5, 1.1], 1, 1), ([-0.1], 1, 1), ([float("nan")], 1, 1), ([0.5], 0, 1), ([0.5], 1, 0)],
)
def test_what_cannot_be_offloaded(shares: list[float], functions: int, deadline_ms: int) -> None:
    with pytest.raises(ProtocolError, match="cannot be offloaded"):
        Offload(np.array(shares), functions, deadline_ms)
