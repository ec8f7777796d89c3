"""Burst workers in the control of a flow: which steps they can help, whether they answer, and their share.

The control machine uses `FlowOffload`, which also turns its decisions into parts of the next epoch's plan.
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

NO_ANSWER = "functions did not answer for most of their rows: hosts take all rows for a while"
GONE = "functions are not available right now: hosts take all rows"
_GENEROUS = 2.0
"""Factor on the expected duration of burst workers, after which couriers do the rows themselves."""
_NEVER = float("inf")


def settings_of(segment: Helped, elastic: Elastic, sla: SLA) -> OffloadSettings:
    """Settings that decide when burst workers help a segment."""
    settings = elastic.offload_settings(recovery_ms(segment.every_ms, sla))
    return settings if segment.keyed else courier_settings(settings)


def helped(flow: FlowPlan, live: bool = False) -> tuple[dict[str, Helped], dict[str, str]]:
    """The segments that burst workers can help, and for the other keyed steps the reason why they cannot."""
    parts = segments(flow)
    if live:
        parts = tuple(live_segment(part) for part in parts if part.keyed is not None)
    return (
        {
            part.id: Helped(part.keyed is not None, part.by_slot, _interval_ms(part.keyed))
            for part in parts
            if part.offloadable
        },
        {part.id: part.reason for part in parts if part.keyed is not None and not part.offloadable},
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
    """Collect all inputs from which the control machine of a flow is made."""
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


def machine_of(opening: Opening, elastic: Elastic, decides: bool = True) -> FlowControl:
    """Make the control machine of a flow from its opening. The same opening makes the same machine again. One
    that `decides` nothing only examines."""
    sla, segments = opening.sla, opening.segments
    settings = {name: settings_of(segment, elastic, sla) for name, segment in segments.items()}
    offload = FlowOffload(segments, settings, opening.trigger_ms, opening.live)
    return FlowControl(
        [
            ControlledStep(
                *(StepId(facts.step), facts.slots, elastic.make_policy(), elastic.bounds(sla)),
                merges=facts.merges,
            )
            for facts in opening.steps
        ],
        Habits(
            float(milliseconds(elastic.delta)),
            warm_epochs=opening.warm_epochs,
            host_start_ms=opening.host_start_ms,
            own_latency=opening.live,
            measured=opening.live,
            decides=decides,
        ),
        now_ms=opening.started_ms,
        offload=None if elastic.functions is None else offload,
        couriers=[name for name, segment in segments.items() if not segment.keyed],
        whole=opening.whole,
        elastic=elastic,
        sla=sla,
    )


class FlowOffload:
    """Decides which rows of all steps of a flow go to burst workers: an `OffloadPolicy`."""

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
        """Step -> rows that went to burst workers per record that hosts did not get."""

    def helps(self, step: str) -> bool:
        return step in self._segments

    def steer(self, elastic: Elastic, sla: SLA) -> None:
        for step, segment in self._segments.items():
            self.offloaders[step].steer(settings_of(segment, elastic, sla))

    def trouble(self, now_ms: float, reachable: bool) -> str:
        if not self._trust.at(now_ms):
            return NO_ANSWER
        return "" if reachable else GONE

    def note(self, event: EpochSealed | KeysCounted, in_force: Mapping[str, Offload]) -> bool:
        self._last, now_ms = event, event.now_ms
        carried = offloaded_by_segment(event.seen)
        returned = sum(part.returned for part in carried.values())
        timeouts = sum(part.failures.get("timeout", 0) for part in carried.values())
        hung = 2 * timeouts > sum(part.invocations for part in carried.values())
        lost = self._trust.note(now_ms, sum(part.rows for part in carried.values()), returned, hung)
        for step, reflexes in self._reflexes.items():
            rows, records, combined = _came(step, event.seen)
            if len(rows) == event.partitions:
                reflexes.note(rows, records, combined)
        if self.trouble(now_ms, event.aid.reachable):
            return lost
        for step, part in carried.items():
            if step in self.offloaders:
                self.offloaders[step].profiled(part.here_ms, part.workers_ms)
            if step in event.steps and step in in_force:
                # a live courier counts each row for burst workers as a record
                spared = part.rows if self._live else self._spared(step, in_force[step])
                self._rows_each[step] = part.rows / max(spared, 1)
                answered = (part.rows - part.returned) / max(part.rows, 1)
                self.offloaders[step].merged(round(answered * spared), part.records)
        return lost

    def _spared(self, step: str, offload: Offload) -> int:
        """Records that hosts would have got for the rows of burst workers. If couriers combine the rows of a
        key, these are fewer than the rows."""
        loads = self._loads(step)
        asking = [load for n, load in enumerate(loads) if offload.at_once(n, len(loads))]
        load = sum(asking, start=np.zeros(1))
        return round(float((load * self._in_force(step, offload, float(load.sum()))).sum()))

    def _in_force(self, step: str, offload: Offload, records: float) -> Floats:
        """Shares of burst workers in an epoch with this number of records: one per slot, or one for all."""
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
        """See `OffloadPolicy`. Couriers wait longer than the latency bound if burst workers get many rows. If
        they get none, couriers may still use them by reflex."""
        step, offloader = vitals.step, self.offloaders[vitals.step]
        reflexes, limits = self._reflexes[step], offloader.limits
        if self._live:
            reflex = reflexes.live_reflex(vitals, limits, bounds.latency_ms, found.merge)
        else:
            reflex = reflexes.reflex(vitals, limits, bounds.time, found.merge)
        if reflex is None and not found.carries:
            return None
        deadline_ms = bounds.whole_ms
        served = service_rates(vitals)
        if served is not None and found.carries:
            capacity = found.workers * offloader.speed * float(served.mean())
            rows = found.redirected * self._rows_each.get(step, 1.0)
            deadline_ms = max(deadline_ms, _GENEROUS * ahead.gap_ms * rows / capacity)
        shares = found.shares
        if not self._segments[step].keyed and len(shares) != ahead.partitions:
            shares = shares.mean(keepdims=True)  # the partitions have changed
        plain = Offload(shares, max(1, found.workers), round(deadline_ms), reflex=reflex)
        return self._shared_out(step, plain, ahead, offloader.settings.at_most)

    def _shared_out(self, step: str, offload: Offload, ahead: Ahead, at_most: int) -> Offload:
        """Add the number of burst workers for each courier, if it is not the same for all.

        If some couriers get none, the shares of the others rise, so that hosts get no more rows.
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
        """Rows or records of each courier in the last epoch that these shares would send to burst workers."""
        seen = () if self._last is None else self._last.seen
        if not self._segments[step].keyed:
            rows = [task.maps[step].rows if step in task.maps else 0 for task in seen]
            return np.array([n * offload.share_of(p, len(rows)) for p, n in enumerate(rows)])
        shares = offload.shares if self._segments[step].by_slot else np.mean(offload.shares)
        return np.array([(load * shares).sum() for load in self._loads(step)])

    def _loads(self, step: str) -> list[Ints]:
        """Records of the last epoch by slot, one array per courier."""
        seen = () if self._last is None else self._last.seen
        return [task.loads.get(step, np.zeros(1, np.int64)) for task in seen]


def courier_settings(settings: OffloadSettings) -> OffloadSettings:
    """Settings for burst workers that help couriers, derived from those for hosts.

    Rows that come back cost next to nothing to pass on. And no hosts could take over, so no burst is too long
    or too expensive for burst workers.

    >>> of_hosts = OffloadSettings(patience_ms=10_000.0)
    >>> of_couriers = courier_settings(of_hosts)
    >>> of_couriers.merge_cost, of_couriers.patience_ms, of_couriers.at_most == of_hosts.at_most
    (0.0, inf, True)
    """
    costs = Costs(HostPrice(_NEVER), settings.costs.worker, settings.costs.least_host_ms)
    return replace(settings, merge_cost=0.0, patience_ms=_NEVER, costs=costs)


def _came(step: str, seen: Sequence[Seen]) -> tuple[list[int], float, bool]:
    """Arguments for `Reflexes.note`: rows of each partition, records, and whether couriers combined."""
    done = [task.maps[step].rows for task in seen if step in task.maps]
    if done:
        return done, float(sum(done)), False
    routed = [task.routed[step] for task in seen if step in task.routed]
    records = float(sum(task.loads[step].sum() for task in seen if step in task.loads))
    return [task.rows for task in routed], records, any(task.combined for task in routed)


def _interval_ms(step: KeyedStep | None) -> float | None:
    window = None if step is None else getattr(step.plan, "window", None)
    return window.every_us / 1000 if isinstance(window, Window) else None
