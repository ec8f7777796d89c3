"""The plan of an epoch, as text that couriers read."""

from __future__ import annotations

import json

import pytest

from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes


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
