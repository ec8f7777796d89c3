"""Control of a live flow with burst workers: the machine's instructions, time slot by time slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.control import events as ev
from penstock.control import instructions as do
from penstock.control.elastic import Elastic, Steering
from penstock.control.examine.vitals import Work
from penstock.control.machine import FlowControl
from penstock.model import SLA, HostId
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.policy.flow import NO_ANSWER, helped, machine_of, opening_of
from penstock.operators.aggregate.aggregates import AggregatePlan, count, last
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.report import Offloaded, Routed, Seen
from tests.trials.event_ledger import CASES
from tests.trials.ledger import NUMBERS, SLOTS, SUMS

STEP = SUMS.keyed[0].id
HOST = HostId(f"{STEP}/0")
SERVED = 1_000.0
"""Records per second that the host processes."""


class Load:
    """A host at a given rate of records, and the control machine that observes it."""

    def __init__(self, **options: Any) -> None:
        elastic = Elastic("static(1)", at_most=1, functions=LocalFunctions(at_most=8), **options)
        opening = opening_of(
            SUMS, SLA(200, 1_000), elastic, now_ms=0.0, host_start_ms=1e3, warm_epochs=0, live=True
        )
        self.machine: FlowControl = machine_of(opening, elastic)
        self.m, self.arrived, self.completed = 0, np.zeros(SLOTS), np.zeros(SLOTS)
        self.said: list[do.Instruction] = []

    @property
    def offload(self) -> Offload | None:
        return self.machine.orders.offloads.get(STEP)

    def pass_slots(self, rate: float, slots: int, reachable: bool = True) -> None:
        """Run time slots of 100 ms in which records arrive at this rate per second."""
        owner = np.zeros(SLOTS, np.int64)
        placement = ev.StepPlacement((HOST,), owner)
        for _ in range(slots):
            self.m += 1
            shares = np.zeros(SLOTS) if self.offload is None else self.offload.shares
            came = np.full(SLOTS, rate / 10 / SLOTS)
            self.arrived = self.arrived + came
            waiting = self.arrived - self.completed
            # burst workers finish their records at once, the host as many as it can
            own = (1 - shares) * waiting
            done = min(float(own.sum()), SERVED / 10)
            did = shares * waiting + own * (done / max(float(own.sum()), 1e-9))
            self.completed = self.completed + did
            self.said += self.machine.handle(
                ev.TimeSlotEnded(
                    100.0 * self.m,
                    self.m,
                    STEP,
                    self.arrived.copy(),
                    self.completed.copy(),
                    (HOST,),
                    owner,
                    {HOST: Work(round(done), 1_000 * done / SERVED)},
                    did * 20.0,
                    placement,
                    aid=ev.Aid(reachable, None, 2),
                )
            )

    def checkpoint(self, rows: int, returned: int = 0, carried: int = 0) -> None:
        """Two couriers report the rows since the last checkpoint."""
        offloaded = Offloaded(STEP, rows=carried, records=carried // 10, returned=returned)
        seen = tuple(
            Seen(
                rows,
                loads={STEP: np.full(SLOTS, rows // SLOTS)},
                routed={STEP: Routed(rows, False)},
                offloaded=(offloaded,) if carried else (),
            )
            for _ in range(2)
        )
        loads = {STEP: np.full(SLOTS, 2 * rows // SLOTS)}
        event = ev.KeysCounted(100.0 * self.m, 1, (), loads, seen, ev.Aid(True, None, 2))
        self.said += self.machine.handle(event)

    def reasons(self) -> Iterator[tuple[str, ...]]:
        for one in self.said:
            if isinstance(one, do.Tell) and one.entry.event == "offload":
                yield tuple(one.entry.facts["reasons"])


def test_a_steady_load_stays_with_hosts_and_gets_a_reflex() -> None:
    load = Load()
    load.pass_slots(400.0, 20)
    assert load.offload is not None
    assert load.offload.reflex is not None
    assert load.offload.reflex.within_ms is None, "rows are unknown before the first checkpoint"
    load.checkpoint(400)
    load.pass_slots(400.0, 2)
    offload = load.offload
    assert not offload.shares.any()
    reflex = offload.reflex
    assert reflex is not None
    assert reflex.within_ms == 100.0
    assert reflex.limit == pytest.approx(800.0, rel=0.1)
    assert reflex.parts == (0.5, 0.5)
    assert any(isinstance(one, do.KeepWarm) and one.count > 0 for one in load.said)


def test_a_burst_goes_to_burst_workers_within_half_a_second_and_comes_back() -> None:
    load = Load()
    load.pass_slots(400.0, 20)
    load.checkpoint(400)
    load.pass_slots(3_000.0, 8)
    assert load.offload is not None
    assert load.offload.shares.min() > 0.3
    assert load.offload.workers >= 2
    assert sum(load.offload.at_once(courier, 2) for courier in range(2)) >= load.offload.workers
    assert load.offload.deadline_ms >= 200
    load.pass_slots(400.0, 60)
    assert not load.offload.shares.any()
    assert len(list(load.reasons())) >= 2


def test_burst_workers_that_do_not_answer_are_paused_and_replaced() -> None:
    load = Load()
    load.pass_slots(400.0, 20)
    load.checkpoint(400)
    load.pass_slots(3_000.0, 10)
    for _ in range(2):
        load.checkpoint(3_000, returned=1_900, carried=2_000)
    assert any(isinstance(one, do.RenewWorkers) for one in load.said)
    load.pass_slots(3_000.0, 1)
    assert load.offload is None
    assert (NO_ANSWER,) in load.reasons()
    load.pass_slots(3_000.0, 25)
    assert load.offload is not None, "they are used again after a while"


@pytest.mark.parametrize("how", ["gone", "dry run"])
def test_burst_workers_that_are_turned_off_get_no_rows(how: str) -> None:
    load = Load()
    load.pass_slots(400.0, 20)
    load.pass_slots(3_000.0, 10)
    assert load.offload is not None
    if how == "dry run":
        load.said += load.machine.handle(ev.Steered(100.0 * load.m, Steering(dry_run=True)))
    load.pass_slots(3_000.0, 1, reachable=how != "gone")
    assert load.offload is None


def test_live_steps_whose_output_depends_on_arrival_are_not_offloaded() -> None:
    plan = AggregatePlan(NUMBERS, ["k"], {"n": count(), "newest": last("v")})
    flow = FlowPlan((SourcePlan(NUMBERS),), (KeyedStep("newest", 4, plan),))
    assert set(helped(flow)[0]) == {"newest"}
    segments, whole = helped(flow, live=True)
    assert not segments
    assert set(whole) == {"newest"}


def test_live_steps_that_read_changes_are_not_offloaded() -> None:
    """A retraction must not come before its insertion."""
    flow = CASES["groups"].flow
    assert set(helped(flow)[0]) == {"last", "groups"}
    segments, whole = helped(flow, live=True)
    assert set(segments) == {"last"}
    assert set(whole) == {"groups"}
