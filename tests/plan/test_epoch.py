"""The plan of an epoch, and its text form for couriers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from penstock import codec
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes


def plan_of(**options: object) -> EpochPlan:
    routes = RouteTable.even([HostId("sum/0"), HostId("sum/1")], slots=6)
    time = EpochTime(3, 1_000, watermark_ms=900)
    step = StepRoutes(StepId("sum"), routes, ("a:1", "b:2"), time, **options)  # type: ignore[arg-type]
    return EpochPlan(3, 1, 8, (step,), "driver:1")


@pytest.mark.parametrize("options", [{}, {"watched": (2, 5), "two_stage": True}])
def test_a_plan_survives_encoding(options: dict[str, object]) -> None:
    plan = plan_of(**options)
    copy = codec.decode(codec.text(plan), EpochPlan)
    assert copy.steps[0].routes.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert copy.steps[0].watched == options.get("watched", ())
    assert copy.steps[0].two_stage == options.get("two_stage", False)
    assert copy.steps[0].time == plan.steps[0].time
    assert codec.text(copy) == codec.text(plan)


def test_a_plan_is_small_and_complete() -> None:
    text = codec.text(plan_of())
    assert len(text) < 500, "every task gets it as a Spark property"
    facts = json.loads(text)
    del facts["steps"][0]["time"]
    with pytest.raises(ProtocolError, match="missing required field `time`") as refused:
        codec.decode(json.dumps(facts), EpochPlan)
    assert "the same release" in refused.value.hint
    del facts["steps"], facts["run"]
    with pytest.raises(ProtocolError, match="not a valid EpochPlan"):
        codec.decode(json.dumps(facts), EpochPlan)


def test_a_plan_contains_offloads() -> None:
    offload = Offload(np.array([0.0, 0.25, 0.6, 0.75, 0.999, 1.0]), workers=12, deadline_ms=700)
    some = Offload(np.array([0.5]), workers=3, deadline_ms=100)
    plan = replace(plan_of(offload=offload), reach="local", map_offloads=(("map-1", some),))
    copy = codec.decode(codec.text(plan), EpochPlan)
    got = copy.steps[0].offload
    assert got is not None
    assert got.shares.tolist() == offload.shares.tolist()
    assert (got.workers, got.deadline_ms) == (12, 700)
    assert copy.reach == "local"
    assert [(name, offload.workers) for name, offload in copy.map_offloads] == [("map-1", 3)]
    assert codec.text(copy) == codec.text(plan)


def test_a_plan_without_functions_has_no_offloads() -> None:
    copy = codec.decode(codec.text(plan_of()), EpochPlan)
    assert (copy.reach, copy.map_offloads, copy.steps[0].offload) == (None, (), None)


@pytest.mark.parametrize(
    ("shares", "functions", "deadline_ms"),
    [([0.5, 1.1], 1, 1), ([-0.1], 1, 1), ([float("nan")], 1, 1), ([0.5], 0, 1), ([0.5], 1, 0)],
)
def test_invalid_offloads_are_rejected(
    shares: list[float], functions: int, deadline_ms: int
) -> None:
    with pytest.raises(ProtocolError, match="cannot offload shares"):
        Offload(np.array(shares), functions, deadline_ms)
