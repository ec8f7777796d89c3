"""A steady load causes no treatment in ten minutes, once the step has the right number of hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.control.treat.decision import Bounds
from penstock.model import SLA
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.trace import Trace

SECONDS, FOUND_S = 660, 60
"""Length of the run, and the maximum time until the step has the right number of hosts, in seconds."""


@pytest.mark.parametrize("epoch_cost_ms", [0.0, 250.0])
@pytest.mark.parametrize(("per_host", "hosts_needed"), [(200, 1.3), (1_000, 0.6), (1_000, 2.2)])
def test_no_treatment_in_ten_minutes(
    per_host: int, hosts_needed: float, epoch_cost_ms: float
) -> None:
    random = np.random.default_rng(5)
    weights = random.gamma(2.0, 1.0, 64)
    rates = per_host * hosts_needed * weights / weights.sum()
    trace = Trace(100.0, random.poisson(rates / 10, (SECONDS * 10, 64)).astype(np.int32))
    engine: dict[str, Any] = (
        {"engine": "epochs", "epoch_cost_ms": epoch_cost_ms} if epoch_cost_ms else {}
    )
    outcome = simulate(
        trace,
        "switch",
        Bounds(SLA(1000, 1000), at_most=16),
        Plane(service_rate=per_host, **engine),
        hosts=2,
    )
    late = [entry.line() for entry in outcome.journal if entry.event == "began"]
    assert [line for line in late if float(line.split("s")[0]) > FOUND_S] == []
    assert outcome.success > 0.97
