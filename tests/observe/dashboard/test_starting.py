"""What the dashboard sees of a query that has begun and waits for its hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.driver.fleet import Fleet
from penstock.driver.relocation import Relocation
from penstock.plan.migration import Migration
from penstock.settings import Settings
from penstock.spark.observed import _steps
from tests.driver.test_relocation import STEP, A, B, PretendedFleet
from tests.trials.ledger import SLOTS, SUMS


def test_a_step_is_shown_once_its_slots_have_owners() -> None:
    fleet = PretendedFleet(up={A, B})
    relocation = Relocation(
        SUMS.keyed, {STEP.id: 2}, cast(Fleet, fleet), Settings(), Migration.parse("lazy")
    )
    start = SimpleNamespace(flow=SUMS)
    parts = cast(Any, SimpleNamespace(relocation=relocation, control=None, start=start))
    assert _steps(parts) == []
    relocation.begin(None)
    assert relocation.begun
    assert _steps(parts) == []
    relocation.settle(-1, 0, 1)
    (step,) = _steps(parts)
    assert step.routes.hosts == (A, B)
    assert len(step.routes.owner) == SLOTS
    assert min(step.routes.owner) >= 0
