"""Burst workers and the switch on one step with epochs: which of them reacts to a burst, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from penstock.control.treat.decision import Bounds
from penstock.model import SLA
from penstock.sim.burst_workers import WorkerPlane
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.trace import Trace

_SLOTS, _DELTA_MS, _STABLE = 32, 100.0, 6_000.0
"""Slots, milliseconds between observations, and the records per second that load two hosts to 60 %."""
_FUNCTIONS = WorkerPlane(start_ms=0.0, overhead_ms=0.0)

Rate = Callable[[float], float]
"""Function from a time in seconds to records per second."""


@dataclass(frozen=True)
class _Run:
    outcome: Outcome

    def worst(self, from_s: int, to_s: int) -> float:
        return float(np.nanmax(self.outcome.series.mean_ms[from_s:to_s]))

    def carries(self, second: int) -> bool:
        return bool(self.outcome.series.workers[second : second + 2].any())

    def hosts_at(self, second: int) -> int:
        return int(self.outcome.series.hosts[second])

    def asked(self, from_s: float) -> list[float]:
        """Times at which the switch started a treatment, in seconds."""
        began = [e.time_ms / 1000 for e in self.outcome.journal if e.event == "began"]
        return [at for at in began if at >= from_s]


def _run(
    rate: Rate,
    until_s: float,
    functions: WorkerPlane | None = _FUNCTIONS,
    start_ms: float = 30_000.0,
) -> _Run:
    seconds = np.arange(0.0, until_s, _DELTA_MS / 1000)
    rates = np.outer([rate(second) for second in seconds], np.full(_SLOTS, 1 / _SLOTS))
    plane = Plane(
        service_rate=5_000.0,
        start_host_ms=start_ms,
        switch_ms=0.0,
        engine="epochs",
        epoch_cost_ms=100.0,
        revises=True,
        burst_workers=functions,
    )
    bounds = Bounds(SLA(1000, 1000), at_most=16)
    return _Run(simulate(Trace.of_rates(rates, _DELTA_MS, 1), "switch", bounds, plane, hosts=2))


def _burst(times: float, from_s: float, to_s: float) -> Rate:
    return lambda second: _STABLE * (times if from_s <= second < to_s else 1.0)


@pytest.mark.parametrize("times", [3.0, 5.0, 10.0])
def test_a_short_burst_goes_to_burst_workers_alone(times: float) -> None:
    run = _run(_burst(times, 40, 70), 100)
    assert run.hosts_at(99) == 2
    assert not run.asked(40)
    assert run.carries(45)
    assert not run.carries(80)
    assert run.worst(55, 70) < 1_000.0
    without = _run(_burst(times, 40, 70), 100, None)
    assert run.worst(40, 70) < 0.5 * without.worst(40, 70)


def test_a_burst_that_lasts_is_handed_to_hosts() -> None:
    made = WorkerPlane(start_ms=0.0, overhead_ms=0.0, patience_ms=20_000.0)
    run = _run(_burst(3.0, 40, 900), 160, made, start_ms=10_000.0)
    assert min(run.asked(40)) > 60
    assert run.carries(65)
    assert run.hosts_at(159) >= 5
    assert not run.carries(157)
    assert run.worst(50, 160) < 1_000.0


def test_hosts_leave_after_a_burst_that_lasted() -> None:
    made = WorkerPlane(start_ms=0.0, overhead_ms=0.0, patience_ms=10_000.0)
    run = _run(_burst(3.0, 40, 90), 300, made, start_ms=5_000.0)
    assert run.hosts_at(89) >= 5
    assert run.hosts_at(299) <= 3
    assert not run.carries(297)


@pytest.mark.parametrize("shape", ["sine", "gradual", "saw"])
def test_bursts_of_other_shapes(shape: str) -> None:
    def rate(at: float) -> float:
        second = at - 40
        if not 0 <= second < 60:
            return _STABLE
        rises = {
            "sine": 4 * np.sin(np.pi * second / 60),
            "gradual": 4 * second / 60,
            "saw": 4 * (second % 6) / 6,
        }
        return float(_STABLE * (1 + rises[shape]))

    run = _run(rate, 120)
    assert run.hosts_at(119) == 2
    assert not run.carries(117)
    assert run.worst(40, 120) < 2_000.0


def test_without_a_burst_burst_workers_are_never_used() -> None:
    assert not _run(lambda second: 6_500.0, 60).outcome.series.workers.any()
