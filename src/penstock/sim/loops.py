"""Loops over simulated time for both engines, with the control machine.

`Controlled` passes events from its stages to the machine, and carries out the machine's instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

from penstock.control import events as ev
from penstock.control import instructions as do
from penstock.control.examine.vitals import Floats
from penstock.control.machine import ControlledStep, FlowControl, Habits
from penstock.control.money import Money
from penstock.control.offload_policy import Helped
from penstock.model import StepId
from penstock.offload.policy.flow import FlowOffload
from penstock.plan.epoch import Offload
from penstock.sim.epochs import Effort, SimSource
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Following
from penstock.sim.queues import Queues
from penstock.sim.stage import SimStage
from penstock.wire.report import Offloaded, Routed, Seen

Progress = Callable[[float], None]
"""A function that is called after each evaluation with the simulated milliseconds so far."""

_UNWATCHED = 1000
"""Number of time slots to simulate at once if no step is under control."""


class Controlled:
    """The stages of a flow, and the machine that controls those with a policy."""

    def __init__(self, stages: Sequence[SimStage], control_ms: float) -> None:
        self.stages, plane = stages, stages[0].plane
        self._stages = {str(stage.step): stage for stage in stages}
        helped = {s: each for s, stage in self._stages.items() if (each := stage.offload_settings)}
        self._helped = bool(helped)
        self.machine = FlowControl(
            [
                ControlledStep(stage.step, stage.fleet.owner.size, stage.policy, stage.bounds)
                for stage in stages
                if stage.policy is not None
            ],
            Habits(
                delta_ms=control_ms,
                warm_epochs=0,
                revises=plane.revises,
                shares=False,
                own_latency=plane.engine == "continuous",
                forgives=False,
            ),
            offload=FlowOffload(dict.fromkeys(helped, Helped()), helped) if helped else None,
        )

    def watches(self, stage: SimStage) -> bool:
        """Whether a stage is under control."""
        return stage.step in self.machine.steps

    def aid(self, now_ms: float) -> ev.Aid:
        """The state of burst workers and costs."""
        if not self._helped:
            return ev.Aid()
        spent = [stage.spent(now_ms) for stage in self.stages]
        money = Money(sum(cost.hosts for cost in spent), sum(cost.functions for cost in spent))
        return ev.Aid(True, money)

    def share(self, now_ms: float, shares: Mapping[StepId, float]) -> None:
        """Set the steps' shares of an end-to-end bound."""
        for stage in self.stages:
            stage.share = shares[stage.step]
        self.tell(ev.SharesMoved(now_ms, shares))

    def tell(self, event: ev.Event) -> None:
        """Pass an event to the machine, and carry out its instructions."""
        steps = self.machine.steps
        asked, began = {name: step.asked for name, step in steps.items()}, perf_counter()
        instructions = self.machine.handle(event)
        took_s = perf_counter() - began
        looked = [name for name, step in steps.items() if step.asked > asked[name]]
        for name in looked:
            self._stages[name].decide_s.append(took_s / len(looked))
        for instruction in instructions:
            if isinstance(instruction, do.Treat):
                self._treat(instruction, event)
            elif isinstance(instruction, do.KeepWarm):
                self._stages[instruction.step].warm = instruction.count
            elif isinstance(instruction, do.Tell):
                self._stages[instruction.entry.step].entries.append(instruction.entry)

    def _treat(self, treat: do.Treat, event: ev.Event) -> None:
        """Begin treatments. Slots move at once, unless an epoch is running."""
        stage, now_ms = self._stages[treat.step], event.now_ms
        named = stage.begin(treat, now_ms)
        self.tell(ev.TreatmentBegun(now_ms, treat.epoch, treat.step, named))
        if not isinstance(event, ev.EpochRead):
            stage.settle(now_ms)
            self.tell(ev.SlotsMoved(now_ms, treat.epoch, treat.step, stage.fleet.placement))

    def outcomes(self) -> dict[str, Outcome]:
        """Results of each step, by name."""
        steps = self.machine.steps
        return {
            name: stage.outcome(steps[name].asked if name in steps else 0)
            for name, stage in self._stages.items()
        }


def run(
    flow: Controlled, following: Sequence[Following], per_look: int, progress: Progress
) -> None:
    """Simulate the whole trace with the engine of the first stage.

    Without epochs, control evaluates the steps after every `per_look` time slots.
    """
    if flow.stages[0].plane.engine == "epochs":
        _epochs(flow, following, progress)
    else:
        _continuous(flow, following, per_look, progress)


def _continuous(
    flow: Controlled, following: Sequence[Following], per_look: int, progress: Progress
) -> None:
    """Simulate an engine without epochs."""
    stages, ledger = flow.stages, flow.stages[0].ledger
    queues = [Queues(stage.ledger, stage.fleet) for stage in stages]
    handed_on = [follower.fan_out * np.asarray(follower.shares) for follower in following]
    step = per_look if flow.machine.steps else _UNWATCHED
    length = len(ledger.arrived)
    for look, first in enumerate(range(0, length, step), start=1):
        last = min(first + step, length)
        if len(stages) == 1:
            queues[0].advance(first, last)
        else:
            for m in range(first, last):
                queues[0].advance(m, m + 1)
                for n, per_record in enumerate(handed_on, start=1):
                    _hand_on(stages[n - 1].ledger, stages[n].ledger, per_record, m)
                    queues[n].advance(m, m + 1)
        now_ms = last * ledger.delta_ms
        for stage, queue in zip(stages, queues, strict=True):
            if flow.watches(stage):
                rows = stage.ledger.latency[first:last]
                measured_ms = rows[0] if step == 1 else rows.sum(axis=0)
                counts = queue.arrived, queue.completed, measured_ms
                flow.tell(stage.time_slot(look, now_ms, counts, last - first == step))
        progress(now_ms)


def _hand_on(before: Ledger, after: Ledger, per_record: Floats, m: int) -> None:
    """Add the records that one step completed in time slot m to the next step's arrivals, with their age.

    `per_record` is the number of records that each slot of the next step gets for a record.
    """
    done = float(before.completed[m].sum())
    if done > 0:
        after.arrived[m] = done * per_record
        after.age_ms[m] = float(before.latency[m].sum() + before.carried[m].sum()) / done


def _epochs(flow: Controlled, following: Sequence[Following], progress: Progress) -> None:
    """Simulate an engine with epochs. Control evaluates each one after its rows are read, and at its end.

    Hosts may start in between. Slots move at the end of an epoch.
    """
    stages, ledger = flow.stages, flow.stages[0].ledger
    end_ms = len(ledger.arrived) * ledger.delta_ms
    source = SimSource(ledger.arrived, ledger.delta_ms)
    put_out = [0] * len(following)
    began_ms, epoch = 0.0, 0
    while began_ms < end_ms:
        intakes = [source.take(began_ms)]
        for n, follower in enumerate(following):
            intakes.append(intakes[n].split(follower.fan_out, follower.shares, put_out[n]))
            put_out[n] += int(intakes[n].records.sum())
            stages[n + 1].ledger.arrive(intakes[n + 1].first, intakes[n + 1].records)
        flow.tell(ev.EpochBegan(began_ms, epoch, aid=flow.aid(began_ms)))
        offloads: Mapping[str, Offload] = flow.machine.orders.offloads
        efforts = [
            stage.begin_epoch(intake, began_ms, offloads.get(stage.step))
            for stage, intake in zip(stages, intakes, strict=True)
        ]
        busy_ms = sum(effort.busy_ms for effort in efforts)
        done_ms = began_ms + stages[0].plane.epoch_cost_ms + busy_ms
        passing = list(zip(stages, intakes, efforts, strict=True))
        watched = [(s, intake, effort) for s, intake, effort in passing if flow.watches(s)]
        helped = [(s, intake, effort) for s, intake, effort in watched if s.pool is not None]
        read = {str(s.step): s.read(intake, effort, began_ms) for s, intake, effort in watched}
        flow.tell(ev.EpochRead(began_ms, epoch, read, aid=flow.aid(began_ms)))
        sealed = {}
        for stage, intake, effort in passing:
            sealed[stage.step] = stage.end_epoch(intake, effort, began_ms, done_ms, busy_ms)
        rows = {str(stage.step): int(intake.records.sum()) for stage, intake, _ in helped}
        seen = Seen(
            int(intakes[0].records.sum()),
            loads={str(stage.step): intake.records.sum(axis=0) for stage, intake, _ in helped},
            offloaded=tuple(_offloaded(stage, effort) for stage, _, effort in helped),
            routed={step: Routed(count, combined=False) for step, count in rows.items()},
        )
        steps = {str(stage.step): sealed[stage.step] for stage, *_ in watched}
        flow.tell(
            ev.EpochSealed(
                *(done_ms, epoch, done_ms, done_ms, steps, (seen,)),
                elsewhere_ms={str(stage.step): e.useful_ms for stage, _, e in passing},
                aid=flow.aid(done_ms),
            )
        )
        for stage in stages:
            if stage.pool is not None:
                stage.pool.keep(done_ms, stage.warm)
        began_ms, epoch = done_ms, epoch + 1
        progress(min(done_ms, end_ms))


def _offloaded(stage: SimStage, effort: Effort) -> Offloaded:
    """The report about rows of burst workers, with a profile of one millisecond of work on both sides."""
    assert stage.pool is not None
    here_ms = 1.0 if effort.rows else 0.0
    return Offloaded(
        stage.step,
        rows=effort.rows,
        records=round(effort.partials),
        here_ms=here_ms,
        workers_ms=here_ms / stage.pool.plane.speed,
    )
