"""The control loop compiles all its kernels before it takes its lock."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.diagnose import peaks, strategy_kernels
from penstock.control.elastic import Elastic
from penstock.control.examine import fifo, history, samples
from penstock.control.examine.vitals import Vitals
from penstock.control.record import Opening, written
from penstock.control.treat.decision import Bounds, Decision
from penstock.driver.control_rehearsal import rehearse
from penstock.model import SLA

SHARED = (
    *(fifo._arrive, fifo._complete, history._add_arrivals, history._add_completed),
    *(history._read_completed, peaks._note, peaks._per_host),
    *(strategy_kernels.best_pair, strategy_kernels.best_target, strategy_kernels.choose),
    strategy_kernels.spread,
)
"""Kernels that flows in either mode need."""
LIVE = (samples._compare, samples._interpolate)
"""Kernels that only live flows need."""


@pytest.mark.parametrize(("live", "kernels"), [(False, SHARED), (True, SHARED + LIVE)])
def test_a_rehearsal_calls_the_kernels_of_its_mode(live: bool, kernels: tuple[Any, ...]) -> None:
    elastic, sla = Elastic(), SLA(500, 1_000)
    opening = Opening(1_000.0, sla, written(elastic), (), 1_000.0, 3, live=live)
    rehearse(opening, elastic)
    assert [kernel.__name__ for kernel in kernels if not kernel.signatures] == []


def test_a_policy_object_of_the_user_is_not_called() -> None:
    class Mine:
        asked = 0

        def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
            self.asked += 1
            return Decision("good", ())

    policy = Mine()
    elastic = Elastic(policy=policy)
    rehearse(Opening(1_000.0, SLA(500, 1_000), written(elastic), (), 1_000.0, 3), elastic)
    assert policy.asked == 0
