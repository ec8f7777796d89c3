from __future__ import annotations

import numpy as np
import pytest

from penstock.control.treat.decision import Bounds
from penstock.model import SLA, StepId
from penstock.sim.plane import Following, Plane
from penstock.sim.run import simulate_flow
from penstock.sim.trace import Trace
from tests.sim.exact import then_quiet

BOUNDS = Bounds(SLA(2000, 1000), alert=200.0)
TRACE = Trace.of_rates(
    100.0 + 60.0 * np.sin(np.arange(1200) / 100)[:, None] * np.ones(8), 100.0, seed=1
)


def test_completed_records_arrive_at_the_next_step() -> None:
    count = Following(StepId("count"), slots=8, fan_out=10.0, hosts=4)
    trace = then_quiet(TRACE, 20)
    run = simulate_flow(trace, [count], "static(4)", BOUNDS, Plane(service_rate=4000.0), hosts=4)
    split, words = run.steps.values()
    assert split.completed == trace.total
    assert words.completed == pytest.approx(10 * trace.total)
    assert run.success == 1.0
    assert run.hosts == 8.0


def test_latency_is_counted_from_end_to_end() -> None:
    """The first step keeps its half of the bound. The second does not, so the flow breaks the bound."""
    trace = Trace.of_rates(np.full((600, 4), 110.0), 100.0)
    slow = Following(StepId("slow"), slots=4, service_rate=400.0)
    run = simulate_flow(
        trace, [slow], "static(1)", BOUNDS, Plane(service_rate=1000.0), shares=[0.5, 0.5]
    )
    assert run.steps["step"].success == 1.0
    assert run.steps["slow"].success < run.success < 0.5
    # Each second, the queue of the second step grows by 40 records, which are 0.1 s of work.
    second = run.steps["slow"].series.mean_ms
    assert second[40] - second[20] == pytest.approx(2000.0 / 1.1, rel=0.05)


def test_shares_set_by_the_caller_stay() -> None:
    count = Following(StepId("count"), slots=8, fan_out=2.0, hosts=2)
    plane = Plane(service_rate=900.0)
    run = simulate_flow(TRACE, [count], "switch", BOUNDS, plane, shares=[0.25, 0.75], hosts=2)
    assert run.shares == ((0.0, {"step": 0.25, "count": 0.75}),)


def test_the_step_that_does_worse_gets_more_of_the_bound() -> None:
    count = Following(StepId("count"), slots=8, fan_out=1.0, hosts=1, service_rate=1000.0)
    plane = Plane(service_rate=10_000.0)
    run = simulate_flow(TRACE, [count], "static(1)", BOUNDS, plane, hosts=1)
    assert len(run.shares) > 1
    assert run.shares[-1][1]["count"] > 0.5
    assert sum(run.shares[-1][1].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("engine", ["continuous", "epochs"])
def test_the_same_seed_gives_the_same_run(engine: str) -> None:
    count = Following(StepId("count"), slots=8, fan_out=3.0, hosts=2)
    plane = Plane(service_rate=900.0, beta=0.5, alpha=0.7, engine=engine)  # type: ignore[arg-type]
    runs = [simulate_flow(TRACE, [count], "switch", BOUNDS, plane, seed=3) for _ in range(2)]
    assert runs[0].shares == runs[1].shares
    assert runs[0].success_by_slot.tolist() == runs[1].success_by_slot.tolist()
    journals = [[outcome.journal for outcome in run.steps.values()] for run in runs]
    assert journals[0] == journals[1]
    assert any(journals[0])
