"""From a decision to the state of a host: control, plan, couriers, burst workers, reports. No Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.control.elastic import Elastic
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading
from penstock.driver.control_loop import ControlLoop
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.policy.flow import NO_ANSWER, FlowOffload
from penstock.offload.policy.offloader import Offloader
from tests.offload.in_process import KeptCluster
from tests.trials.ledger import SLOTS, SUMS, SumsTwin


class Told(Offloader):
    """An offloader that returns a preset decision, and records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = np.zeros(SLOTS)
        self.heard: list[tuple[int, int]] = []

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None = None
    ) -> Offloading:
        reasons = ("as preset",) if self.shares.any() else ()
        redirected = float(vitals.rate @ self.shares)
        return Offloading(self.shares, 3, 2, reasons, rate=1.0, redirected=redirected)

    def merged(self, rows: int, partials: int) -> None:
        self.heard.append((rows, partials))


class Helped(KeptCluster):
    """A cluster whose control offloads a preset share."""

    def __init__(self, store: Path) -> None:
        self.offloader = Told()
        elastic = Elastic("static(2)", functions=LocalFunctions())
        super().__init__(SUMS, str(store), elastic, warm_epochs=0)

    def make_control(self) -> ControlLoop:
        control = super().make_control()
        assert control is not None
        offload = control.machine._offload
        assert isinstance(offload, FlowOffload)
        offload.offloaders["sums"] = self.offloader
        return control

    def pass_epoch(self, random: random.Random, twin: SumsTwin) -> Any:
        """Run an epoch of random rows, and compare it with the twin cluster."""
        parts = [
            [{"k": random.randrange(20), "v": random.randrange(99)} for _ in range(150)]
            for _ in range(2)
        ]
        self.now_ms += 1_000
        progress = self.run(parts)
        expected = twin.epoch([row for part in parts for row in part], self.now_ms)
        assert self.output(progress.epoch) == expected
        self.settle()
        return progress


def test_decided_shares_go_to_burst_workers_and_are_reported(tmp_path: Path) -> None:
    chance, twin = random.Random(7), SumsTwin()
    with Helped(tmp_path) as on:
        for _ in range(3):
            assert on.pass_epoch(chance, twin).functions.rows == 0
        before = on.plans[-1].steps[0].offload
        assert before is None or not before.shares.any()
        on.offloader.shares = np.linspace(0.0, 1.0, SLOTS)
        on.pass_epoch(chance, twin)
        progress = on.pass_epoch(chance, twin)
        offload = on.plans[-1].steps[0].offload
        assert offload is not None
        assert np.array_equal(offload.shares, on.offloader.shares)
        assert on.plans[-1].reach == on.kept[0].reach
        functions = progress.functions
        assert 0 < functions.rows < 300
        assert 0 < functions.records < functions.rows
        assert (functions.returned, functions.failures) == (0, {})
        assert on.offloader.heard[-1][1] == functions.records
        assert on.keeper.used.invocations == functions.invocations
        assert on.control is not None
        facts = on.control.facts()
        assert facts["money"]["functions"] == pytest.approx(0.001 * functions.invocations)
        assert on.offload_facts()[-1]["reasons"] == ["as preset"]
        on.offloader.shares = np.zeros(SLOTS)
        on.pass_epoch(chance, twin)
        assert on.pass_epoch(chance, twin).functions.rows == 0


def test_burst_workers_that_fail_are_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    chance, twin = random.Random(8), SumsTwin()
    with Helped(tmp_path) as on:
        on.offloader.shares = np.full(SLOTS, 0.5)
        for _ in range(4):
            on.pass_epoch(chance, twin)
        on.become({"fail": 1})
        failed = [on.pass_epoch(chance, twin).functions for _ in range(2)]
        assert all(one.returned == one.rows > 0 and one.failures["failed"] for one in failed)
        assert on.pass_epoch(chance, twin).functions.rows == 0, "they get no rows for a while"
        assert len(on.kept) == 2
        assert any(NO_ANSWER in facts["reasons"] for facts in on.offload_facts())
        on.now_ms += 10_000
        on.pass_epoch(chance, twin)
        told_again = [on.pass_epoch(chance, twin).functions for _ in range(2)][-1]
        assert told_again.rows > 0
        assert told_again.returned == 0
        assert on.plans[-1].reach == on.kept[1].reach


def test_a_restarted_driver_has_burst_workers_again(tmp_path: Path) -> None:
    chance, twin = random.Random(9), SumsTwin()
    with Helped(tmp_path) as on:
        on.offloader.shares = np.full(SLOTS, 0.7)
        for _ in range(3):
            on.pass_epoch(chance, twin)
        on.restart()
        for _ in range(3):
            progress = on.pass_epoch(chance, twin)
        assert progress.functions.rows > 0
