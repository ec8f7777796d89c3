"""From a decision to the state of a host: control, plan, couriers, burst workers, reports; no Spark."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from penstock.control.elastic import Elastic
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading
from penstock.driver.control_loop import ControlLoop
from penstock.offload.backends import backend
from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.backends.worker import BurstWorker
from penstock.offload.driver.keeper import WorkerKeeper
from penstock.offload.policy.flow import NO_ANSWER, FlowOffload
from penstock.offload.policy.offloader import Offloader
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan
from penstock.wire.report import Usage
from tests.trials.cluster import MiniCluster, Partitions
from tests.trials.ledger import SLOTS, SUMS, SumsTwin


class Told(Offloader):
    """Offloads as it is told, and remembers what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = np.zeros(SLOTS)
        self.heard: list[tuple[int, int]] = []

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None = None
    ) -> Offloading:
        reasons = ("as told",) if self.shares.any() else ()
        redirected = float(vitals.rate @ self.shares)
        return Offloading(self.shares, 3, 2, reasons, rate=1.0, redirected=redirected)

    def merged(self, rows: int, partials: int) -> None:
        self.heard.append((rows, partials))


class InProcess:
    """Burst workers that run where they are asked. See `Invoker` and `BurstWorkers`."""

    request_limit: int | None = None

    def __init__(self, flow: FlowPlan, reach: str) -> None:
        self._burst_worker, self.reach = BurstWorker(flow), reach
        self._lock = threading.Lock()
        self._usage = self._noted = Usage()
        self.fails = False

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        if self.fails:
            raise WorkerFailed("it is not well", failure="failed")
        answer = self._burst_worker.answer(request)
        with self._lock:
            self._usage += Usage(invocations=1, seconds=0.1, money=0.001)
        return answer

    def taken(self) -> Usage:
        with self._lock:
            taken, self._usage = self._usage, Usage()
            return taken

    def warm(self, count: int) -> None:
        pass

    def note(self, usage: Usage) -> None:
        with self._lock:
            self._noted += usage

    def used(self) -> Usage:
        return self._noted

    def stop(self) -> None:
        pass


class Helped(MiniCluster):
    """A cluster whose control has burst workers."""

    def __init__(self, flow: FlowPlan, store: str, **elastic: Any) -> None:
        self.brought_up: list[InProcess] = []
        self.keeper = WorkerKeeper(self._bring_up)
        self.offloader = Told()
        self.plans: list[EpochPlan] = []
        self._store_name = store
        made = Elastic("static(2)", functions=LocalFunctions(), **elastic)
        super().__init__(flow, store, elastic=made, warm_epochs=0, keeper=self.keeper)
        self.keeper.start()
        self.settle()

    def _bring_up(self) -> InProcess:
        text = f"{self._store_name} {len(self.brought_up)}"
        self.brought_up.append(InProcess(self.flow, text))
        backend._invokers[text] = self.brought_up[-1]
        return self.brought_up[-1]

    def settle(self) -> None:
        self.keeper._worker.submit(lambda: None).result()

    def _make_control(self) -> ControlLoop:
        control = super()._make_control()
        assert control is not None
        offload = control.machine._offload
        assert isinstance(offload, FlowOffload)
        offload.offloaders["sums"] = self.offloader
        return control

    def _write(self, plan: EpochPlan, parts: Partitions) -> None:
        self.plans.append(plan)
        super()._write(plan, parts)

    def pass_epoch(self, random: random.Random, twin: SumsTwin) -> Any:
        """An epoch of random rows, compared with its twin."""
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


@contextmanager
def helped(store: str, **elastic: Any) -> Iterator[Helped]:
    made = Helped(SUMS, store, **elastic)
    try:
        yield made
    finally:
        made.close()
        made.keeper.stop()
        for one in made.brought_up:
            backend._invokers.pop(one.reach)


def test_what_is_decided_goes_to_burst_workers_and_is_told_back(tmp_path: Path) -> None:
    chance, twin = random.Random(7), SumsTwin()
    with helped(str(tmp_path)) as on:
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
        assert on.plans[-1].functions == on.brought_up[0].reach
        told = progress.functions
        assert 0 < told.rows < 300
        assert 0 < told.records < told.rows
        assert (told.returned, told.failures) == (0, {})
        assert on.offloader.heard[-1][1] == told.records
        assert on.keeper.used.invocations == told.invocations
        assert on.control is not None
        facts = on.control.facts()
        assert facts["money"]["functions"] == pytest.approx(0.001 * told.invocations)
        entries = [e for e in on.control.journal.last(100) if e.event == "offload"]
        assert entries[-1].facts["reasons"] == ["as told"]
        on.offloader.shares = np.zeros(SLOTS)
        on.pass_epoch(chance, twin)
        assert on.pass_epoch(chance, twin).functions.rows == 0


def test_burst_workers_that_fail_are_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    chance, twin = random.Random(8), SumsTwin()
    with helped(str(tmp_path)) as on:
        on.offloader.shares = np.full(SLOTS, 0.5)
        for _ in range(4):
            on.pass_epoch(chance, twin)
        on.brought_up[0].fails = True
        told = [on.pass_epoch(chance, twin).functions for _ in range(2)]
        assert all(one.returned == one.rows > 0 and one.failures["failed"] for one in told)
        assert on.pass_epoch(chance, twin).functions.rows == 0, "they are left alone"
        assert len(on.brought_up) == 2
        assert on.control is not None
        entries = [e for e in on.control.journal.last(100) if e.event == "offload"]
        assert any(NO_ANSWER in e.facts["reasons"] for e in entries)
        on.now_ms += 10_000
        on.pass_epoch(chance, twin)
        told_again = [on.pass_epoch(chance, twin).functions for _ in range(2)][-1]
        assert told_again.rows > 0
        assert told_again.returned == 0
        assert on.plans[-1].functions == on.brought_up[1].reach


def test_a_driver_that_starts_again_has_burst_workers_again(tmp_path: Path) -> None:
    chance, twin = random.Random(9), SumsTwin()
    with helped(str(tmp_path)) as on:
        on.offloader.shares = np.full(SLOTS, 0.7)
        for _ in range(3):
            on.pass_epoch(chance, twin)
        cast("MiniCluster", on).restart()
        for _ in range(3):
            progress = on.pass_epoch(chance, twin)
        assert progress.functions.rows > 0
