"""Burst workers within the control of a flow: whom they can help, whether they answer, what they are given.

`FlowOffload` is what the control machine is handed. What it decides for a step becomes a part of the next
epoch's plan here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.elastic import Elastic
from penstock.control.events import EpochSealed, KeysCounted
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.machine import WARM_EPOCHS, ControlledStep, FlowControl, Habits
from penstock.control.money import Costs, HostPrice
from penstock.control.offload_policy import Ahead, Helped
from penstock.control.record import Opening, StepFacts, written
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading, OffloadSettings, recovery_ms
from penstock.model import SLA, StepId, milliseconds
from penstock.offload.plan.segments import live_segment, segments
from penstock.offload.policy.burst import Trust
from penstock.offload.policy.offloader import Offloader
from penstock.offload.policy.reflexes import Reflexes
from penstock.offload.policy.shares import apportioned
from penstock.operators.window.windows import Window
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.wire.report import Seen, offloaded_by_segment

NO_ANSWER = "functions have not answered for most of their rows: hosts take all of them for a while"
GONE = "there are no functions just now: hosts take all rows"
_GENEROUS = 2.0
"""Times what burst workers are expected to take, until their rows are taken back."""
_NEVER = float("inf")


def settings_of(segment: Helped, elastic: Elastic, sla: SLA) -> OffloadSettings:
    """When burst workers help a segment."""
    settings = elastic.offload_settings(recovery_ms(segment.every_ms, sla))
    return settings if segment.keyed else courier_settings(settings)


def helped(flow: FlowPlan, live: bool = False) -> tuple[dict[str, Helped], dict[str, str]]:
    """The segments that burst workers can help, and of the other keyed steps why they cannot."""
    found = segments(flow)
    if live:
        found = tuple(live_segment(one) for one in found if one.keyed is not None)
    return (
        {
            one.id: Helped(one.keyed is not None, one.by_slot, _interval_ms(one.keyed))
            for one in found
            if one.offloadable
        },
        {one.id: one.reason for one in found if one.keyed is not None and not one.offloadable},
    )


def opening_of(
    flow: FlowPlan,
    sla: SLA,
    elastic: Elastic,
    *,
    now_ms: float,
    host_start_ms: float,
    trigger_ms: float = 0.0,
    warm_epochs: int = WARM_EPOCHS,
    live: bool = False,
) -> Opening:
    """All that the machine of a flow is made from."""
    segments, whole = helped(flow, live) if elastic.functions is not None else ({}, {})
    return Opening(
        now_ms,
        sla,
        written(elastic),
        tuple(StepFacts(step.id, step.slots, step.plan.merges) for step in flow.keyed),
        host_start_ms,
        warm_epochs,
        segments,
        whole,
        trigger_ms,
        not isinstance(elastic.policy, str),
        live,
    )


def machine_of(opening: Opening, elastic: Elastic) -> FlowControl:
    """The machine of a live run, or the same again."""
    sla, segments = opening.sla, opening.segments
    settings = {name: settings_of(one, elastic, sla) for name, one in segments.items()}
    offload = FlowOffload(segments, settings, opening.trigger_ms, opening.live)
    return FlowControl(
        [
            ControlledStep(
                *(StepId(one.step), one.slots, elastic.make_policy(), elastic.bounds(sla)),
                merges=one.merges,
            )
            for one in opening.steps
        ],
        Habits(
            float(milliseconds(elastic.delta)),
            warm_epochs=opening.warm_epochs,
            host_start_ms=opening.host_start_ms,
            own_latency=opening.live,
            measured=opening.live,
        ),
        now_ms=opening.started_ms,
        offload=None if elastic.functions is None else offload,
        couriers=[name for name, one in segments.items() if not one.keyed],
        whole=opening.whole,
        elastic=elastic,
        sla=sla,
    )


class FlowOffload:
    """Decides what burst workers carry for all steps of a flow: an `OffloadPolicy`."""

    def __init__(
        self,
        segments: Mapping[str, Helped],
        settings: Mapping[str, OffloadSettings],
        trigger_ms: float = 0.0,
        live: bool = False,
    ) -> None:
        self._segments, self._trust, self._live = segments, Trust(), live
        self.offloaders = {step: Offloader(settings[step]) for step in segments}
        self._reflexes = {step: Reflexes(trigger_ms) for step in segments}
        self._last: EpochSealed | KeysCounted | None = None
        self._rows_each: dict[str, float] = {}
        """step -> rows that went to burst workers for a record that hosts were spared."""

    def helps(self, step: str) -> bool:
        return step in self._segments

    def steer(self, elastic: Elastic, sla: SLA) -> None:
        for step, segment in self._segments.items():
            self.offloaders[step].steer(settings_of(segment, elastic, sla))

    def trouble(self, now_ms: float, reachable: bool) -> str:
        if not self._trust.at(now_ms):
            return NO_ANSWER
        return "" if reachable else GONE

    def note(self, told: EpochSealed | KeysCounted, in_force: Mapping[str, Offload]) -> bool:
        self._last, now_ms = told, told.now_ms
        carried = offloaded_by_segment(told.seen)
        returned = sum(one.returned for one in carried.values())
        lost = self._trust.note(now_ms, sum(one.rows for one in carried.values()), returned)
        for step, reflexes in self._reflexes.items():
            rows, records, combined = _came(step, told.seen)
            if len(rows) == told.partitions:
                reflexes.note(rows, records, combined)
        if self.trouble(now_ms, told.aid.reachable):
            return lost
        for step, one in carried.items():
            if step in told.steps and step in in_force:
                # a live courier counts what burst workers carry row by row
                spared = one.rows if self._live else self._spared(step, in_force[step])
                self._rows_each[step] = one.rows / max(spared, 1)
                answered = (one.rows - one.returned) / max(one.rows, 1)
                self.offloaders[step].merged(round(answered * spared), one.records)
        return lost

    def _spared(self, step: str, offload: Offload) -> int:
        """Records that hosts would have got for what went to burst workers. Where couriers combine the
        rows of a key, these are fewer than the rows."""
        loads = self._loads(step)
        asking = [load for n, load in enumerate(loads) if offload.at_once(n, len(loads))]
        load = sum(asking, start=np.zeros(1))
        return round(float((load * self._in_force(step, offload, float(load.sum()))).sum()))

    def _in_force(self, step: str, offload: Offload, records: float) -> Floats:
        """By slot, or one for all: what burst workers have of an epoch that brings so many records."""
        shares: Floats = offload.shares
        if not self._segments[step].by_slot:
            shares = np.array([np.mean(shares)])
        if offload.reflex is not None:
            by_reflex = self._reflexes[step].share_of(offload.reflex, records)
            shares = np.maximum(shares, by_reflex)
        return shares

    def left(self, step: str, by_slot: Floats, offload: Offload, merge: float) -> Floats:
        shares = self._in_force(step, offload, float(by_slot.sum()))
        return by_slot * (1.0 - shares * (1.0 - merge))

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None
    ) -> Offloading:
        return self.offloaders[vitals.step].decide(vitals, bounds, now_ms, spent)

    def let_go(self, step: str, now_ms: float) -> None:
        self.offloaders[step].let_go(now_ms)

    def planned(
        self, found: Offloading, vitals: Vitals, bounds: Bounds, ahead: Ahead
    ) -> Offload | None:
        """See `OffloadPolicy`. Couriers wait for longer than the bound where much is expected of burst
        workers. Where nothing is to go to them couriers may still find that they have too much."""
        step, offloader = vitals.step, self.offloaders[vitals.step]
        reflexes, limits = self._reflexes[step], offloader.limits
        if self._live:
            reflex = reflexes.live_reflex(vitals, limits, bounds.latency_ms, found.merge)
        else:
            reflex = reflexes.reflex(vitals, limits, bounds.time, found.merge)
        if reflex is None and not found.carries:
            return None
        deadline_ms = float(bounds.sla.latency_ms)
        served = service_rates(vitals)
        if served is not None and found.carries:
            capacity = found.workers * offloader.settings.speed * float(served.mean())
            rows = found.redirected * self._rows_each.get(step, 1.0)
            deadline_ms = max(deadline_ms, _GENEROUS * ahead.gap_ms * rows / capacity)
        shares = found.shares
        if not self._segments[step].keyed and len(shares) != ahead.partitions:
            shares = shares.mean(keepdims=True)  # one for all, where partitions are others
        plain = Offload(shares, max(1, found.workers), round(deadline_ms), reflex=reflex)
        return self._shared_out(step, plain, ahead, offloader.settings.at_most)

    def _shared_out(self, step: str, offload: Offload, ahead: Ahead, at_most: int) -> Offload:
        """With the burst workers that each courier may use, if these are not the same for all.

        Where some get none, others give more of their rows, so that hosts get as few of them.
        """
        partitions = ahead.partitions
        rows = self._aside(step, offload)
        if len(rows) != partitions or not rows.any():
            rows = np.ones(partitions)
        each = apportioned(offload.workers, rows, ahead.together, at_most)
        if each == tuple(offload.at_once(n, partitions) for n in range(partitions)):
            return offload
        helped = rows[np.array(each) > 0].sum()
        if self._segments[step].keyed and helped > 0:
            shares = np.minimum(1.0, offload.shares * (rows.sum() / helped))
            offload = replace(offload, shares=shares)
        return replace(offload, per_courier=each)

    def _aside(self, step: str, offload: Offload) -> Floats:
        """What each courier would have had for burst workers in the last epoch."""
        seen = () if self._last is None else self._last.seen
        if not self._segments[step].keyed:
            rows = [task.maps[step].rows if step in task.maps else 0 for task in seen]
            return np.array([n * offload.share_of(p, len(rows)) for p, n in enumerate(rows)])
        shares = offload.shares if self._segments[step].by_slot else np.mean(offload.shares)
        return np.array([(load * shares).sum() for load in self._loads(step)])

    def _loads(self, step: str) -> list[Ints]:
        """Records of the last epoch by slot, for each courier."""
        seen = () if self._last is None else self._last.seen
        return [task.loads.get(step, np.zeros(1, np.int64)) for task in seen]


def courier_settings(settings: OffloadSettings) -> OffloadSettings:
    """When burst workers help couriers, by what holds for hosts.

    Rows that come back are handed on, at no cost to speak of; and there are no hosts that could take
    over, so that no burst is too long, or too dear, for them.

    >>> of_hosts = OffloadSettings(patience_ms=10_000.0)
    >>> of_couriers = courier_settings(of_hosts)
    >>> of_couriers.merge_cost, of_couriers.patience_ms, of_couriers.at_most == of_hosts.at_most
    (0.0, inf, True)
    """
    costs = Costs(HostPrice(_NEVER), settings.costs.worker, settings.costs.least_host_ms)
    return replace(settings, merge_cost=0.0, patience_ms=_NEVER, costs=costs)


def _came(step: str, seen: Sequence[Seen]) -> tuple[list[int], float, bool]:
    """What `Reflexes.note` takes: what came by where rows of a segment leave for burst workers."""
    done = [task.maps[step].rows for task in seen if step in task.maps]
    if done:
        return done, float(sum(done)), False
    routed = [task.routed[step] for task in seen if step in task.routed]
    records = float(sum(task.loads[step].sum() for task in seen if step in task.loads))
    return [one.rows for one in routed], records, any(one.combined for one in routed)


def _interval_ms(step: KeyedStep | None) -> float | None:
    window = None if step is None else getattr(step.plan, "window", None)
    return window.every_us / 1000 if isinstance(window, Window) else None
