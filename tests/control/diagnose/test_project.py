"""Projected latencies: their formulas, their poles, and the bound they are compared with."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.diagnose.project import Epochs, Mm1, Projection, fitting
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds
from penstock.model import SLA, StepId

_SLA = SLA(1000, 1000)


def test_mm1_is_the_sojourn_time_less_the_margin() -> None:
    latency = Mm1().latency_ms([0.0, 700.0, 799.0], [1000.0] * 3, Bounds(_SLA, margin=0.2))
    assert latency.tolist() == pytest.approx([1.25, 10.0, 1000.0])


def test_epochs_settle_at_the_length_that_processes_the_last_ones_arrivals() -> None:
    cost, rate, served, margin = 200.0, 450.0, 1000.0, 0.1
    length = cost
    for _ in range(200):
        length = cost + rate * length / ((1 - margin) * served)
    latency = Epochs(settle=1.5).latency_ms(rate, served, Bounds(_SLA, margin=margin), cost)
    assert latency == pytest.approx(1.5 * length)


def test_a_step_with_half_the_time_can_take_half_as_much() -> None:
    whole, half = Bounds(_SLA), Bounds(_SLA, share=0.5)
    assert Epochs().latency_ms(300.0, 1000.0, half, 100.0) == pytest.approx(
        Epochs().latency_ms(600.0, 1000.0, whole, 100.0)
    )
    assert (Epochs().bound_ms(half), Mm1().bound_ms(half)) == (1000.0, 500.0)


@pytest.mark.parametrize("projection", [Mm1(), Epochs()])
@pytest.mark.parametrize("epoch_cost_ms", [0.0, 250.0])
def test_latency_rises_with_arrivals_up_to_infinity(
    projection: Projection, epoch_cost_ms: float
) -> None:
    rate = np.linspace(0.0, 1500.0, 301)
    latency = projection.latency_ms(rate, np.full(301, 1000.0), Bounds(_SLA), epoch_cost_ms)
    keeps_up = rate < 800.0
    assert np.isfinite(latency[keeps_up]).all()
    assert (np.diff(latency[keeps_up]) > 0).all()
    assert np.isinf(latency[~keeps_up]).all()


def test_the_costs_of_the_engine_select_the_projection() -> None:
    vitals = Vitals.even(StepId("sum"), [1.0], 1, 10.0, epoch_cost_ms=250.0)
    assert fitting(vitals) == Epochs()
